// The program's surface: exit codes, what goes to stdout and what to stderr, help, and mistakes that name what is
// wrong.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/cli/run_program.hpp"
#include "tests/support/damaged_model.hpp"

namespace troupe::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string tiny = std::string(TROUPE_TEST_DATA) + "/tiny-v41";
const std::string local = std::string(TROUPE_SOURCE_DIR) + "/configs/local.yaml";

TEST(cli, mistakes_on_the_command_line_are_exit_2_and_say_what_is_wrong) {
  struct row {
    std::vector<std::string> args;
    std::string want;  // in stderr
  };
  const row rows[] = {
      {{}, "subcommand is required"},
      {{"dance"}, "there is no command 'dance'"},
      {{"statsu"}, "did you mean status?"},
      {{"up", "--nonsense"}, "--nonsense"},
      {{"verify"}, "--model is required"},
      {{"verify", "--model", "/nonexistent"}, "/nonexistent"},
      {{"verify", "--model", tiny, "--isa", "mmx"}, "--isa mmx"},
      {{"generate", "--model", "/nonexistent", "--prompt", "x"}, "/nonexistent"},
      {{"generate", "--model", tiny, "--prompt", "x", "--temperature", "9"}, "--temperature"},
      {{"generate", "--model", tiny, "--prompts", "/nonexistent"}, "/nonexistent: cannot be read"},
      {{"config", "--check", "-c", "/nonexistent.yaml"}, "/nonexistent.yaml: cannot be read"},
      {{"generate", "--model", tiny}, "nothing to do: give --prompt"},
      {{"up", "-c", local, "--set", "cluster.name=../x"}, "cluster.name: is not a name"},
      {{"up", "-c", local, "--set", "model.path=/nonexistent"}, "model.path: there is no folder /nonexistent"},
      {{"up", "-c", local, "--set", "front.api_keys=/nonexistent"}, "front.api_keys: /nonexistent"},
      {{"config", "--check", "-c", local, "--set", "front.api_keys=/nonexistent"}, "front.api_keys: /nonexistent"},
      {{"config", "--check", "-c", local, "--set", "decode.pages=2"}, "cannot hold one sequence of decode.max_context"},
      {{"config", "--print", "--check"}, "excludes"},
      {{"config", "frnt"}, "did you mean front?"},
      {{"node", "-c", local}, "--join HOST:PORT is needed"},
      {{"node", "-c", local, "--join", "10.1.1.1:5"}, "not a loopback address"},
      {{"node", "-c", local, "--join", "x"}, "not an address"},
      {{"node", "-c", local, "--seat", "director", "--join", "127.0.0.1:1"}, "leave --join out"},
      {{"up", "-c", local, "--set", "front.lissen=1"}, "did you mean listen?"},
      {{"up", "-c", local, "--set", "front.listen=0.0.0.0:1"}, "front.api_keys"},
      {{"doctor", "-c", "/nonexistent.yaml"}, "cannot be read"},
      {{"chat", "--url", "nonsense", "--once", "x"}, "not an address"},
  };
  for (const row& r : rows) {
    auto p = troupe(r.args);
    std::string line;
    for (const auto& a : r.args) line += a + " ";
    EXPECT_EQ(p.code, 2) << line << p.err;
    EXPECT_THAT(p.err, HasSubstr(r.want)) << line;
    EXPECT_THAT(p.out, IsEmpty()) << line;
  }
}

TEST(cli, every_command_explains_itself_with_an_example) {
  for (const char* command :
       {"up", "node", "chat", "generate", "verify", "eval", "doctor", "status", "config", "bench serve"}) {
    std::istringstream words(command);
    std::vector<std::string> args{std::istream_iterator<std::string>(words), {}};
    args.push_back("--help");
    auto p = troupe(args);
    EXPECT_EQ(p.code, 0) << command;
    EXPECT_THAT(p.out, HasSubstr("Example")) << command;
    EXPECT_THAT(p.out, HasSubstr(std::string("troupe ") + command)) << command;
    EXPECT_THAT(p.err, IsEmpty()) << command;
  }
  EXPECT_THAT(troupe({"--help"}).out, HasSubstr("Exit codes"));
}

TEST(cli, commands_without_a_cluster_are_exit_3) {
  temporary_folder f;
  auto p = troupe({"status", "--run-dir", f.path});
  EXPECT_EQ(p.code, 3);
  EXPECT_THAT(p.err, HasSubstr("no cluster runs in " + f.path));
  EXPECT_EQ(troupe({"chat", "--run-dir", f.path, "--once", "x"}).code, 3);
  EXPECT_EQ(troupe({"status", "--director", "127.0.0.1:1"}).code, 3);
  p = troupe({"chat", "--url", "http://127.0.0.1:1", "--once", "x"});
  EXPECT_EQ(p.code, 3);
  EXPECT_THAT(p.err, HasSubstr("nobody listens at 127.0.0.1:1"));
}

TEST(cli, version_and_doctor_as_json) {
  EXPECT_EQ(troupe({"--version"}).out, "troupe 0.1.0\n");
  auto v = json::parse(troupe({"version", "--json"}).out);
  EXPECT_EQ(v["version"], "0.1.0");
  EXPECT_EQ(v["caf"], "0.17.6");
  auto p = troupe({"doctor", "--json", "--model", tiny});
  EXPECT_EQ(p.code, 0) << p.out << p.err;
  std::map<std::string, json> by_name;
  for (const auto& f : json::parse(p.out)) by_name[f["name"]] = f;
  for (const char* name :
       {"cpu", "cores", "memory", "shared memory", "open files", "ucx", "data plane, tcp", "cuda", "nccl", "model"}) {
    EXPECT_TRUE(by_name.contains(name)) << name;
  }
  EXPECT_EQ(by_name["model"]["verdict"], "good");
  EXPECT_THAT(by_name["model"]["value"], HasSubstr("8 layers"));
}

TEST(cli, a_damaged_checkpoint_is_named_by_its_tensor) {
  kernels::testing_support::damaged_model m;
  m.damage("norm.weight", 0, 2);
  auto p = troupe({"doctor", "--model", m.path()});
  EXPECT_EQ(p.code, 1);
  EXPECT_THAT(p.out, HasSubstr("norm.weight (1 from value 0"));
  p = troupe({"generate", "--model", m.path(), "--prompt", "x", "--max-tokens", "2"});
  EXPECT_NE(p.code, 0);
  EXPECT_THAT(p.err, HasSubstr("norm.weight"));
}

TEST(cli, a_join_address_that_is_no_director_is_explained) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof where;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&where), size), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&where), &size), 0);
  std::string address = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  // As an HTTP server answers what it does not understand.
  std::thread server([fd] {
    const std::string answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for (int c; (c = accept(fd, nullptr, nullptr)) >= 0; close(c)) {
      char buffer[256];
      if (read(c, buffer, sizeof buffer) > 0) (void)!write(c, answer.data(), answer.size());
    }
  });
  auto join = [&] {
    return troupe({"node", "-c", local, "--seat", "decode-0/0", "--join", address, "--set", "cluster.join_timeout=2s"});
  };
  auto http = join();
  shutdown(fd, SHUT_RDWR);
  close(fd);
  server.join();
  EXPECT_EQ(http.code, 3) << http.err;
  EXPECT_THAT(http.err, HasSubstr("is no node of Troupe, an HTTP port perhaps"));
  EXPECT_THAT(http.err, HasSubstr("ACTORS AT"));
  auto nobody = join();
  EXPECT_EQ(nobody.code, 3) << nobody.err;
  EXPECT_THAT(nobody.err, HasSubstr("nobody listens there"));
  for (const auto& p : {http, nobody}) EXPECT_THAT(p.err, Not(HasSubstr("system_error"))) << "CAF's own words";
}

TEST(cli, doctor_names_a_bad_model_and_a_taken_port) {
  temporary_folder f;
  auto p = troupe({"doctor", "--model", f.path});
  EXPECT_EQ(p.code, 1);
  EXPECT_THAT(p.out, HasSubstr("bad"));
  EXPECT_THAT(p.out, HasSubstr("config.json"));

  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof where;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&where), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&where), &size), 0);
  std::string address = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  p = troupe({"doctor", "-c", local, "--set", "front.listen=" + address});
  auto director = troupe({"node", "-c", local, "--seat", "director", "--set", "director.listen=" + address});
  close(fd);
  EXPECT_EQ(director.code, 3) << director.err;
  EXPECT_THAT(director.err, HasSubstr("cannot listen on " + address));
  EXPECT_EQ(p.code, 1);
  EXPECT_THAT(p.out, HasSubstr("port " + address));
  EXPECT_THAT(p.out, HasSubstr("Address already in use"));
}

TEST(cli, config_prints_what_it_would_read) {
  auto p = troupe({"config", "--print", "-c", local, "--set", "decode.threads=3"});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_THAT(p.out, HasSubstr("threads: 3"));
  temporary_folder f;
  write_file(f.path + "/again.yaml", p.out);
  auto again = troupe({"config", "--print", "-c", f.path + "/again.yaml"});
  EXPECT_EQ(again.out, p.out);
}

TEST(cli, config_check_names_every_mistake) {
  temporary_folder f;
  write_file(f.path + "/c.yaml", "model:\n  path: x\nprefill:\n  rank: 1\n  pages: lots\n");
  auto p = troupe({"config", "--check", "-c", f.path + "/c.yaml"});
  EXPECT_EQ(p.code, 2);
  EXPECT_THAT(p.err, HasSubstr(f.path + "/c.yaml:4:3: prefill.rank: unknown key; did you mean ranks?"));
  EXPECT_THAT(p.err, HasSubstr(f.path + "/c.yaml:5:10: prefill.pages: 'lots' is not a whole number"));
  EXPECT_THAT(p.err, HasSubstr("has 2 mistakes"));
}

TEST(cli, verify_prints_a_line_per_golden_tensor) {
  auto p = troupe({"verify", "--model", tiny, "--golden", tiny});
  EXPECT_EQ(p.code, 0) << p.out << p.err;
  for (const char* name : {"prompt.97.logits", "prompt.300.logits", "greedy.97.ids", "dspark.40.draft_ids",
                           "encoder_replay.logits", "decoder_replay.97.first_full", "engram_gate", "index_sel"}) {
    EXPECT_THAT(p.out, HasSubstr(name));
  }
  EXPECT_THAT(p.out, Not(HasSubstr("MISS")));
}

TEST(cli, generate_gives_the_same_tokens_with_and_without_drafts_and_in_company) {
  std::vector<std::string> common{"generate", "--model",       tiny,  "--json",      "--max-tokens", "12", "--seed",
                                  "11",       "--temperature", "0.8", "--ignore-eos"};
  auto with = [&](std::vector<std::string> more) {
    auto args = common;
    args.insert(args.end(), more.begin(), more.end());
    auto p = troupe(args, "first prompt\nand a second one\n");
    EXPECT_EQ(p.code, 0) << p.err;
    std::vector<json> out;
    std::istringstream lines(p.out);
    for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
    return out;
  };
  auto both = with({"--prompts", "-"});
  auto alone = with({"--prompt", "first prompt"});
  auto plain = with({"--prompts", "-", "--no-speculation"});
  ASSERT_EQ(both.size(), 2u);
  ASSERT_EQ(plain.size(), 2u);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(both[0]["tokens"].size(), 12u);
  EXPECT_EQ(both[0]["tokens"], alone[0]["tokens"]);
  EXPECT_EQ(both[0]["tokens"], plain[0]["tokens"]);
  EXPECT_EQ(both[1]["tokens"], plain[1]["tokens"]);
  EXPECT_EQ(plain[0]["drafted"], 0);
  EXPECT_GT(both[0]["drafted"], 0);
}

// Whatever the working directory is: the program finds the tree that it belongs to.
TEST(cli, generate_takes_the_model_of_the_local_configuration_by_default) {
  auto p = troupe({"generate", "--prompt", "Once upon a time", "--max-tokens", "3", "--ignore-eos", "--json"});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_EQ(json::parse(p.out)["tokens"].size(), 3u);
}

TEST(cli, generate_takes_ids_and_refuses_ids_outside_the_vocabulary) {
  auto p = troupe({"generate", "--model", tiny, "--ids", "1,2,3", "--max-tokens", "3"});
  EXPECT_EQ(p.code, 0) << p.err;
  EXPECT_EQ(json::parse(p.out).size(), 3u);
  p = troupe({"generate", "--model", tiny, "--ids", "1,512", "--max-tokens", "3"});
  EXPECT_EQ(p.code, 2);
  EXPECT_EQ(p.out, "");
  EXPECT_THAT(p.err, HasSubstr("--ids: 512 is outside the vocabulary of 512"));
  for (const auto& [option, value] : {std::pair{"--threads", "0"}, {"--max-tokens", "0"}, {"--max-tokens", "-3"}}) {
    p = troupe({"generate", "--model", tiny, "--prompt", "x", option, value});
    EXPECT_EQ(p.code, 2) << option;
    EXPECT_THAT(p.err, HasSubstr("not in range 1 to")) << option;
  }
  p = troupe({"chat", "--once", ""});
  EXPECT_EQ(p.code, 2);
  EXPECT_THAT(p.err, HasSubstr("there is nothing to send"));
}

TEST(cli, a_model_made_for_less_context_than_configured_serves_its_own) {
  temporary_folder f;
  for (const auto& e : std::filesystem::directory_iterator(tiny)) {
    if (e.path().filename() != "config.json")
      std::filesystem::create_symlink(e.path(), std::filesystem::path(f.path) / e.path().filename());
  }
  std::ifstream in(tiny + "/config.json");
  auto config = json::parse(in);
  auto& text = config.contains("text_config") ? config["text_config"] : config;
  text["max_position_embeddings"] = 64;
  std::ofstream(f.path + "/config.json") << config;
  auto p = troupe({"generate", "--model", f.path, "--ids", "1,2,3", "--max-tokens", "3"});
  EXPECT_EQ(p.code, 0) << p.err;
  EXPECT_EQ(json::parse(p.out).size(), 3u);
}

}  // namespace
}  // namespace troupe::tests
