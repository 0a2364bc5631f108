// troupe kv: what docs/kv.md shows, run as it stands there; mistakes; Ctrl-C.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string text = "sixteen letters.";

struct kv : ::testing::Test {
  temporary_folder folder;
  std::string dir = folder.path + "/kv", data = folder.path + "/data", copy = folder.path + "/copy";
  std::string bytes;
  kv() {
    for (int i = 0; i < 100'001; ++i) bytes += static_cast<char>(i * 7919 >> 4);
    write_file(data, bytes);
  }
  program_result put() {
    return troupe(
        {"kv", "put", "--dir", dir, "--block-tokens", "4", "--chunk", "1MiB", "--text", text, "--data", data});
  }
  program_result get() {
    fs::remove(copy);
    return troupe({"kv", "get", "--dir", dir, "--text", text, "--out", copy});
  }
};

TEST_F(kv, put_match_get_and_losses_as_in_the_documentation) {
  auto r = put();
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["stored"], 4);
  r = put();
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["present"], 4);
  r = troupe({"kv", "match", "--dir", dir, "--text", "sixteen letters, and others"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["blocks"], 3);
  r = troupe({"kv", "match", "--dir", dir, "--text", text, "--tenant", "somebody else"});
  EXPECT_EQ(json::parse(r.out)["blocks"], 0);
  ASSERT_EQ(get().code, 0);
  EXPECT_TRUE(read_file(copy) == bytes);
  // The same tokens from a file, and to stdout.
  std::string ids;
  for (unsigned char c : text) ids += std::to_string(c) + ", ";
  write_file(folder.path + "/ids", "[" + ids + "]\n");
  r = troupe({"kv", "get", "--dir", dir, "--tokens", folder.path + "/ids", "--out", "-"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(r.out == bytes);
  r = troupe({"kv", "ls", "--dir", dir, "--json"});
  EXPECT_EQ(json::parse(r.out)["blocks"], 4);
  r = troupe({"kv", "stat", "--dir", dir, "--json"});
  EXPECT_EQ(json::parse(r.out)["shards"], 3);

  fs::remove_all(dir + "/target-0002");
  r = get();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == bytes);
  EXPECT_THAT(r.err, HasSubstr("target-0002 is gone"));
  r = troupe({"kv", "verify", "--dir", dir, "--json"});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(json::parse(r.out)["missing"], 1);
  r = troupe({"kv", "scrub", "--dir", dir, "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["rebuilt_shards"], 1);
  r = troupe({"kv", "verify", "--dir", dir, "--json"});
  EXPECT_EQ(r.code, 0) << r.out;
  fs::remove_all(dir + "/index");
  r = get();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == bytes);
  EXPECT_THAT(r.err, HasSubstr("the index was lost"));
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
  // Two of three targets are more than the code can do without.
  r = troupe({"kv", "get", "--dir", dir, "--text", text, "--out", copy, "--without", "1,3"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("1 of 3 shards can be read, 2 are needed"));
  EXPECT_EQ(read_file(copy), "");
}

TEST_F(kv, mistakes_say_what_is_wrong) {
  struct row {
    std::vector<std::string> args;
    int code;
    std::string want;
  };
  ASSERT_EQ(put().code, 0);
  write_file(folder.path + "/bad", "1 2 three");
  const row rows[] = {
      {{"get", "--dir", folder.path + "/none", "--text", text, "--out", copy}, 3, "there is no store"},
      {{"get", "--text", text, "--out", copy}, 2, "give --dir"},
      {{"get", "--dir", dir, "--out", copy}, 2, "--tokens FILE or --text"},
      {{"get", "--dir", dir, "--tokens", folder.path + "/bad", "--out", copy}, 2, "bad:1: 'three' is no token id"},
      {{"get", "--dir", dir, "--text", "abc", "--out", copy}, 2, "3 tokens make no block"},
      {{"get", "--dir", dir, "--text", text + "more", "--out", copy}, 1, "4 of 5 blocks: block 4 is not in the store"},
      {{"put", "--dir", dir, "--ec", "10+2", "--text", text, "--data", data}, 2, "data shards = 2, not 10"},
      {{"put", "--dir", dir, "--ec", "ten", "--text", text, "--data", data}, 2, "DATA+PARITY"},
      {{"put", "--dir", dir, "--block-tokens", "8", "--text", text, "--data", data}, 2, "block size"},
      {{"put", "--dir", dir, "--text", text, "--data", "/nonexistent"}, 1, "/nonexistent"},
      {{"put", "--dir", dir, "--text", text, "--data", data, "--block-bytes", "5"}, 2, "100001 bytes for 4 blocks"},
      {{"put", "--dir", "/proc/kv", "--text", text, "--data", data}, 1, "/proc/kv"},
      {{"bench", "--dir", folder.path + "/b", "--ec", "2+1", "--targets", "2"}, 2, "at least 3 are needed"},
      {{"stat", "-c", "/nonexistent.yaml"}, 2, "/nonexistent.yaml"},
  };
  for (const auto& row : rows) {
    std::vector<std::string> args{"kv"};
    args.insert(args.end(), row.args.begin(), row.args.end());
    auto r = troupe(args);
    EXPECT_EQ(r.code, row.code) << row.want << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr(row.want));
  }
}

TEST_F(kv, a_configuration_says_which_store) {
  write_file(folder.path + "/c.yaml", "model: {path: " + std::string(TROUPE_TEST_DATA) +
                                          "/tiny-v41}\nstorage: {path: kv, data: 3, parity: 2, chunk: 1MiB}\n");
  auto r = troupe({"kv", "put", "-c", folder.path + "/c.yaml", "--block-tokens", "4", "--text", text, "--data", data});
  ASSERT_EQ(r.code, 0) << r.err;
  r = troupe({"kv", "stat", "-c", folder.path + "/c.yaml", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["ec"], "3+2");
  EXPECT_EQ(json::parse(r.out)["targets"], 5);
  EXPECT_TRUE(fs::exists(dir + "/layout.json"));
}

// A benchmark that is told to stop while it writes: exit code 130, and a store in order.
TEST_F(kv, an_interrupt_leaves_a_clean_store) {
  const std::string b = folder.path + "/b";
  int err[2];
  ASSERT_EQ(pipe2(err, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(err[1], STDERR_FILENO);
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl(troupe_path().c_str(), "troupe", "kv", "bench", "--dir", b.c_str(), "--chunk", "1MiB", "--blocks", "100000",
          "--chain", "8", "--block-bytes", "2000", "--rounds", "100", nullptr);
    _exit(127);
  }
  close(err[1]);
  std::string said;
  char c;
  while (said.find("writing") == std::string::npos && read(err[0], &c, 1) == 1) said += c;
  while (!fs::exists(b + "/target-0001/chunk-00000000") && kill(pid, 0) == 0 && waitpid(pid, nullptr, WNOHANG) == 0) {
  }
  kill(pid, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  close(err[0]);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  auto r = troupe({"kv", "verify", "--dir", b, "--json"});
  EXPECT_EQ(r.code, 0) << r.out;
}

}  // namespace
}  // namespace troupe::tests
