// Which sequences the replay measurement makes of documents.
#include <gtest/gtest.h>

#include "kernels/measure/replay.hpp"

namespace troupe::kernels::measure {
namespace {

document conversation(uint32_t question, uint32_t answer, token_id fill) {
  document d;
  d.tokens.assign(question + answer, fill);
  d.answers = {question};
  d.ends = {question + answer};
  return d;
}

TEST(replay_cases, the_prompt_ends_where_an_answer_begins) {
  // 16-token windows: a prompt needs (3 + 1) * 16 + 6 = 70 tokens.
  std::vector<document> docs;
  for (int i = 0; i < 12; ++i) docs.push_back(conversation(20, 30, 3 + i));
  const auto cases = replay_cases(docs, 16, 400, {});
  ASSERT_EQ(cases.size(), 4u);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].prompt, 70u);  // the second document's answer
    EXPECT_EQ(cases[i].tokens.size(), 70u + 32);
    EXPECT_EQ(cases[i].tokens[0], static_cast<token_id>(3 + 3 * i));
    EXPECT_TRUE(cases[i].joined);
  }
  EXPECT_EQ(replay_cases(docs, 16, 400, {.cases = 2}).size(), 2u);
}

TEST(replay_cases, one_long_conversation_is_taken_alone) {
  document d;
  d.tokens.assign(300, 5);
  d.answers = {20, 60, 120};
  d.ends = {40, 80, 300};
  const auto cases = replay_cases({d}, 16, 400, {.continuation = 100});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].prompt, 120u);
  EXPECT_EQ(cases[0].tokens.size(), 220u);
}

TEST(replay_cases, plain_text_and_what_is_too_short) {
  document d;
  d.tokens.assign(200, 5);
  auto cases = replay_cases({d}, 16, 400, {});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].prompt, 70u);
  d.tokens.resize(90);  // the continuation would have 20 tokens
  EXPECT_TRUE(replay_cases({d}, 16, 400, {}).empty());
  EXPECT_TRUE(replay_cases({}, 16, 400, {}).empty());
  // The context cuts a sequence that finds no place for its prompt's end.
  EXPECT_TRUE(replay_cases({conversation(500, 10, 4), conversation(500, 10, 4)}, 16, 400, {}).empty());
}

}  // namespace
}  // namespace troupe::kernels::measure
