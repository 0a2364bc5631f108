// What the gateway asks for tokens: the entrypoint actor in a cluster, an engine in this process for offline use.
// Tokens in, tokens out; text is the recipe's business.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "kv/types.hpp"
#include "runtime/base/result.hpp"

namespace troupe::gateway {

/// What kind of client a request comes from; set by its API key. Sent between processes: append only.
enum class traffic_class : uint8_t { chatbot = 0, agent = 1 };

/// Whose turn it is where requests wait: 0 to 9, higher is sooner. This one where nobody says.
inline constexpr uint8_t usual_priority = 5;

/// One request: a prompt in token ids, how to sample, when to stop, and on whose behalf.
struct generate_request {
  std::string id;      // unique among running requests of this process; goes into logs and `X-Request-Id`
  std::string tenant;  // from the API key; never from the client's body
  std::string salt;    // cache salt of the tenant, from the API key
  traffic_class traffic = traffic_class::chatbot;
  uint8_t priority = usual_priority;  // at most that of the API key
  std::vector<kernels::token_id> prompt;
  std::vector<kv::block_hash> chain;  // what `blocks_of` said of the prompt
  kernels::sampling_params sampling;
  kernels::stop_params stop;
  bool speculate = true;
};

/// Token counts of one request, for the usage field and the metrics.
struct token_usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;  // prompt tokens not computed
  uint32_t drafted = 0, accepted = 0;
};

/// Tokens in order of position, each once; the last event has `done`, with a finish or a failure, exactly once.
struct generate_event {
  uint32_t first_position = 0;
  std::vector<kernels::token_id> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<kernels::token_logprob>> top;
  bool done = false;
  kernels::finish_reason finish = kernels::finish_reason::none;
  token_usage usage;  // set with done, on failure and cancel too
  errc failure{};     // 0, or why there are no more tokens; the text is for the client
  std::string failure_text;
};

/// Thread rules: every function may be called from any thread and does not block. Events of one request come one at a
/// time, on a thread of the generator's; the callback must not block and may call cancel.
class generator {
 public:
  using on_event = std::function<void(generate_event)>;
  virtual ~generator() = default;
  virtual const kernels::model_facts& facts() const = 0;
  /// True once a canary request went through and admission is open.
  virtual bool ready() const = 0;
  /// Keys of the prompt's complete blocks in the cluster's store, for generate_request::chain; none where there is no
  /// store. May take milliseconds: for the threads that encode.
  virtual std::vector<kv::block_hash> blocks_of(std::string_view salt,
                                                std::span<const kernels::token_id> prompt) const {
    (void)salt, (void)prompt;
    return {};
  }
  /// Starts a request. Refusals (queue full, prompt too long, not ready) come as an event with `done` and `failure`.
  virtual void submit(generate_request request, on_event callback) = 0;
  /// Ends a request early; its last event then has failure `cancelled`. Unknown ids are ignored.
  virtual void cancel(const std::string& id) = 0;
};

}  // namespace troupe::gateway
