// What the loader accepts, what it refuses, and the words it refuses with.
#include "runtime/config/config.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

namespace troupe::config {
namespace {

using namespace std::chrono_literals;

const std::string model = "model:\n  path: m\n";

loaded from(const std::string& text, const std::vector<std::string>& set = {}) {
  return read_text(text, "c.yaml", "/base", set);
}

TEST(config, defaults_come_from_the_tables) {
  loaded l = from(model);
  ASSERT_TRUE(l.problems.empty()) << l.problems[0].text();
  EXPECT_EQ(l.values.front.listen, (address{"127.0.0.1", 8000}));
  EXPECT_EQ(l.values.transport.step_deadline, 5s);
  EXPECT_EQ(l.values.front.max_body, 8u << 20);
  EXPECT_EQ(l.values.engine.isa, "auto");
  EXPECT_TRUE(l.values.engine.speculation);
  EXPECT_EQ(l.values.model.path, "/base/m");
}

TEST(config, values_are_read_with_their_units) {
  loaded l = from(model +
                  "front:\n  max_body: 64KiB\n  listen: \"[::1]:0\"\ntransport:\n  step_deadline: 200ms\nengine: "
                  "{speculation: false, isa: avx2}\ndecode:\n  ranks: 4\n  ep: 2\n");
  ASSERT_TRUE(l.problems.empty()) << l.problems[0].text();
  EXPECT_EQ(l.values.front.max_body, 65536u);
  EXPECT_EQ(l.values.front.listen, (address{"::1", 0}));
  EXPECT_EQ(l.values.transport.step_deadline, 200ms);
  EXPECT_FALSE(l.values.engine.speculation);
  EXPECT_EQ(l.values.decode.ranks, 4u);
}

TEST(config, mistakes_name_file_line_column_and_key) {
  struct row {
    const char* text;  // after the model section (lines 1 and 2)
    const char* want;  // regular expression for the whole message
  };
  const row rows[] = {
      {"prefill:\n  rank: 2\n", R"(c\.yaml:4:3: prefill\.rank: unknown key; did you mean ranks\?)"},
      {"prefill:\n  colour: 2\n", R"(c\.yaml:4:3: prefill\.colour: unknown key; section prefill has: ranks, ep, .*)"},
      {"prefil:\n  ranks: 2\n", R"(c\.yaml:3:1: prefil: unknown section; did you mean prefill\?)"},
      {"warehouse:\n  a: 2\n", R"(c\.yaml:3:1: warehouse: unknown section; there are: cluster, .*)"},
      {"prefill:\n  ranks: two\n", R"(c\.yaml:4:10: prefill\.ranks: 'two' is not a whole number)"},
      {"decode:\n  ranks: 0\n", R"(c\.yaml:4:10: decode\.ranks: 0 is out of range; it must be 1 to 64)"},
      {"prefill:\n  ranks: 1.5\n", R"(c\.yaml:4:10: prefill\.ranks: '1\.5' is not a whole number)"},
      {"prefill:\n  ranks: -1\n", R"(c\.yaml:4:10: .*-1 is negative)"},
      {"prefill:\n  ranks: 99999999999999999999\n", R"(c\.yaml:4:10: .*too large)"},
      {"prefill:\n  ranks: [1]\n",
       R"(c\.yaml:4:10: prefill\.ranks: is a list; expected number of processes, e\.g\. 1)"},
      {"prefill:\n  ranks:\n", R"(c\.yaml:4:3: prefill\.ranks: has no value; .*)"},
      {"prefill: 3\n", R"(c\.yaml:3:10: prefill: is a value; expected keys.*)"},
      {"prefill:\n  ranks: 1\n  ranks: 2\n", R"(c\.yaml:5:3: prefill\.ranks: the key appears twice)"},
      {"model:\n  path: b\n", R"(c\.yaml:3:1: model: the section appears twice)"},
      {"front:\n  max_body: 64\n", R"(c\.yaml:4:13: front\.max_body: '64' has no unit; a size needs one of .*MiB.*)"},
      {"front:\n  max_body: 64 megs\n", R"(c\.yaml:4:13: front\.max_body: .*unknown unit 'megs'.*)"},
      {"front:\n  max_body: 1B\n", R"(c\.yaml:4:13: front\.max_body: 1B is out of range; it must be 1KiB to 1GiB)"},
      {"transport:\n  step_deadline: 5\n", R"(c\.yaml:4:18: transport\.step_deadline: '5' has no unit; .*)"},
      {"transport:\n  step_deadline: fast\n", R"(c\.yaml:4:18: .*is not a duration: .*)"},
      {"transport:\n  step_deadline: 1ns\n", R"(c\.yaml:4:18: .*out of range.*)"},
      {"transport:\n  shared_memory: yes\n", R"(c\.yaml:4:18: .*'yes' is not a boolean; write true or false)"},
      {"engine:\n  isa: avx51\n", R"(c\.yaml:4:8: engine\.isa: 'avx51' is not one of .*; did you mean avx512\?)"},
      {"front:\n  listen: 8000\n", R"(c\.yaml:4:11: front\.listen: '8000' is not an address: write HOST:PORT.*)"},
      {"front:\n  listen: example.org:80\n", R"(c\.yaml:4:11: .*neither an IP address nor localhost)"},
      {"front:\n  listen: 127.0.0.1:70000\n", R"(c\.yaml:4:11: .*port must be a number from 0 to 65535)"},
      {"front:\n  listen: 0.0.0.0:8000\n",
       R"(c\.yaml: front\.listen: .*set front\.api_keys, or listen on 127\.0\.0\.1)"},
      {"director:\n  listen: 10.0.0.1:1\n", R"(c\.yaml: director\.listen: .*not a loopback address.*)"},
      {"decode:\n  ranks: 3\n  ep: 2\n", R"(c\.yaml: decode\.ep: 2 does not divide decode\.ranks, which is 3)"},
      {"cluster:\n  heartbeat: 5s\n  lost_after: 20s\n",
       R"(c\.yaml: cluster\.connection_timeout: must be at least three times cluster\.heartbeat)"},
      {"cluster:\n  name: \"a\\nb\"\n", R"(c\.yaml:4:9: cluster\.name: is not a name: 1 to 64 letters, .*)"},
      {"prefill: {ranks: 1\n", R"(c\.yaml:\d+:\d+: not valid YAML: .*)"},
      {"- 1\n", R"(c\.yaml:\d+:\d+: not valid YAML: .*)"},
  };
  for (const row& r : rows) {
    loaded l = from(model + r.text);
    ASSERT_EQ(l.problems.size(), 1u) << r.text;
    EXPECT_TRUE(std::regex_match(l.problems[0].text(), std::regex(r.want)))
        << r.text << "gave: " << l.problems[0].text() << "\nwant: " << r.want;
  }
  EXPECT_EQ(from("").problems.at(0).text(), "c.yaml: model.path: is required: the folder of the checkpoint");
  EXPECT_EQ(from("[1, 2]").problems.at(0).text(),
            "c.yaml:1:1: the file holds a list; expected sections, e.g. `model:`");
}

TEST(config, every_mistake_is_reported_at_once) {
  loaded l = from("model:\n  pth: m\nfront:\n  max_body: 3\n  listen: x\n");
  EXPECT_EQ(l.problems.size(), 3u);
}

TEST(config, overrides_win_and_are_checked) {
  loaded l = from(model + "front:\n  listen: 127.0.0.1:1\n", {"front.listen=127.0.0.1:2", "decode.ranks=2"});
  ASSERT_TRUE(l.problems.empty());
  EXPECT_EQ(l.values.front.listen.port, 2);
  EXPECT_EQ(l.values.decode.ranks, 2u);
  EXPECT_EQ(from(model, {"front.lisen=127.0.0.1:2"}).problems.at(0).text(),
            "--set: front.lisen: unknown key; did you mean listen?");
  EXPECT_EQ(from(model, {"nonsense"}).problems.at(0).text().find("--set: 'nonsense' is not an override"), 0u);
  EXPECT_EQ(from(model, {"decode.ranks=x"}).problems.at(0).text(), "--set: decode.ranks: 'x' is not a whole number");
}

TEST(config, printing_and_reading_again_changes_nothing) {
  loaded l = from("model:\n  path: m\n  name: 'a \"b\" \\ c'\nfront:\n  max_body: 64KiB\n");
  ASSERT_TRUE(l.problems.empty()) << l.problems[0].text();
  std::string once = print(l.values);
  loaded again = from(once);
  ASSERT_TRUE(again.problems.empty()) << again.problems[0].text();
  EXPECT_EQ(print(again.values), once);
  EXPECT_EQ(again.values.model.name, "a \"b\" \\ c");
}

TEST(config, a_cluster_name_cannot_leave_the_run_folder) {
  for (const char* good : {"a", "prod-2", "my_cluster.v1", "0"})
    EXPECT_TRUE(from(model, {std::string("cluster.name=") + good}).problems.empty()) << good;
  for (const std::string& bad : {std::string(), std::string("."), std::string(".."), std::string("../x"),
                                 std::string("a/b"), std::string("a b"), std::string(65, 'x')}) {
    loaded l = from(model, {"cluster.name=" + bad});
    ASSERT_EQ(l.problems.size(), 1u) << bad;
    EXPECT_NE(l.problems[0].text().find("cluster.name: is not a name"), std::string::npos) << l.problems[0].text();
  }
}

TEST(config, a_missing_file_is_an_error_that_names_it) {
  auto r = load("/nonexistent/c.yaml");
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::invalid_argument);
  EXPECT_NE(r.error().message.find("/nonexistent/c.yaml: cannot be read"), std::string::npos);
  EXPECT_FALSE(load("/"));
}

TEST(config, explain_finds_keys_and_suggests) {
  EXPECT_NE(explain()->find("transport.step_deadline\n"), std::string::npos);
  EXPECT_EQ(explain("prefill")->find("decode.ranks"), std::string::npos);
  EXPECT_EQ(explain("front.max_body")->rfind("front.max_body\n", 0), 0u);
  EXPECT_NE(explain("front.max_bodi").error().message.find("did you mean front.max_body?"), std::string::npos);
}

TEST(config, shipped_configurations_load) {
  size_t seen = 0;
  for (const auto& e : std::filesystem::directory_iterator(std::string(TROUPE_SOURCE_DIR) + "/configs")) {
    if (e.path().extension() != ".yaml") continue;
    auto r = load(e.path().string());
    EXPECT_TRUE(r) << r.error().message;
    EXPECT_TRUE(!r || std::filesystem::exists(r->model.path + "/config.json")) << e.path();
    ++seen;
  }
  EXPECT_GE(seen, 1u);
}

TEST(config, docs_config_md_is_up_to_date) {
  std::ifstream in(std::string(TROUPE_SOURCE_DIR) + "/docs/config.md", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(text, markdown()) << "run: build/release/troupe config --markdown > docs/config.md";
}

TEST(units, round_trips) {
  for (uint64_t b : {0ull, 1ull, 1000ull, 1024ull, 1536ull, 1ull << 40, 116700000ull})
    EXPECT_EQ(*parse_bytes(format_bytes(b)), b) << b;
  for (auto d : std::initializer_list<std::chrono::nanoseconds>{0ns, 1ns, 1500us, 90s, 2h})
    EXPECT_EQ(*parse_duration(format_duration(d)), d);
  EXPECT_EQ(format_bytes(64ull << 20), "64MiB");
  EXPECT_EQ(format_duration(200ms), "200ms");
  EXPECT_FALSE(parse_bytes("18446744073709551615GiB"));
  EXPECT_FALSE(parse_bytes(""));
  EXPECT_EQ(*parse_bytes("64 MiB"), 64u << 20);
  EXPECT_EQ(parse_address("[::1]:80")->text(), "[::1]:80");
  EXPECT_TRUE(parse_address("127.1.2.3:0")->loopback());
  EXPECT_FALSE(parse_address("0.0.0.0:0")->loopback());
  EXPECT_EQ(nearest("rank", {"ranks", "pages"}), "ranks");
  EXPECT_EQ(nearest("zzzzzz", {"ranks", "pages"}), "");
}

}  // namespace
}  // namespace troupe::config
