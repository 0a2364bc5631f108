#include "runtime/sim/workload/workload.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/rng.hpp"
#include "runtime/config/units.hpp"
#include "runtime/sim/workload/sources.hpp"

namespace troupe::sim {
namespace {

// Rate and ends, the same for every kind of source.
class paced_source final : public workload_source {
 public:
  paced_source(std::unique_ptr<workload_source> from, const workload_options& o)
      : from_(std::move(from)), rate_(o.rate), first_(o.first), duration_(o.duration) {
    what_ = from_->text();
    if (o.loops != 1 && !o.trace.empty()) what_ += o.loops == 0 ? ", looped" : fmt::format(", {} loops", o.loops);
    if (o.length != ratio{}) what_ += ", lengths x" + format_ratio(o.length);
    if (o.rate != ratio{}) what_ += ", rate x" + format_ratio(o.rate);
    if (first_ > 0) what_ += fmt::format(", the first {}", first_);
    if (duration_ > nanoseconds(0)) what_ += ", for " + config::format_duration(duration_);
  }
  uint32_t block_tokens() const override { return from_->block_tokens(); }
  std::string text() const override { return what_; }

  result<std::optional<workload_request>> next() override {
    if (ended_ || (first_ > 0 && given_ >= first_)) return std::nullopt;
    TROUPE_TRY(auto r, from_->next());
    if (r) {
      r->arrival = nanoseconds(static_cast<int64_t>(rate_.divide(static_cast<uint64_t>(r->arrival.count()))));
      if (duration_ > nanoseconds(0) && r->arrival >= duration_) r.reset();
    }
    ended_ = !r.has_value();
    given_ += r.has_value();
    return r;
  }

 private:
  std::unique_ptr<workload_source> from_;
  const ratio rate_;
  const uint64_t first_;
  const nanoseconds duration_;
  std::string what_;
  uint64_t given_ = 0;
  bool ended_ = false;
};

}  // namespace

result<std::unique_ptr<workload_source>> open_workload(const workload_options& o) {
  if (o.block_tokens == 0 || 512 % o.block_tokens != 0)
    return fail(errc::invalid_argument, "workload.block_tokens {}: a divisor of 512 expected", o.block_tokens);
  if (o.length.millionths < 1'000 || o.length.millionths > 1'000'000'000)
    return fail(errc::invalid_argument, "workload.length {}: 0.001 to 1000 expected", format_ratio(o.length));
  if (o.rate.millionths == 0) return fail(errc::invalid_argument, "workload.rate 0: a number above 0 expected");
  if (o.duration < nanoseconds(0))
    return fail(errc::invalid_argument, "workload.duration: a time of 0 or more expected");
  if ((o.trace.empty() || o.loops == 0) && o.first == 0 && o.duration == nanoseconds(0))
    return fail(errc::invalid_argument, "{} has no end: give a number of requests (first) or a duration",
                o.trace.empty() ? "a generated workload" : "a trace looped for ever");
  if (!o.trace.empty() && !o.trace.ends_with(".csv") && !o.trace.ends_with(".jsonl"))
    return fail(errc::invalid_argument,
                "{}: a name ending with .jsonl (Mooncake format) or .csv (Azure format) expected", o.trace);
  TROUPE_TRY(auto source, o.trace.empty() ? open_generator(o) : open_trace_source(o));
  return std::make_unique<paced_source>(std::move(source), o);
}

std::vector<kv::block_hash> chain_hashes(const workload_request& r, uint32_t block_tokens) {
  std::vector<kv::block_hash> out;
  const size_t count = std::min<size_t>(r.input_tokens / block_tokens, r.blocks.size());
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t id = r.blocks[i];
    const auto words =
        philox({static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), r.tenant, block_tokens}, {7, 8});
    kv::block_hash h;
    std::memcpy(h.bytes.data(), words.data(), h.bytes.size());
    h.tokens = static_cast<uint32_t>((i + 1) * block_tokens);
    out.push_back(h);
  }
  return out;
}

}  // namespace troupe::sim
