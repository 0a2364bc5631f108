// Bodies and stream chunks of the two completion APIs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "runtime/recipe/tokenizer.hpp"

namespace troupe::gateway {

/// What a client is told it used. cached <= prompt.
struct api_usage {
  uint32_t prompt = 0, completion = 0, cached = 0;
};

/// One generated token with its log-probability, for `logprobs`.
struct token_record {
  kernels::token_id token = 0;
  float logprob = 0;
  std::vector<kernels::token_logprob> top;
  uint32_t offset = 0;  // characters of the answer before it
};

/// Renders what belongs to one request. Not thread safe.
class api_writer {
 public:
  struct facts {
    bool chat = false;
    std::string id;  // "chatcmpl-..." or "cmpl-..."
    int64_t created = 0;
    std::string model, fingerprint;
    uint64_t seed = 0;
    int32_t logprobs = -1;
    bool include_usage = false;
  };
  api_writer(facts f, const recipe::tokenizer& tokens);

  /// JSON of stream chunks, without the "data:" frame.
  std::string first_chunk() const;  // chat: the role; empty for completions
  std::string text_chunk(std::string_view text, const std::vector<token_record>& records) const;
  std::string finish_chunk(const char* reason) const;
  std::string usage_chunk(const api_usage& usage) const;

  /// The whole answer.
  std::string body(const std::string& text, const std::vector<token_record>& records, const char* reason,
                   const api_usage& usage) const;

 private:
  std::string chunk(std::string_view choice) const;
  std::string logprobs(const std::vector<token_record>& records) const;

  facts facts_;
  const recipe::tokenizer& tokens_;
  std::string head_, tail_;
};

}  // namespace troupe::gateway
