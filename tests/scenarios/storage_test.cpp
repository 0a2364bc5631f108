// Three storage nodes as processes: a killed one costs nothing, comes back, is repaired; everything killed still hits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/node/node_process.hpp"
#include "runtime/node/supervisor.hpp"
#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::HasSubstr;
using kind = node::supervisor_event::kind;
namespace fs = std::filesystem;

class storage_nodes : public testing::Test {
 protected:
  void SetUp() override {
    write_file(config_, "cluster: {lost_after: 2s}\nmodel: {path: " TROUPE_TEST_DATA "/tiny-v41}\nstorage: {path: " +
                            folder_.path +
                            "/kv, nodes: 3, chunk: 1MiB, capacity: 64MiB, block_tokens: 4, repair_after: 1h}\n");
    for (int i = 0; i < 300'000; ++i) bytes_ += static_cast<char>(i * 7 + i / 251);
    write_file(data_, bytes_);
    start_all();
  }
  void TearDown() override { children_.stop({{"storage.0", "storage.1", "storage.2"}, {"director"}}, 30s); }

  void start(const std::string& seat) {
    std::vector<std::string> args{"node", "-c", config_, "--seat", seat};
    if (seat == "director")
      args.insert(args.end(), {"--set", "director.listen=127.0.0.1:0"});
    else
      args.insert(args.end(), {"--join", director_});
    auto pid = children_.start({node::process_name(seat), args});
    ASSERT_TRUE(pid) << pid.error().message;
  }

  // Waits until each of these has reported `key`; the last value.
  json reports(std::set<std::string> names, const std::string& key) {
    const nanoseconds deadline = steady_clock().now() + 60s;
    json last;
    while (!names.empty() && steady_clock().now() < deadline) {
      auto e = children_.wait(1s);
      if (e.what != kind::report || !names.contains(e.name)) continue;
      json line = json::parse(e.text);
      if (line.contains("failed")) ADD_FAILURE() << e.name << ": " << e.text;
      if (!line.contains(key)) continue;
      last = line[key];
      names.erase(e.name);
    }
    for (const auto& n : names) ADD_FAILURE() << n << " did not report " << key << "\n" << children_.log_tail(n, 20);
    return last;
  }

  void start_all() {
    start("director");
    director_ = reports({"director"}, "actor").get<std::string>();
    for (const char* seat : {"storage/0", "storage/1", "storage/2"}) start(seat);
    reports({"storage.0", "storage.1", "storage.2"}, "stores");
  }

  void kill_and_wait(const std::string& name) {
    kill(children_.running().at(name), SIGKILL);
    while (children_.running().contains(name)) children_.wait(1s);
  }

  program_result kv(std::vector<std::string> args) {
    std::vector<std::string> all{"kv"};
    all.insert(all.end(), args.begin(), args.end());
    all.insert(all.end(), {"--join", director_, "--json"});
    return troupe(all);
  }

  // A node that has not heard of another one yet calls its targets absent, and says so by exit code 1. Extents that
  // came back from the shards.
  uint64_t scrub_all() {
    const nanoseconds deadline = steady_clock().now() + 30s;
    uint64_t restored = 0;
    program_result r;
    do {
      r = kv({"scrub"});
      const auto j = json::parse(r.out, nullptr, false);
      if (j.is_object()) restored += j.value("restored_extents", 0);
    } while (r.code != 0 && steady_clock().now() < deadline);
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    return restored;
  }

  void expect_whole(bool decoded) {
    fs::remove(copy_);
    auto r = kv({"get", "--text", text_, "--out", copy_});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(read_file(copy_) == bytes_);
    const auto j = json::parse(r.out, nullptr, false);
    ASSERT_TRUE(j.is_object()) << r.out;
    EXPECT_EQ(j.value("decoded", 0) > 0, decoded) << r.out;
  }

  temporary_folder folder_;
  const std::string config_ = folder_.path + "/c.yaml", data_ = folder_.path + "/data", copy_ = folder_.path + "/copy";
  const std::string text_ = std::string(800, 'x') + "what comes after it is different";
  std::string bytes_, director_;
  node::supervisor children_{troupe_path(), folder_.path};
};

TEST_F(storage_nodes, blocks_survive_a_killed_node_and_a_killed_cluster) {
  auto r = kv({"put", "--text", text_, "--data", data_});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto put = json::parse(r.out);
  EXPECT_EQ(put["stored"], put["blocks"]);
  r = kv({"match", "--text", text_});
  EXPECT_EQ(json::parse(r.out)["blocks"], put["blocks"]) << r.err;
  expect_whole(false);
  r = kv({"stat"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["blocks"], put["blocks"]);
  EXPECT_EQ(json::parse(r.out)["ec"], "2+1");
  r = kv({"ls"});
  EXPECT_EQ(static_cast<int>(std::count(r.out.begin(), r.out.end(), '\n')), put["extents"].get<int>()) << r.out;
  r = troupe({"status", "--director", director_});
  EXPECT_THAT(r.out, HasSubstr(" " + director_ + " ")) << "where the cluster is joined";
  EXPECT_THAT(r.out, HasSubstr("storage/0: ")) << r.err;
  EXPECT_THAT(r.out, HasSubstr("in use"));
  r = kv({"verify"});
  EXPECT_EQ(r.code, 0) << r.out;
  r = kv({"targets", "ls"});
  EXPECT_EQ(json::parse(r.out)["targets"].size(), 3u) << r.err;

  // One node hangs: the others answer, in words for people.
  kill(children_.running().at("storage.1"), SIGSTOP);
  r = kv({"verify"});
  EXPECT_EQ(r.code, 1) << r.err;
  const auto hung = json::parse(r.out, nullptr, false);
  ASSERT_TRUE(hung.is_object()) << r.out << r.err;
  EXPECT_EQ(hung["absent_targets"], json::array({2}));
  EXPECT_THAT(r.out + r.err, testing::Not(HasSubstr("system_error")));
  EXPECT_THAT(r.out + r.err, testing::Not(HasSubstr("no node of Troupe")));

  // It dies with its disk.
  kill_and_wait("storage.1");
  expect_whole(true);
  EXPECT_EQ(json::parse(kv({"stat"}).out)["blocks"], put["blocks"]) << "its copies are elsewhere";
  r = kv({"put", "--text", "none of this was there before", "--data", data_});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("2 storage targets can be written, 3 are needed"));
  r = kv({"verify"});
  EXPECT_EQ(r.code, 1) << "a target is absent";

  const std::string disk = folder_.path + "/kv/node-0001/disk-01";
  fs::remove_all(disk);
  fs::create_directories(disk);
  write_file(disk + "/accept-empty", "");

  // A new process takes the seat, with an empty disk.
  start("storage/1");
  reports({"storage.1"}, "stores");
  expect_whole(true);
  r = kv({"verify"});
  EXPECT_EQ(r.code, 1) << r.out;
  EXPECT_GT(json::parse(r.out)["missing"], 0);
  r = kv({"scrub"});
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_GT(json::parse(r.out)["rebuilt_shards"], 0);
  r = kv({"verify"});
  EXPECT_EQ(r.code, 0) << r.out;
  expect_whole(false);

  // Everything dies and comes back.
  for (const char* name : {"storage.0", "storage.1", "storage.2", "director"}) kill_and_wait(name);
  start_all();
  expect_whole(false);
  r = kv({"put", "--text", text_, "--data", data_});
  EXPECT_EQ(json::parse(r.out)["stored"], 0) << r.err;

  // Older copies of all indexes are put back: they are noticed, and nothing that is stored is overwritten.
  const auto index = [&](int node) { return folder_.path + "/kv/node-000" + std::to_string(node) + "/index"; };
  children_.stop({{"storage.0", "storage.1", "storage.2"}, {"director"}}, 30s);
  for (int i = 0; i < 3; ++i)
    fs::copy(index(i), folder_.path + "/old" + std::to_string(i), fs::copy_options::recursive);
  start_all();
  r = kv({"put", "--text", "stored after the copy was taken", "--data", data_});
  ASSERT_EQ(r.code, 0) << r.err;
  children_.stop({{"storage.0", "storage.1", "storage.2"}, {"director"}}, 30s);
  for (int i = 0; i < 3; ++i) {
    fs::remove_all(index(i));
    fs::rename(folder_.path + "/old" + std::to_string(i), index(i));
  }
  start_all();
  EXPECT_THAT(children_.log_tail("storage.0", 60), HasSubstr("the index is an older copy"));
  r = kv({"put", "--text", "this would take the same room", "--data", data_});
  EXPECT_EQ(r.code, 0) << r.err;
  scrub_all();
  r = kv({"get", "--text", "stored after the copy was taken", "--out", copy_});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy_) == bytes_);

  // All indexes are gone: what is on the disks comes back.
  for (const char* name : {"storage.0", "storage.1", "storage.2", "director"}) kill_and_wait(name);
  for (int i = 0; i < 3; ++i) fs::remove_all(index(i));
  start_all();
  EXPECT_GT(scrub_all(), 0u);
  r = kv({"ls"});
  EXPECT_EQ(static_cast<int>(std::count(r.out.begin(), r.out.end(), '\n')), put["extents"].get<int>() + 2) << r.out;
  expect_whole(false);
  r = kv({"verify"});
  EXPECT_EQ(r.code, 0) << r.out;
}

TEST_F(storage_nodes, what_does_not_fit_is_refused) {
  auto r = kv({"match", "--text", text_, "--dir", folder_.path});
  EXPECT_EQ(r.code, 2) << r.err;
  r = troupe({"kv", "put", "--join", director_, "--block-tokens", "8", "--text", text_, "--data", data_});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("block"));
  r = troupe({"kv", "put", "--join", director_, "--fingerprint", "another model", "--text", text_, "--data", data_});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("fingerprint"));
  r = troupe({"kv", "stat", "--join", "127.0.0.1:1"});
  EXPECT_EQ(r.code, 3) << r.err;
}

}  // namespace
}  // namespace troupe::tests
