// Tokenizer files that are wrong or beyond what is supported, long and hostile texts, and the cache's bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::recipe {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json tiny() {
  std::ifstream in(TROUPE_TEST_DATA "/tiny-v41/tokenizer.json");
  return json::parse(in);
}

std::string refusal(const std::function<void(json&)>& change) {
  json doc = tiny();
  change(doc);
  auto t = tokenizer::parse(doc.dump(), "model/tokenizer.json");
  if (t) return "it was accepted";
  return t.error().message;
}

TEST(tokenizer_file, broken_merges_are_refused_by_entry) {
  auto with = [](json merges) { return refusal([&](json& d) { d["model"]["merges"] = std::move(merges); }); };
  EXPECT_EQ(with({"a b"}), "model/tokenizer.json: model.merges[0]: the merged token \"ab\" is not in model.vocab");
  EXPECT_EQ(with(json::array({json::array({"a", "xyz"})})),
            "model/tokenizer.json: model.merges[0]: token \"xyz\" is not in model.vocab");
  EXPECT_THAT(with({"ab"}), HasSubstr("model.merges[0]: \"ab\" is not two tokens"));
  EXPECT_THAT(with({"a b c"}), HasSubstr("model.merges[0]"));
  EXPECT_THAT(with({json::array({"a"})}), HasSubstr("model.merges[0]"));
  EXPECT_THAT(with({7}), HasSubstr("model.merges[0]: 7"));
  EXPECT_THAT(with("a b"), HasSubstr("model.merges: a list is expected"));
}

TEST(tokenizer_file, broken_vocabularies_are_refused_by_entry) {
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"]["a"] = d["model"]["vocab"]["b"]; }),
              HasSubstr("given to two tokens"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"].erase("a"); }), HasSubstr("byte 0x61 (\"a\") has no token"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"]["a"] = "one"; }),
              HasSubstr("model.vocab[\"a\"]: the id is not an integer"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"]["a"] = -1; }), HasSubstr("out of range"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"]["a"] = int64_t{1} << 40; }), HasSubstr("out of range"));
  EXPECT_THAT(refusal([](json& d) { d["model"].erase("vocab"); }), HasSubstr("model.vocab"));
  EXPECT_THAT(refusal([](json& d) { d.erase("model"); }), HasSubstr("model: the section is missing"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["id"] = 100; }), HasSubstr("added_tokens[0]"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][1] = d["added_tokens"][0]; }), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][3]["content"] = ""; }), HasSubstr("added_tokens[3]"));
}

TEST(tokenizer_file, unsupported_parts_are_refused_by_name) {
  EXPECT_THAT(refusal([](json& d) { d["model"]["type"] = "Unigram"; }), HasSubstr("\"Unigram\" is not supported"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["byte_fallback"] = true; }), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal([](json& d) {
                d["normalizer"] = {{"type", "Lowercase"}};
              }),
              HasSubstr("normalizer Lowercase is not supported"));
  EXPECT_THAT(refusal([](json& d) {
                d["pre_tokenizer"] = {{"type", "Whitespace"}};
              }),
              HasSubstr("pre-tokenizer Whitespace"));
  EXPECT_THAT(refusal([](json& d) { d["pre_tokenizer"] = nullptr; }), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal([](json& d) { d["pre_tokenizer"]["add_prefix_space"] = true; }), HasSubstr("add_prefix_space"));
  EXPECT_THAT(refusal([](json& d) {
                d["pre_tokenizer"] = {
                    {"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}},
                      d["pre_tokenizer"]}}};
              }),
              HasSubstr("pre_tokenizer.pretokenizers[0].pattern: the pattern does not compile"));
  EXPECT_THAT(refusal([](json& d) { d["decoder"] = {{"type", "WordPiece"}}; }), HasSubstr("decoder"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["lstrip"] = true; }), HasSubstr("added_tokens[0]"));
}

TEST(tokenizer_file, not_json_and_not_there) {
  auto t = tokenizer::parse("{\"model\": ", "model/tokenizer.json");
  ASSERT_FALSE(t);
  EXPECT_THAT(t.error().message, HasSubstr("model/tokenizer.json: not valid JSON"));
  EXPECT_FALSE(tokenizer::parse("[]", "x"));
  EXPECT_FALSE(tokenizer::parse("", "x"));
  t = tokenizer::load("/nowhere/tokenizer.json");
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, errc::io);
  EXPECT_THAT(t.error().message, HasSubstr("/nowhere/tokenizer.json"));
}

TEST(tokenizer_text, invalid_bytes_count_as_replacement_characters) {
  auto t = tokenizer::load(TROUPE_TEST_DATA "/tiny-v41/tokenizer.json");
  ASSERT_TRUE(t);
  EXPECT_EQ(*t->encode("a\xFF"), *t->encode("a\xEF\xBF\xBD"));
  EXPECT_EQ(t->decode({-1, 100000, 2'000'000'000}), "");
  EXPECT_EQ(t->size(), 512u);
}

TEST(tokenizer_text, megabytes_of_one_piece_are_not_quadratic) {
  auto t = tokenizer::load(TROUPE_SOURCE_DIR "/tests/recipe/vectors/bpe_v3.json");
  ASSERT_TRUE(t);
  for (const char* unit : {"a", " ", "\n", "the", "<", "机", "e\u0301", "1"}) {
    std::string text;
    while (text.size() < 1u << 20) text += unit;
    auto before = steady_clock().now();
    auto ids = t->encode(text);
    ASSERT_TRUE(ids) << unit << ": " << ids.error().message;
    // Quadratic work would take minutes; the bound is wide for sanitizer builds on a busy machine.
    EXPECT_LT(steady_clock().now() - before, std::chrono::seconds(20)) << unit;
    EXPECT_EQ(t->decode(*ids), text);
  }
}

TEST(tokenizer_text, a_pattern_that_explodes_gives_an_error) {
  json d = tiny();
  d["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a+a+)+(b|d)"}}}, {"behavior", "Isolated"}, {"invert", false}},
        d["pre_tokenizer"]}}};
  auto t = tokenizer::parse(d.dump(), "x");
  ASSERT_TRUE(t) << t.error().message;
  auto ids = t->encode(std::string(200, 'a') + "c");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, errc::exhausted);
  EXPECT_TRUE(t->encode("aaab"));
}

TEST(recipe_cache, stays_within_its_bound_and_separates_scopes) {
  auto t = tokenizer::load(TROUPE_TEST_DATA "/tiny-v41/tokenizer.json");
  ASSERT_TRUE(t);
  auto r = recipe::make(std::move(*t), {.cache_bytes = 20000, .cache_min_text = 10});
  ASSERT_TRUE(r);
  for (int i = 0; i < 100; ++i) {
    std::string text = "text number " + std::to_string(i) + std::string(300, 'x');
    auto first = (*r)->prompt(text, "a");
    auto second = (*r)->prompt(text, "a");
    ASSERT_TRUE(first && second);
    EXPECT_EQ(*first, *second);
    EXPECT_LE((*r)->cached_bytes(), 20000u);
  }
  size_t before = (*r)->cached_bytes();
  EXPECT_GT(before, 10000u);
  std::string big(100000, 'y');
  ASSERT_TRUE((*r)->prompt(big, "a"));
  EXPECT_EQ((*r)->cached_bytes(), before);  // larger than the cache: not kept, and nothing thrown out for it
}

TEST(recipe_prompt, begins_with_one_begin_of_sentence) {
  auto r = recipe::load(TROUPE_TEST_DATA "/tiny-v41");
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(*(*r)->prompt("a", ""), (std::vector<token_id>{0, 3 + 'a'}));
  EXPECT_EQ(*(*r)->prompt("<｜begin▁of▁sentence｜>a", ""), (std::vector<token_id>{0, 3 + 'a'}));
  EXPECT_EQ(*(*r)->prompt("<｜User｜>", ""), (std::vector<token_id>{0, 260}));
  EXPECT_EQ(*(*r)->prompt("", ""), (std::vector<token_id>{0}));
}

TEST(recipe_chat, bad_conversations_name_the_message) {
  auto r = recipe::load(TROUPE_TEST_DATA "/tiny-v41");
  ASSERT_TRUE(r);
  auto empty = (*r)->chat({}, {}, "");
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, errc::invalid_argument);
  auto prefix = (*r)->chat({{role::assistant, "a", true}, {role::user, "b"}}, {}, "");
  ASSERT_FALSE(prefix);
  EXPECT_THAT(prefix.error().message, HasSubstr("messages[0].prefix"));
  json d = tiny();
  std::string user = d["added_tokens"][4]["content"];
  d["model"]["vocab"].erase(user);
  d["added_tokens"].erase(4);
  auto t = tokenizer::parse(d.dump(), "x");
  ASSERT_TRUE(t) << t.error().message;
  auto without = recipe::make(std::move(*t));
  ASSERT_TRUE(without);
  auto refused = (*without)->chat({{role::user, "b"}}, {}, "");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::unsupported);
  EXPECT_THAT(refused.error().message, HasSubstr(user));
}

}  // namespace
}  // namespace troupe::recipe
