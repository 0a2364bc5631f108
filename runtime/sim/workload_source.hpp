// Where the requests of a simulation come from: traces and generators implement it, the world feeds them to the fronts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::sim {

/// One request. Its prompt is given as tokens, or as the ids of pieces of text: equal ids stand for equal tokens, so a
/// common beginning of two lists is a common prefix (prompt_of makes the tokens).
struct workload_request {
  nanoseconds arrival{0};     // from the begin of the load; not before the one before
  uint64_t conversation = 0;  // requests of one conversation go to one front
  uint64_t tenant = 0;        // blocks are shared within a tenant only
  uint8_t traffic = 1;        // kv::traffic_class: 0 agent, 1 chatbot
  uint8_t priority = 5;       // client_submit::priority
  std::vector<kernels::token_id> prompt;
  std::vector<uint64_t> pieces;  // used where `prompt` is empty
  uint32_t piece_tokens = 512;   // of every piece but the last
  uint32_t prompt_tokens = 0;    // of all pieces together; the last one is cut
  uint32_t output_tokens = 1;    // the answer has exactly so many: no end of sequence before
  bool operator==(const workload_request&) const = default;
};

/// Not thread safe; used from the simulation's thread only. A source is a pure function of its parameters and of what
/// `ended` told it.
class workload_source {
 public:
  virtual ~workload_source() = default;
  /// The next request in order of arrival. Nothing: there is none now; there may be one after a later call of `ended`,
  /// if `waits` says so.
  virtual std::optional<workload_request> next() = 0;
  /// Further requests may follow an end (closed loops, further turns of a conversation).
  virtual bool waits() const { return false; }
  /// Request number `index` (in order of `next`) has ended at `at` since the begin of the load with these tokens.
  virtual void ended(uint64_t index, nanoseconds at, std::span<const kernels::token_id> answer) {
    (void)index, (void)at, (void)answer;
  }
};

/// The tokens of a request's prompt: `prompt`, or prompt_tokens tokens in [3, vocabulary) drawn from the ids of its
/// pieces.
std::vector<kernels::token_id> prompt_of(const workload_request& r, uint32_t vocabulary);

}  // namespace troupe::sim
