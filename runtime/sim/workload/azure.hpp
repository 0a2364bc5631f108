// Request traces in the format of the Azure public data set (LLM inference, 2023 and 2024): CSV with the columns
// TIMESTAMP, ContextTokens, GeneratedTokens; no prefix information.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::sim {

/// One row.
struct azure_request {
  int64_t at_ns = 0;           // after the first row's time; never before the row above
  uint32_t input_tokens = 0;   // >= 1
  uint32_t output_tokens = 0;  // >= 1 (a recorded 0 counts as 1: a request makes at least one token)
};

/// Reads a whole trace. Errors name the line: another header, a cell that is no time or number, times going back,
/// tokens 0 in the context. Times are "YYYY-MM-DD HH:MM:SS.fffffff", a time zone "+00:00" behind it is allowed. Lines
/// may end with CR LF; empty ones are skipped; no row at all is an error.
result<std::vector<azure_request>> read_azure(std::istream& in, const std::string& name);

/// The same from a file; io if it cannot be read.
result<std::vector<azure_request>> read_azure_file(const std::string& path);

}  // namespace troupe::sim
