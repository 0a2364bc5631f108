#include "kv/replay/trace.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::kv {
namespace {

// A whole number in [0, most], or nothing.
bool number(const nlohmann::json& o, const char* member, uint64_t most, uint64_t& out) {
  const auto at = o.find(member);
  if (at == o.end() || !at->is_number_integer() ||
      (at->is_number_integer() && !at->is_number_unsigned() && at->get<int64_t>() < 0))
    return false;
  out = at->get<uint64_t>();
  return out <= most;
}

}  // namespace

result<std::vector<trace_request>> read_trace(std::istream& in, const std::string& name) {
  std::vector<trace_request> out;
  std::string line;
  for (size_t n = 1; std::getline(in, line); ++n) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto bad = [&](std::string what) { return fail(errc::invalid_argument, "{}:{}: {}", name, n, what); };
    const auto o = nlohmann::json::parse(line, nullptr, false);
    if (!o.is_object()) return bad("not a JSON object");
    trace_request r;
    uint64_t time = 0, tokens = 0;
    if (!number(o, "timestamp", INT64_MAX, time)) return bad("timestamp: a whole number of milliseconds expected");
    if (!number(o, "input_length", UINT32_MAX, tokens) || tokens == 0)
      return bad("input_length: tokens, at least 1, expected");
    uint64_t output = 0;
    if (o.contains("output_length") && !number(o, "output_length", UINT32_MAX, output))
      return bad("output_length: a whole number of tokens expected");
    const auto ids = o.find("hash_ids");
    if (ids == o.end() || !ids->is_array()) return bad("hash_ids: a list of ids expected");
    for (const auto& id : *ids) {
      if (!id.is_number_unsigned()) return bad("hash_ids: whole numbers, 0 or more, expected");
      r.ids.push_back(id.get<uint64_t>());
    }
    if (r.ids.size() != (tokens + trace_block_tokens - 1) / trace_block_tokens)
      return bad(fmt::format("hash_ids: {} ids for {} tokens; one per {} tokens expected", r.ids.size(), tokens,
                             trace_block_tokens));
    r.timestamp_ms = static_cast<int64_t>(time), r.input_tokens = static_cast<uint32_t>(tokens);
    r.output_tokens = static_cast<uint32_t>(output);
    if (!out.empty() && r.timestamp_ms < out.back().timestamp_ms)
      return bad("timestamp: before that of the line above");
    out.push_back(std::move(r));
  }
  if (in.bad()) return fail(errc::io, "{}: cannot be read to its end", name);
  if (out.empty()) return fail(errc::invalid_argument, "{}: holds no request", name);
  return out;
}

result<std::vector<trace_request>> read_trace_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) return fail(errc::io, "{}: cannot be read", path);
  return read_trace(in, path);
}

uint64_t trace_ids(const std::vector<trace_request>& trace) {
  uint64_t out = 0;
  for (const auto& r : trace)
    for (const uint64_t id : r.ids) out = std::max(out, id + 1);
  return out;
}

int64_t trace_lap_ms(const std::vector<trace_request>& trace) {
  const auto n = static_cast<int64_t>(trace.size());
  if (n <= 1) return 1;
  const int64_t span = trace.back().timestamp_ms - trace.front().timestamp_ms;
  return std::max<int64_t>(1, span + span / (n - 1));
}

}  // namespace troupe::kv
