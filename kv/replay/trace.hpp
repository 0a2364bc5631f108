// Request traces in the format of the Mooncake release: one JSON object a line with `timestamp` (ms), `input_length`
// and `output_length` (tokens) and `hash_ids`, one id per 512-token block of the input (equal ids mean equal whole
// prefixes; the last block may be partial).
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::kv {

inline constexpr uint32_t trace_block_tokens = 512;

/// One request.
struct trace_request {
  int64_t timestamp_ms = 0;    // from the trace's start, never before the request above it
  uint32_t input_tokens = 0;   // > 0
  uint32_t output_tokens = 0;  // 0: the trace does not say
  std::vector<uint64_t> ids;   // ceil(input_tokens / 512)
};

/// Reads a whole trace. Errors name the line: not JSON, a member missing or of the wrong kind, times going back, a
/// number of ids that does not fit the length; `name` is how messages call the input. Empty lines are skipped; no
/// request at all is an error.
result<std::vector<trace_request>> read_trace(std::istream& in, const std::string& name);

/// The same from a file; io if it cannot be read.
result<std::vector<trace_request>> read_trace_file(const std::string& path);

/// Different ids of the trace are below this: a further lap of it adds a multiple to stay apart.
uint64_t trace_ids(const std::vector<trace_request>& trace);

/// From a lap's first request to the next lap's, when the trace is looped: as if one more request came after the last,
/// at the mean distance. At least 1.
int64_t trace_lap_ms(const std::vector<trace_request>& trace);

}  // namespace troupe::kv
