// troupe kv: what docs/kv.md shows, run as it stands there; mistakes; Ctrl-C.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
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
    return troupe({"kv", "put", "--dir", dir, "--block-tokens", "4", "--chunk", "1MiB", "--text", text, "--data", data,
                   "--json"});
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
  r = troupe({"kv", "match", "--dir", dir, "--text", "sixteen letters, and others", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["blocks"], 3);
  r = troupe({"kv", "match", "--dir", dir, "--text", text, "--tenant", "somebody else", "--json"});
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
  for (const auto& look : {std::vector<std::string>{"match", "--text", text}, {"ls"}, {"stat"}, {"targets", "ls"}}) {
    std::vector<std::string> args{"kv"};
    args.insert(args.end(), look.begin(), look.end());
    args.insert(args.end(), {"--dir", dir});
    r = troupe(args);
    EXPECT_EQ(r.code, 3) << look[0];
    EXPECT_THAT(r.err, HasSubstr("`troupe kv scrub`")) << look[0];
    EXPECT_FALSE(fs::exists(dir + "/index")) << look[0] << " writes nothing";
  }
  r = get();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == bytes);
  EXPECT_THAT(r.err, HasSubstr("the index was lost"));
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
  // Two of three targets are more than the code can do without.
  r = troupe({"kv", "get", "--dir", dir, "--text", text, "--out", copy, "--without", "1,3"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("1 of 3 shards can be read, 2 are needed"));
  EXPECT_TRUE(read_file(copy) == bytes) << "a get that finds nothing leaves the file alone";
}

// More targets gone than the code can do without: perhaps their disks are not mounted. Nothing is given up unasked.
TEST_F(kv, scrub_keeps_what_more_than_m_missing_targets_may_still_hold) {
  ASSERT_EQ(put().code, 0);
  fs::create_directory(folder.path + "/away");
  for (const char* t : {"/target-0001", "/target-0003"}) fs::rename(dir + t, folder.path + "/away" + t);
  auto r = get();
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("2 targets in all, and the code can do without 1"));
  r = troupe({"kv", "scrub", "--dir", dir, "--json"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("4 blocks in 1 extents have lost more shards"));
  EXPECT_THAT(r.err, HasSubstr("--drop-lost"));
  EXPECT_EQ(json::parse(r.out)["dropped_extents"], 0);
  EXPECT_EQ(json::parse(r.out)["lost_blocks"], 4);
  EXPECT_FALSE(fs::exists(dir + "/target-0001"));
  // The disks come back: everything is there.
  for (const char* t : {"/target-0001", "/target-0003"}) fs::rename(folder.path + "/away" + t, dir + t);
  r = get();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == bytes);
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
  // One after the other, without the first being filled again: kept as well, until told otherwise.
  for (const char* t : {"/target-0001", "/target-0003"}) fs::remove_all(dir + t);
  EXPECT_EQ(troupe({"kv", "scrub", "--dir", dir}).code, 1);
  r = troupe({"kv", "scrub", "--dir", dir, "--drop-lost", "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("4 blocks in 1 extents were lost and have been dropped"));
  EXPECT_EQ(json::parse(r.out)["dropped_extents"], 1);
  EXPECT_EQ(put().code, 0);
  EXPECT_EQ(get().code, 0);
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
}

TEST_F(kv, a_chunk_file_cut_to_nothing_is_made_good) {
  ASSERT_EQ(put().code, 0);
  fs::resize_file(dir + "/target-0002/chunk-00000000", 0);
  auto r = get();
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == bytes);
  r = troupe({"kv", "scrub", "--dir", dir});
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
}

TEST_F(kv, output_that_cannot_be_written_is_a_failure) {
  ASSERT_EQ(put().code, 0);
  const std::string command = troupe_path() + " kv stat --dir " + dir;
  EXPECT_EQ(WEXITSTATUS(std::system((command + " > /dev/full 2> /dev/null").c_str())), 1);
  // Nobody hears the words: the exit code still tells.
  const std::string nowhere = troupe_path() + " kv verify --dir " + folder.path + "/none";
  EXPECT_EQ(std::system((nowhere + " 2> /dev/full; test $? = 3").c_str()), 0);
  EXPECT_EQ(std::system((nowhere + " 2>&-; test $? = 3").c_str()), 0);
  EXPECT_EQ(WEXITSTATUS(std::system((command + " > /dev/null").c_str())), 0);
}

TEST_F(kv, a_refused_put_leaves_nothing_behind) {
  write_file(folder.path + "/empty", "");
  write_file(folder.path + "/minus", "1 2\n-4\n5");
  const std::string fresh = folder.path + "/fresh";
  struct row {
    std::vector<std::string> more;
    int code;
    std::string want;
  };
  const row rows[] = {
      {{"--text", "abcd", "--data", data}, 2, "4 tokens make no block"},
      {{"--text", text, "--block-tokens", "4", "--data", "/nonexistent"}, 1, "/nonexistent: No such file"},
      {{"--text", text, "--block-tokens", "4", "--data", folder.path}, 1, "is a directory"},
      {{"--text", text, "--block-tokens", "4", "--data", folder.path + "/empty"}, 2, "is empty"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--block-bytes", "0"}, 2, "--block-bytes 0"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--ec", "0+1"}, 2, "a code of 0+1"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--ec", "33+1"}, 2, "a code of 33+1"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--ec", "2+-1"}, 2, "DATA+PARITY"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--capacity", "1KiB"}, 2, "less than one chunk"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--chunk", "2TiB"}, 2, "1 MiB to 16 GiB"},
      {{"--text", text, "--block-tokens", "4", "--data", data, "--without", "9"}, 2, "the store has targets 1, 2, 3"},
      {{"--tokens", folder.path + "/minus", "--block-tokens", "4", "--data", data}, 2, "minus:2: '-4' is no token id"},
  };
  for (const auto& row : rows) {
    std::vector<std::string> args{"kv", "put", "--dir", fresh};
    args.insert(args.end(), row.more.begin(), row.more.end());
    auto r = troupe(args);
    EXPECT_EQ(r.code, row.code) << row.want << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr(row.want));
    EXPECT_FALSE(fs::exists(fresh)) << row.want;
  }
  // A directory of other things stays as it is.
  auto r = troupe({"kv", "put", "--dir", folder.path, "--block-tokens", "4", "--text", text, "--data", data});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("holds no store but other things"));
  EXPECT_FALSE(fs::exists(folder.path + "/layout.json"));
  EXPECT_FALSE(fs::exists(folder.path + "/lock"));
}

TEST_F(kv, what_contradicts_the_store_is_refused) {
  ASSERT_EQ(put().code, 0);
  const auto again = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"kv", "put", "--dir", dir, "--text", text, "--data", data};
    args.insert(args.end(), more.begin(), more.end());
    return troupe(args);
  };
  struct row {
    std::string option, value, want;
  };
  for (const auto& row :
       {row{"--chunk", "128MiB", "chunk bytes = 1048576, not 134217728"},
        row{"--capacity", "1MiB", "capacity bytes = 68719476736, not 1048576"},
        row{"--targets", "5", "targets = 3, not 5"}, row{"--ec", "2+2", "parity shards = 1, not 2"},
        row{"--block-tokens", "8", "block size in tokens = 4, not 8"}, row{"--fingerprint", "foo", "ingerprint"},
        row{"--without", "9", "the store has targets 1, 2, 3"}}) {
    auto r = again({row.option, row.value});
    EXPECT_EQ(r.code, 2) << row.option << r.err;
    EXPECT_THAT(r.err, HasSubstr(row.want));
  }
  EXPECT_EQ(again({"--chunk", "1MiB", "--block-tokens", "4", "--ec", "2+1"}).code, 0);
  auto r = troupe({"kv", "ls", "--dir", dir, "--limit", "-1"});
  EXPECT_EQ(r.code, 2) << r.out;
  r = troupe({"kv", "stat", "--dir", dir, "--without", "9"});
  EXPECT_EQ(r.code, 2);
  r = troupe({"kv", "frob"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("there is no command 'frob'"));
  r = troupe({"kv", "stat", "--dir", dir});
  EXPECT_THAT(r.out, testing::ContainsRegex("capacity_bytes   [0-9.]+ .iB\n"));
  EXPECT_THAT(r.out, HasSubstr(" %\n"));
  // Too few targets to write to: a block that could not be stored.
  r = troupe({"kv", "put", "--dir", dir, "--text", "other letters...", "--data", data, "--without", "2"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err,
              HasSubstr("2 storage targets can be written, 3 are needed for 2+1; 0 of 4 blocks are in the store"));
  // A lost layout: one answer from all commands.
  fs::remove(dir + "/layout.json");
  for (const auto& args : {std::vector<std::string>{"get", "--text", text, "--out", copy},
                           {"stat"},
                           {"scrub"},
                           {"put", "--text", text, "--data", data}}) {
    std::vector<std::string> all{"kv"};
    all.insert(all.end(), args.begin(), args.end());
    all.insert(all.end(), {"--dir", dir});
    r = troupe(all);
    EXPECT_EQ(r.code, 1) << args[0];
    EXPECT_THAT(r.err, HasSubstr("no layout.json; restore it"));
  }
}

TEST_F(kv, a_cut_chunk_file_is_made_good_by_scrub) {
  ASSERT_EQ(put().code, 0);
  for (const uint64_t left : {0, 5'000}) {
    const std::string chunk = dir + "/target-0002/chunk-00000000";
    const auto size = fs::file_size(chunk);
    fs::resize_file(chunk, left);
    auto r = troupe({"kv", "scrub", "--dir", dir, "--json"});
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_EQ(json::parse(r.out)["rebuilt_shards"], 1);
    EXPECT_EQ(fs::file_size(chunk), size);
    r = troupe({"kv", "verify", "--dir", dir});
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_THAT(r.err, testing::Not(HasSubstr("repaired")));
  }
}

TEST_F(kv, chunks_that_no_target_takes_are_refused_before_anything_is_made) {
  const std::string config = folder.path + "/c.yaml", made = folder.path + "/new";
  write_file(config, "model: {path: " + std::string(TROUPE_TEST_DATA) + "}\nstorage: {path: " + made +
                         ", capacity: 2MiB, chunk: 1MiB}\n");
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"--dir", made, "--chunk", "2TiB"}, "--chunk 2TiB: 1 MiB to 16 GiB"},
      {{"--dir", made, "--chunk", "16388MiB", "--capacity", "64GiB"}, "--chunk 16388MiB: 1 MiB to 16 GiB"},
      {{"--dir", made, "--chunk", "8GiB", "--capacity", "4GiB"}, "less than one chunk"},
      {{"-c", config, "--chunk", "4MiB"}, "less than one chunk"}};
  for (const auto& [options, want] : rows) {
    std::vector<std::string> args{"kv", "put", "--block-tokens", "4", "--text", text, "--data", data};
    args.insert(args.end(), options.begin(), options.end());
    const auto r = troupe(args);
    EXPECT_EQ(r.code, 2) << want << "\n" << r.err;
    EXPECT_THAT(r.err, HasSubstr(want));
    EXPECT_FALSE(fs::exists(made)) << want;
  }
  write_file(config, "model: {path: " + std::string(TROUPE_TEST_DATA) + "}\nstorage: {path: " + made +
                         ", capacity: 64GiB, chunk: 17GiB}\n");
  const auto r = troupe({"kv", "stat", "-c", config});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("16GiB"));
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
      {{"put", "--dir", "/proc/kv", "--block-tokens", "4", "--text", text, "--data", data}, 1, "/proc/kv"},
      {{"bench", "--dir", folder.path + "/b", "--ec", "2+1", "--targets", "2"}, 2, "at least 3 are needed"},
      {{"stat", "-c", "/nonexistent.yaml"}, 2, "/nonexistent.yaml"},
      {{"get", "--dir", dir, "--fingerprint", "another", "--text", text, "--out", copy}, 2, "ingerprint"},
      {{"match", "--dir", dir, "--fingerprint", "another", "--text", text}, 2, "ingerprint"},
      {{"targets", "remove", "--dir", dir, "77"}, 2, "no target 77"},
      {{"targets", "drain", "--dir", dir, "77"}, 2, "no target 77"},
      {{"targets", "drain", "--cluster", "x", "1"}, 2, "only `ls` works on it"},
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
  write_file(folder.path + "/c.yaml", "storage: {path: kv, data: 3, parity: 2, chunk: 1MiB}\n");
  auto r = troupe({"kv", "put", "-c", folder.path + "/c.yaml", "--block-tokens", "4", "--text", text, "--data", data});
  ASSERT_EQ(r.code, 0) << r.err;
  r = troupe({"kv", "stat", "-c", folder.path + "/c.yaml", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["ec"], "3+2");
  EXPECT_EQ(json::parse(r.out)["targets"], 5);
  EXPECT_TRUE(fs::exists(dir + "/layout.json"));
  // The number of targets is that of a new store: it may change.
  ASSERT_EQ(troupe({"kv", "targets", "add", "-c", folder.path + "/c.yaml"}).code, 0);
  r = troupe({"kv", "stat", "-c", folder.path + "/c.yaml", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["targets"], 6);
}

TEST_F(kv, targets_come_and_go_and_people_are_told_in_words) {
  ASSERT_EQ(put().code, 0);
  auto r = troupe({"kv", "targets", "drain", "--dir", dir, "2"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("add others first"));
  ASSERT_EQ(troupe({"kv", "targets", "add", "--dir", dir, "--count", "2"}).code, 0);
  r = troupe({"kv", "targets", "remove", "--dir", dir, "2"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, HasSubstr("targets drain"));
  r = troupe({"kv", "targets", "drain", "--dir", dir, "2"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("1 shards moved, 0 left"));
  r = troupe({"kv", "targets", "remove", "--dir", dir, "2"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_FALSE(fs::exists(dir + "/target-0002"));
  r = troupe({"kv", "targets", "ls", "--dir", dir, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = json::parse(r.out);
  EXPECT_EQ(j["targets"].size(), 4u);
  EXPECT_EQ(j["targets"][1]["target"], 3);
  EXPECT_EQ(get().code, 0);
  EXPECT_TRUE(read_file(copy) == bytes);
  EXPECT_EQ(troupe({"kv", "verify", "--deep", "--dir", dir}).code, 0);
  r = troupe({"kv", "match", "--dir", dir, "--text", text});
  EXPECT_EQ(r.out, "4 of 4 blocks, 16 tokens\n");
  r = troupe({"kv", "put", "--dir", dir, "--text", text, "--data", data});
  EXPECT_THAT(r.out, HasSubstr("0 of 4 blocks stored (0 B), 4 were there\n"));
  r = troupe({"kv", "get", "--read-only", "--dir", dir, "--text", text, "--out", copy});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("4 of 4 blocks"));
}

TEST_F(kv, a_benchmark_that_does_not_fit_is_refused_before_anything_is_made) {
  for (const auto& [more, want] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--blocks", "65536", "--chain", "65536"}, "bytes of memory"},
           {{"--blocks", "16777216", "--chain", "1"}, "bytes on disk"}}) {
    std::vector<std::string> args{"kv", "bench", "--dir", dir, "--block-bytes", "64MiB"};
    args.insert(args.end(), more.begin(), more.end());
    const auto r = troupe(args);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_THAT(r.err, HasSubstr(want));
    EXPECT_FALSE(fs::exists(dir));
  }
}

// Starts `troupe`, sends it Ctrl-C once `made` is there, and gives its exit code; `said` gets its stderr.
int interrupt(std::vector<std::string> args, const std::string& made, std::string& said) {
  args.insert(args.begin(), "troupe");
  std::vector<char*> words;
  for (auto& a : args) words.push_back(a.data());
  words.push_back(nullptr);
  int err[2];
  if (pipe2(err, O_CLOEXEC) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(err[1], STDERR_FILENO);
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execv(troupe_path().c_str(), words.data());
    _exit(127);
  }
  close(err[1]);
  int status = 0;
  bool ended = false;
  while (!ended && !fs::exists(made)) ended = waitpid(pid, &status, WNOHANG) == pid;
  if (!ended) kill(pid, SIGINT);
  char text[4096];
  for (ssize_t n; (n = read(err[0], text, sizeof text)) > 0;) said.append(text, static_cast<size_t>(n));
  close(err[0]);
  if (!ended && waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A benchmark that is told to stop while it writes: exit code 130, and a store in order.
TEST_F(kv, an_interrupt_leaves_a_clean_store) {
  const std::string b = folder.path + "/b";
  std::string said;
  EXPECT_EQ(interrupt({"kv", "bench", "--dir", b, "--chunk", "1MiB", "--blocks", "100000", "--chain", "8",
                       "--block-bytes", "2000", "--rounds", "100"},
                      b + "/target-0001/chunk-00000000", said),
            130)
      << said;
  auto r = troupe({"kv", "verify", "--dir", b, "--json"});
  EXPECT_EQ(r.code, 0) << r.out;
}

// The same with a put: what it says is stored is there, and the next put goes on.
TEST_F(kv, an_interrupted_put_goes_on_where_it_was) {
  constexpr size_t blocks = 40'000;
  std::string ids, many;
  for (size_t i = 0; i < blocks * 4; ++i) ids += std::to_string(i % 1'000) + " ";
  for (size_t i = 0; i < blocks * 20; ++i) many += static_cast<char>(i * 7 + i / 251);
  write_file(folder.path + "/ids", ids);
  write_file(data, many);
  const std::vector<std::string> chain{"--dir", dir, "--tokens", folder.path + "/ids"};
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "kv");
    args.insert(args.end(), chain.begin(), chain.end());
    return args;
  };
  std::string said;
  ASSERT_EQ(interrupt(with({"put", "--chunk", "1MiB", "--block-tokens", "4", "--data", data}),
                      dir + "/target-0001/chunk-00000000", said),
            130)
      << said;
  EXPECT_THAT(said, HasSubstr("stopped; ")) << said;
  auto r = troupe(with({"match", "--json"}));
  const auto there = json::parse(r.out)["blocks"].get<size_t>();
  EXPECT_LT(there, blocks);
  EXPECT_THAT(said, HasSubstr("stopped; " + std::to_string(there) + " of"));
  EXPECT_EQ(troupe({"kv", "verify", "--dir", dir}).code, 0);
  r = troupe(with({"put", "--data", data, "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["stored"], blocks - there);
  r = troupe(with({"get", "--out", copy}));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(read_file(copy) == many);
}

}  // namespace
}  // namespace troupe::tests
