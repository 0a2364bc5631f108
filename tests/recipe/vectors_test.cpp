// The recipe against what PyPI's `tokenizers` and `deepseek-recipe` said (make_vectors.py recorded it).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/recipe/recipe.hpp"
#include "runtime/recipe/utf8.hpp"

namespace troupe::recipe {
namespace {

using nlohmann::json;
const std::string tests = TROUPE_SOURCE_DIR "/tests/";

json read(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  return json::parse(in);
}

std::vector<std::string> names() { return {"bpe_v3", "bpe_gpt2", "tiny"}; }

class recorded : public testing::TestWithParam<std::string> {
 protected:
  recorded() : doc(read(tests + "recipe/vectors/tokens.json")["tokenizers"][GetParam()]) {
    auto t = tokenizer::load(tests + doc["file"].get<std::string>());
    EXPECT_TRUE(t) << t.error().message;
    tok.emplace(std::move(*t));
  }
  json doc;
  std::optional<tokenizer> tok;
};

TEST_P(recorded, encodes_the_same_ids) {
  int n = 0;
  for (const json& c : doc["cases"]) {
    if (!c.contains("text")) continue;
    auto ids = tok->encode(c["text"].get<std::string>());
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, c["ids"].get<std::vector<token_id>>()) << c["text"];
    ++n;
  }
  EXPECT_GT(n, 150);
}

TEST_P(recorded, decodes_the_same_text_at_once_and_streamed) {
  for (const json& c : doc["cases"]) {
    auto ids = c["ids"].get<std::vector<token_id>>();
    std::string want = c["decoded"];
    EXPECT_EQ(tok->decode(ids), want) << c["ids"];
    std::string streamed;
    utf8_stream stream;
    for (token_id id : ids) {
      if (tok->special(id)) continue;
      stream.push(tok->bytes(id), streamed);
      EXPECT_TRUE(is_utf8(streamed));
    }
    stream.finish(streamed);
    EXPECT_EQ(streamed, want);
  }
}

TEST_P(recorded, plain_text_never_gives_a_special_token) {
  for (const json& c : doc["cases"]) {
    if (!c.contains("text")) continue;
    auto ids = tok->encode(c["text"].get<std::string>(), added_tokens::plain);
    ASSERT_TRUE(ids);
    std::string bytes;
    for (token_id id : *ids) {
      EXPECT_FALSE(tok->special(id));
      bytes += tok->bytes(id);
    }
    if (GetParam() != "bpe_gpt2") {  // that one normalises
      EXPECT_EQ(bytes, c["text"].get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(tokenizers, recorded, testing::ValuesIn(names()), [](const auto& i) { return i.param; });

TEST(chat, renders_and_encodes_as_deepseek_recipe) {
  auto tiny = recipe::load(TROUPE_TEST_DATA "/tiny-v41");
  ASSERT_TRUE(tiny) << tiny.error().message;
  auto t = tokenizer::load(tests + "recipe/vectors/bpe_v3.json");
  ASSERT_TRUE(t);
  auto v3 = recipe::make(std::move(*t));
  json doc = read(tests + "recipe/vectors/chat.json");
  ASSERT_GE(doc["cases"].size(), 100u);
  for (const json& c : doc["cases"]) {
    std::vector<message> messages;
    for (const json& m : c["messages"]) {
      std::string r = m["role"];
      messages.push_back({r == "system" ? role::system
                          : r == "user" ? role::user
                                        : role::assistant,
                          m["content"], m["prefix"]});
    }
    std::string e = c["effort"];
    chat_options o{c["thinking"], e == "low" ? effort::low : e == "high" ? effort::high : effort::max};
    auto segments = render(messages, o);
    ASSERT_TRUE(segments) << segments.error().message;
    EXPECT_EQ(to_text(*segments), c["text"].get<std::string>());
    for (int pass = 0; pass < 2; ++pass) {  // the second one from the cache
      auto ids = (*tiny)->chat(messages, o, "salt");
      ASSERT_TRUE(ids) << ids.error().message;
      EXPECT_EQ(*ids, c["ids_tiny"].get<std::vector<token_id>>()) << c["text"];
      ids = (*v3)->chat(messages, o, "salt");
      ASSERT_TRUE(ids) << ids.error().message;
      EXPECT_EQ(*ids, c["ids_bpe_v3"].get<std::vector<token_id>>()) << c["text"];
    }
  }
}

}  // namespace
}  // namespace troupe::recipe
