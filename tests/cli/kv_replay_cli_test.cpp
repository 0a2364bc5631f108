// troupe kv replay from the shell: JSON to stdout, mistakes that say what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run_program.hpp"

namespace troupe::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class kv_replay : public ::testing::Test {
 protected:
  kv_replay() {
    write_file(trace_,
               "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
               "{\"timestamp\": 60000, \"input_length\": 1536, \"output_length\": 5, \"hash_ids\": [0, 1, 3]}\n");
  }
  std::vector<std::string> with(std::vector<std::string> more) const {
    std::vector<std::string> all{"kv", "replay", "--trace", trace_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  temporary_folder folder_;
  const std::string trace_ = folder_.path + "/trace.jsonl";
};

TEST_F(kv_replay, says_what_a_trace_would_have_found) {
  auto p = troupe(with({}));
  ASSERT_EQ(p.code, 0) << p.err;
  auto j = json::parse(p.out);
  EXPECT_EQ(j["unique_blocks"], 4);
  EXPECT_NEAR(j["block_hit_rate"].get<double>(), 2.0 / 6, 1e-5);
  EXPECT_NEAR(j["token_hit_rate"].get<double>(), 1024.0 / 2836, 1e-5);
  j = json::parse(troupe(with({"--ttl", "59"})).out);
  EXPECT_EQ(j["hit_blocks"], 0);
  j = json::parse(troupe(with({"--lru", "2"})).out);
  EXPECT_EQ(j["hit_blocks"], 0);
  p = troupe(with({"--block-tokens", "128"}));
  ASSERT_EQ(p.code, 0) << p.err;
  j = json::parse(p.out);
  EXPECT_EQ(j["blocks"], 10 + 12);
  EXPECT_EQ(j["hit_blocks"], 8);
  EXPECT_EQ(j["per_block_hit_rate"], j["block_hit_rate"]);
  EXPECT_EQ(j["extents"], 2);
  for (const auto& limit : {std::vector<std::string>{"--ttl", "59"}, {"--lru", "4"}}) {
    auto args = with({"--block-tokens", "128"});
    args.insert(args.end(), limit.begin(), limit.end());
    j = json::parse(troupe(args).out);
    EXPECT_EQ(j["hit_blocks"], 0);
    EXPECT_EQ(j["per_block_hit_rate"], 0) << limit[0];
  }
}

TEST_F(kv_replay, a_directory_with_anything_in_it_is_refused_and_left_alone) {
  const std::string dir = folder_.path + "/kept";
  fs::create_directory(dir);
  auto p = troupe(with({"--block-tokens", "128", "--dir", dir}));
  EXPECT_EQ(p.code, 0) << p.err;
  p = troupe(with({"--block-tokens", "128", "--dir", dir}));
  EXPECT_EQ(p.code, 2);
  EXPECT_THAT(p.err, HasSubstr("is not empty"));
  const std::string other = folder_.path + "/other";
  fs::create_directory(other);
  write_file(other + "/layout.json", "{}");
  p = troupe(with({"--block-tokens", "128", "--dir", other}));
  EXPECT_EQ(p.code, 2);
  EXPECT_THAT(p.err, HasSubstr(other + ": is not empty"));
  EXPECT_EQ(std::distance(fs::directory_iterator(other), fs::directory_iterator()), 1);
}

// Ctrl-C and SIGTERM in the middle: exit code 130, and nothing is left in the temporary directory.
TEST_F(kv_replay, an_interrupt_takes_its_temporary_directory_along) {
  const std::string tmp = folder_.path + "/tmp";
  std::string lines;
  for (int i = 0; i < 100'000; ++i)
    lines += "{\"timestamp\": " + std::to_string(i) +
             ", \"input_length\": 2048, \"output_length\": 5, \"hash_ids\": [" + std::to_string(4 * i) + ", " +
             std::to_string(4 * i + 1) + ", " + std::to_string(4 * i + 2) + ", " + std::to_string(4 * i + 3) + "]}\n";
  write_file(trace_, lines);
  for (const int number : {SIGINT, SIGTERM}) {
    fs::create_directory(tmp);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      setenv("TMPDIR", tmp.c_str(), 1);
      execl(troupe_path().c_str(), "troupe", "kv", "replay", "--trace", trace_.c_str(), "--block-tokens", "32",
            nullptr);
      _exit(127);
    }
    int status = 0;
    pid_t ended = 0;
    while (fs::is_empty(tmp) && (ended = waitpid(pid, &status, WNOHANG)) == 0) std::this_thread::yield();
    ASSERT_EQ(ended, 0) << "it was over before it could be interrupted";
    kill(pid, number);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 130);
    EXPECT_TRUE(fs::is_empty(tmp));
    fs::remove_all(tmp);
  }
}

TEST_F(kv_replay, mistakes_are_named) {
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{"kv"}, "subcommand is required"},
      {{"kv", "replay"}, "--trace is required"},
      {{"kv", "replay", "--trace", "/nonexistent"}, "/nonexistent: cannot be read"},
      {with({"--ttl", "5", "--lru", "5"}), "choose one"},
      {with({"--ttl", "-1"}), "--ttl"},
      {with({"--block-tokens", "100"}), "--block-tokens"},
      {with({"--block-tokens", "128", "--ec", "ten"}), "--ec ten"},
      {with({"--ec", "0+0"}), "a code of 0+0"},
  };
  for (const auto& [args, want] : rows) {
    const auto p = troupe(args);
    EXPECT_EQ(p.code, 2) << want;
    EXPECT_THAT(p.err, HasSubstr(want));
  }
}

}  // namespace
}  // namespace troupe::tests
