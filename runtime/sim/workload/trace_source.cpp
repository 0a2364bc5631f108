// Recorded traces: spread, looped and scaled in length. (Rate and ends are the caller's.)
#include <algorithm>

#include "kv/replay/trace.hpp"
#include "runtime/sim/workload/azure.hpp"
#include "runtime/sim/workload/sources.hpp"

namespace troupe::sim {
namespace {

constexpr int64_t ns_per_ms = 1'000'000;
constexpr int64_t widest_bin = 3'000 * ns_per_ms;  // of the published trace

class trace_source final : public workload_source {
 public:
  struct row {
    int64_t at_ns = 0;
    uint32_t input = 0, output = 0;
    size_t first_id = 0, ids = 0;
  };

  trace_source(const workload_options& o, std::vector<row> rows, std::vector<uint64_t> ids, int64_t lap_ns,
               std::string what)
      : options_(o), rows_(std::move(rows)), ids_(std::move(ids)), lap_ns_(lap_ns), what_(std::move(what)) {
    for (const uint64_t id : ids_) distinct_ = std::max(distinct_, id + 1);
    // A recorded block of 512 tokens is 512 * length tokens now; where window blocks do not divide that, the first and
    // the last one of it lie across its ends.
    const uint64_t tokens = options_.length.times(kv::trace_block_tokens);
    const bool whole = options_.length.millionths * kv::trace_block_tokens == tokens * 1'000'000 &&
                       tokens % options_.block_tokens == 0 && tokens > 0;
    parts_ = tokens / options_.block_tokens + (whole ? 0 : 2);
    if (options_.spread) spread();
  }

  uint32_t block_tokens() const override { return options_.block_tokens; }
  std::string text() const override { return what_; }

  result<std::optional<workload_request>> next() override {
    if (options_.loops > 0 && index_ >= options_.loops * rows_.size()) return std::nullopt;
    const uint64_t lap = index_ / rows_.size();
    const row& t = rows_[index_ % rows_.size()];
    workload_request r;
    r.index = r.conversation = index_++;
    r.arrival = nanoseconds(t.at_ns + static_cast<int64_t>(lap) * lap_ns_);
    r.input_tokens = scaled_tokens(t.input);
    r.output_tokens = scaled_tokens(std::max<uint32_t>(t.output, 1));
    if (t.ids > 0) ids_of(t, lap, r);
    return r;
  }

 private:
  uint32_t scaled_tokens(uint32_t tokens) const {
    return static_cast<uint32_t>(std::clamp<uint64_t>(options_.length.times(tokens), 1, 1u << 30));
  }

  // Requests of one instant, over the time up to the next instant.
  void spread() {
    for (size_t i = 0, j; i < rows_.size(); i = j) {
      const int64_t at = rows_[i].at_ns;
      for (j = i; j < rows_.size() && rows_[j].at_ns == at;) ++j;
      const int64_t until = j < rows_.size() ? rows_[j].at_ns : rows_.front().at_ns + lap_ns_;
      const int64_t bin = std::clamp<int64_t>(until - at, 0, widest_bin), n = static_cast<int64_t>(j - i);
      for (int64_t k = 1; k < n; ++k) rows_[i + static_cast<size_t>(k)].at_ns += bin * k / n;
    }
  }

  // A window block's id is made of the recorded id under its last token and of its place there: equal exactly when
  // everything up to it is equal.
  void ids_of(const row& t, uint64_t lap, workload_request& r) const {
    const uint32_t bt = options_.block_tokens;
    const size_t count = (r.input_tokens + bt - 1) / bt;
    r.blocks.reserve(count);
    for (size_t b = 0; b < count; ++b) {
      const uint64_t last = std::min<uint64_t>((b + 1) * uint64_t{bt}, r.input_tokens) - 1;
      const uint64_t recorded = last * 1'000'000 / options_.length.millionths;
      const size_t i = std::min<size_t>(recorded / kv::trace_block_tokens, t.ids - 1);
      const uint64_t begins = uint64_t{i} * kv::trace_block_tokens * options_.length.millionths / 1'000'000 / bt;
      r.blocks.push_back((ids_[t.first_id + i] + lap * distinct_) * parts_ +
                         std::min<uint64_t>(b - begins, parts_ - 1));
    }
  }

  const workload_options options_;
  std::vector<row> rows_;
  std::vector<uint64_t> ids_;
  int64_t lap_ns_;
  std::string what_;
  uint64_t index_ = 0, distinct_ = 0, parts_ = 1;
};

}  // namespace

result<std::unique_ptr<workload_source>> open_trace_source(const workload_options& o) {
  std::vector<trace_source::row> rows;
  std::vector<uint64_t> ids;
  int64_t lap_ns = 1;
  if (o.trace.ends_with(".csv")) {
    TROUPE_TRY(const auto trace, read_azure_file(o.trace));
    for (const auto& r : trace) rows.push_back({r.at_ns, r.input_tokens, r.output_tokens, 0, 0});
    const int64_t span = trace.back().at_ns, n = static_cast<int64_t>(trace.size());
    lap_ns = std::max<int64_t>(1, n > 1 ? span + span / (n - 1) : 1);
  } else {
    TROUPE_TRY(const auto trace, kv::read_trace_file(o.trace));
    const int64_t start = trace.front().timestamp_ms;
    for (const auto& r : trace) {
      if (r.timestamp_ms - start > INT64_MAX / ns_per_ms / 4)
        return fail(errc::invalid_argument, "{}: times span more than 70 years", o.trace);
      rows.push_back({(r.timestamp_ms - start) * ns_per_ms, r.input_tokens, r.output_tokens, ids.size(), r.ids.size()});
      ids.insert(ids.end(), r.ids.begin(), r.ids.end());
    }
    lap_ns = kv::trace_lap_ms(trace) * ns_per_ms;
    // Ids are multiplied by parts and laps; published ones count from 0.
    if (kv::trace_ids(trace) > (uint64_t{1} << 40))
      return fail(errc::invalid_argument, "{}: ids of 2^40 and more: renumber them from 0", o.trace);
  }
  std::string what = o.trace.substr(o.trace.find_last_of('/') + 1);
  what += fmt::format(", {} requests", rows.size());
  return std::make_unique<trace_source>(o, std::move(rows), std::move(ids), lap_ns, std::move(what));
}

}  // namespace troupe::sim
