// The chat encoding of DeepSeek-V4.1: which special tokens stand between which texts.
//
//   <bos> {<｜System｜>text | <｜User｜>text | <｜Assistant｜></think>text<eos>}... <｜Assistant｜>(</think> | <think>)
//
// A system message is first or anywhere; user messages in a row are one turn, joined by an empty line; a past answer
// carries the closed thinking tag only. In thinking mode the conversation begins with a system message (an empty one is
// put in front if there is none) that begins with the effort line. A last assistant message with `prefix` is continued:
// no end-of-sentence after it and no new turn. Source: the deepseek-recipe package (recorded in tests/recipe/vectors).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::recipe {

/// Who speaks.
enum class role : uint8_t { system, user, assistant };

/// One turn of a conversation.
struct message {
  role from = role::user;
  std::string content;
  bool prefix = false;  // the last message only, from the assistant: continue this text
  bool operator==(const message&) const = default;
};

/// How long the model may think.
enum class effort : uint8_t { low, high, max };

/// How the answer is to be written.
struct chat_options {
  bool thinking = false;
  effort reasoning = effort::high;  // with thinking only
  bool operator==(const chat_options&) const = default;
};

/// The special tokens that the encoding uses.
enum class chat_token : uint8_t { bos, eos, system, user, assistant, think, end_think };
inline constexpr int chat_token_count = 7;
/// Spelling of a special token as the released tokenizer has it.
const char* spelling(chat_token token);

/// A piece of a rendered conversation: a special token, or a text in which no special token is recognised.
struct segment {
  bool is_token = false;
  chat_token token = chat_token::bos;
  std::string text;
  bool operator==(const segment&) const = default;
};

/// Renders a conversation. `invalid_argument` when it is empty or `prefix` stands where it cannot, naming the message.
result<std::vector<segment>> render(const std::vector<message>& messages, const chat_options& options);

/// The rendered conversation as one string, for people and for the recorded vectors.
std::string to_text(const std::vector<segment>& segments);

}  // namespace troupe::recipe
