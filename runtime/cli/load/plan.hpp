// What a load generator sends, and when: from a recorded trace or drawn from a seed. Arithmetic only, no clock, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/replay/trace.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::cli {

/// A number of tokens, drawn uniformly from [least, most].
struct token_range {
  uint32_t least = 1, most = 1;
  bool operator==(const token_range&) const = default;
};

/// "N" or "N-M", 1 <= N <= M <= 16777216.
result<token_range> parse_token_range(const std::string& text);

/// The requests of about one in `n` of the trace's conversations, drawn by the seed. Requests belong together when
/// their first two blocks are the same (the first alone may be everybody's system prompt); those of one block are
/// alone.
std::vector<kv::trace_request> some_conversations(std::vector<kv::trace_request> trace, uint32_t n, uint64_t seed);

/// What to send. Everything that is drawn is a function of `seed` and the request's number.
struct load_options {
  std::vector<kv::trace_request> trace;  // empty: a synthetic load
  // With a trace: one id stands for this many tokens; all lengths scale along (512: as recorded).
  uint32_t block_tokens = kv::trace_block_tokens;
  double speed = 1;               // with a trace: its clock runs so many times as fast
  bool loop = false;              // with a trace: begins again at its end, with ids of its own for each lap
  double rate = 0;                // requests per second, exponential gaps; 0: by the trace's times, or all due at once
  uint64_t limit = 0;             // requests; 0: no limit
  nanoseconds duration{0};        // none is due at or after it; 0: no limit
  token_range input{64, 256};     // without a trace
  token_range output{16, 64};     // without a trace, and where the trace does not say
  double cancel_share = 0;        // of requests that are left before their end
  double slow_share = 0;          // of requests whose client reads slowly
  uint32_t context = UINT32_MAX;  // of the model: longer requests are skipped
  uint64_t seed = 1;
};

/// One request.
struct load_request {
  uint64_t index = 0;  // from 0, of the whole load; skipped ones have numbers too
  nanoseconds due{0};  // after the start
  uint32_t input_tokens = 0, output_tokens = 0;
  std::vector<uint64_t> ids;          // of its blocks; empty: a prompt of its own
  std::optional<uint32_t> leaves_at;  // the client goes when it has so many tokens of the answer, fewer than all
  bool slow = false;
};

/// Hands out requests in the order in which they are due. Plain state; one thread.
class load_plan {
 public:
  /// invalid_argument for options outside their bounds, and where no request can fit the context; the trace must be
  /// one that kv::read_trace gave.
  static result<load_plan> make(load_options options);
  /// The next one that fits the context; nothing at the end of the load.
  std::optional<load_request> next();
  /// Do requests have times of their own, by the trace or a rate?
  bool timed() const { return !options_.trace.empty() || options_.rate > 0; }
  /// Requests left out so far because prompt and answer do not fit.
  uint64_t skipped() const { return skipped_; }
  const load_options& options() const { return options_; }

 private:
  explicit load_plan(load_options options) : options_(std::move(options)) {}
  void from_trace(load_request& r);

  load_options options_;
  uint64_t index_ = 0, given_ = 0, skipped_ = 0;
  uint64_t ids_ = 0;        // distinct ids of a lap are below
  uint64_t in_a_row_ = 0;   // skipped since one fitted
  int64_t lap_ms_ = 1;      // from a lap's first request to the next lap's
  nanoseconds arrival_{0};  // with a rate: of the last request
};

/// The prompt of a request: ids in [3, vocabulary). Block i of requests with the same id at i has the same tokens, so
/// prompts share prefixes exactly as their ids do. vocabulary > 3.
std::vector<int32_t> prompt_of(const load_request& r, uint32_t block_tokens, uint32_t vocabulary, uint64_t seed);

}  // namespace troupe::cli
