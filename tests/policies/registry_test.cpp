// The registry: names, schemas, and that input which makes no sense is an error that names its place.
#include "policies/registry.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace troupe::policies {
namespace {

using nlohmann::json;

TEST(registry, is_sorted_and_every_entry_has_help_and_schemas) {
  std::string_view last;
  for (const auto& e : registry()) {
    EXPECT_LT(last, e.name);
    last = e.name;
    EXPECT_FALSE(e.help.empty()) << e.name;
    EXPECT_EQ(e.help.find('\n'), std::string_view::npos) << e.name;
    for (const json& s : {e.input(), e.output()}) {
      EXPECT_EQ(s.at("type"), "object") << e.name;
      EXPECT_FALSE(s.at("properties").empty()) << e.name;
      for (const auto& [key, p] : s.at("properties").items())
        EXPECT_FALSE(p.at("description").get<std::string>().empty()) << e.name << "." << key;
    }
    EXPECT_TRUE(e.output().at("properties").contains("reason")) << e.name;
    EXPECT_EQ(find_policy(e.name), &e);
  }
  EXPECT_EQ(find_policy("nonsense"), nullptr);
}

// No entry takes what is not an object, lacks a key, has an unknown key or a wrong type; none dies of it.
TEST(registry, nonsense_is_an_error_everywhere) {
  for (const auto& e : registry()) {
    for (const json& j : {json(), json(1), json("x"), json::array(), json{{"no_such_key", 1}}}) {
      auto r = e.run(j);
      ASSERT_FALSE(r) << e.name << " took " << j;
      EXPECT_EQ(r.error().code, errc::invalid_argument) << e.name;
      EXPECT_FALSE(r.error().message.empty()) << e.name;
    }
    const json properties = e.input().at("properties");
    for (const auto& [key, p] : properties.items()) {
      auto r = e.run(json{{key, json{{"not", "this"}}}});
      EXPECT_FALSE(r) << e.name << "." << key;
    }
  }
}

struct row {
  const char *name, *input, *message;
};

TEST(registry, errors_name_the_place) {
  const row table[] = {
      {"pages", R"({"free":1,"running":[{"held":1,"needed":2},{"held":1}]})", "running[1].needed: missing"},
      {"pages", R"({"free":-1,"running":[]})", "free: -1 is outside 0 to 4294967295"},
      {"pages", R"({"free":1.5,"running":[]})", "free: expected a whole number, got number"},
      {"pages", R"({"free":1,"running":[],"fre":2})", "fre: unknown key"},
      {"round_robin", R"({"usable":[true,1]})", "usable[1]: expected true or false, got number"},
      {"restart", R"({"prompt_length":9,"known":3,"window":16,"decoder_layers":2})",
       "known: 3 is less than prompt_length 9"},
      {"restart", R"({"prompt_length":9,"known":9,"window":0,"decoder_layers":2})", "window: 0"},
  };
  for (const auto& r : table) {
    auto out = find_policy(r.name)->run(json::parse(r.input));
    ASSERT_FALSE(out) << r.name << " " << r.input;
    EXPECT_EQ(out.error().message.find(r.message), 0u) << out.error().message;
  }
}

// Every entry of the issue is there under its name.
TEST(registry, has_all_decisions) {
  for (const char* name : {"prefill_place", "decode_place", "ttl", "evict", "shard_place", "repair_plan", "role_plan",
                           "admission", "phi", "resume_plan", "breaker", "economics", "chunk", "hit_length", "eplb"})
    EXPECT_NE(find_policy(name), nullptr) << name;
}

TEST(registry, enums_and_optionals_have_names) {
  auto out =
      find_policy("resume_plan")
          ->run(json::parse(
              R"({"fault":"rank_lost","prompt_length":300,"known":309,"window":128,"decoder_layers":20,"left_ms":1000})"));
  ASSERT_TRUE(out);
  EXPECT_EQ(out->at("action"), "go_elsewhere");
  EXPECT_EQ(out->at("decoder_from"), 172);
  out = find_policy("resume_plan")
            ->run(json::parse(
                R"({"fault":"sad","prompt_length":300,"known":309,"window":128,"decoder_layers":20,"left_ms":1000})"));
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().message,
            "fault: one of rank_lost, group_lost, refused, client_error, cancelled expected, got \"sad\"");
}

TEST(registry, runs_the_function) {
  auto out =
      find_policy("restart")->run(json::parse(R"({"prompt_length":300,"known":309,"window":128,"decoder_layers":20})"));
  ASSERT_TRUE(out);
  EXPECT_EQ(out->at("decoder_from"), 172);
  EXPECT_EQ(out->at("hit_limit"), 128);
  out = find_policy("round_robin")->run(json::parse(R"({"usable":[false,false]})"));
  ASSERT_TRUE(out);
  EXPECT_TRUE(out->at("choice").is_null());
}

}  // namespace
}  // namespace troupe::policies
