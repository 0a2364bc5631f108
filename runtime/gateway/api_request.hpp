// Bodies of /v1/completions and /v1/chat/completions.
//
// Unknown fields are ignored, as OpenAI does; known fields of a wrong type or range are refused with the field's name,
// and so are known fields that would change the answer and are not supported (n > 1, tools, response_format, ...).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "runtime/gateway/api_error.hpp"
#include "runtime/gateway/sampling_defaults.hpp"
#include "runtime/recipe/chat.hpp"

namespace troupe::gateway {

/// A checked request for tokens, whatever endpoint it came through.
struct api_request {
  bool chat = false;
  std::string model;
  std::vector<recipe::message> messages;              // chat
  std::string prompt_text;                            // completions, unless there are ids
  std::optional<std::vector<kernels::token_id>> ids;  // completions: the prompt as token ids
  std::optional<uint32_t> max_tokens;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  float temperature = 1, top_p = 1;
  uint32_t top_k = 0;  // 0 = no limit
  std::optional<uint64_t> seed;
  int32_t logprobs = -1;            // as kernels::sampling_params
  std::optional<uint8_t> priority;  // 0 to 9, higher is sooner; that of the API key is the most
  std::vector<std::string> stop;
  bool stream = false, include_usage = false;
};

/// Limits that the parser enforces.
struct api_limits {
  static constexpr size_t stops = 16, stop_bytes = 256, json_depth = 64;
};

/// Parses a body. `vocabulary` bounds token ids in `prompt`; `defaults` are what the body leaves out.
api_result<api_request> parse_request(std::string_view body, bool chat, uint32_t vocabulary,
                                      const sampling_defaults& defaults = {});

}  // namespace troupe::gateway
