#include "runtime/cli/load/plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kv/replay/prompt.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::cli {
namespace {

constexpr uint32_t most_tokens = 1u << 24;
// Streams of randomness of a request are numbered from here, one each.
constexpr uint64_t draws_stream = uint64_t{1} << 32;
constexpr uint64_t conversations_stream = uint64_t{1} << 48;  // the stream of a conversation's draw
constexpr uint64_t most_in_a_row = 100'000;                   // drawn requests that do not fit, before the load ends

uint32_t scaled(uint64_t tokens, uint32_t block) {
  return static_cast<uint32_t>((tokens * block + kv::trace_block_tokens - 1) / kv::trace_block_tokens);
}

uint32_t draw(rng& r, const token_range& t) { return t.least + static_cast<uint32_t>(r.below(t.most - t.least + 1)); }

nanoseconds due_after(double s) { return nanoseconds(std::llround(s * 1e9)); }

}  // namespace

result<token_range> parse_token_range(const std::string& text) {
  token_range out;
  const char *at = text.data(), *end = at + text.size();
  auto first = std::from_chars(at, end, out.least);
  bool good = first.ec == std::errc{};
  out.most = out.least;
  if (good && first.ptr != end) {
    auto second = *first.ptr == '-' ? std::from_chars(first.ptr + 1, end, out.most)
                                    : std::from_chars_result{end, std::errc::invalid_argument};
    good = second.ec == std::errc{} && second.ptr == end;
  }
  if (!good || out.least == 0 || out.least > out.most || out.most > most_tokens)
    return fail(errc::invalid_argument, "'{}' is no number of tokens: N or N-M from 1 to {} is expected", text,
                most_tokens);
  return out;
}

std::vector<kv::trace_request> some_conversations(std::vector<kv::trace_request> trace, uint32_t n, uint64_t seed) {
  TROUPE_CHECK(n > 0, "one in 0 conversations");
  uint64_t alone = 0;  // a number of its own for each request of one block, odd; conversations have even ones
  std::erase_if(trace, [&](const kv::trace_request& r) {
    const uint64_t number = r.ids.size() > 1 ? 2 * r.ids[1] : 2 * alone++ + 1;
    return rng(seed, conversations_stream + number).below(n) != 0;
  });
  return trace;
}

result<load_plan> load_plan::make(load_options o) {
  const auto share = [](double x) { return x >= 0 && x <= 1; };
  if (!share(o.cancel_share) || !share(o.slow_share))
    return fail(errc::invalid_argument, "shares are from 0 to 1, not {} and {}", o.cancel_share, o.slow_share);
  if (!(o.speed > 0) || !(o.rate >= 0) || !std::isfinite(o.speed) || !std::isfinite(o.rate))
    return fail(errc::invalid_argument, "speed {} and rate {}: finite numbers above 0 expected", o.speed, o.rate);
  if (o.block_tokens == 0 || o.block_tokens > most_tokens)
    return fail(errc::invalid_argument, "{} tokens per block", o.block_tokens);
  if (o.loop && o.trace.empty()) return fail(errc::invalid_argument, "there is no trace to begin again");
  if (o.limit == 0 && o.duration == nanoseconds(0) && (o.trace.empty() || o.loop))
    return fail(errc::invalid_argument, "a load needs an end: a number of requests or a duration");
  if (o.trace.empty() && uint64_t{o.input.least} + o.output.least > o.context)
    return fail(errc::invalid_argument,
                "prompts of {} tokens with answers of {} or more do not fit the context of {}: ask for shorter ones",
                o.input.least, o.output.least, o.context);
  load_plan p(std::move(o));
  if (!p.options_.trace.empty()) p.ids_ = kv::trace_ids(p.options_.trace), p.lap_ms_ = kv::trace_lap_ms(p.options_.trace);
  return p;
}

void load_plan::from_trace(load_request& r) {
  const auto& trace = options_.trace;
  const uint64_t lap = index_ / trace.size();
  const auto& t = trace[index_ % trace.size()];
  const double ms = static_cast<double>(t.timestamp_ms - trace.front().timestamp_ms) +
                    static_cast<double>(lap) * static_cast<double>(lap_ms_);
  r.due = due_after(ms / 1e3 / options_.speed);
  r.input_tokens = scaled(t.input_tokens, options_.block_tokens);
  r.output_tokens = t.output_tokens > 0 ? scaled(t.output_tokens, options_.block_tokens) : 0;
  r.ids = t.ids;
  for (uint64_t& id : r.ids) id += lap * ids_;
}

std::optional<load_request> load_plan::next() {
  for (;;) {
    if (options_.limit > 0 && given_ >= options_.limit) return std::nullopt;
    if (!options_.trace.empty() && !options_.loop && index_ >= options_.trace.size()) return std::nullopt;
    load_request r;
    r.index = index_;
    rng random(options_.seed, draws_stream + index_);
    // In a fixed order, so that one option does not change what another one draws.
    const double gap = random.uniform(), cancels = random.uniform(), slow = random.uniform(), leaves = random.uniform();
    r.input_tokens = draw(random, options_.input);
    const uint32_t output = draw(random, options_.output);
    if (!options_.trace.empty()) from_trace(r);
    if (r.output_tokens == 0) r.output_tokens = output;
    if (options_.rate > 0)
      r.due = arrival_ += index_ == 0 ? nanoseconds(0) : due_after(-std::log1p(-gap) / options_.rate);
    if (options_.duration > nanoseconds(0) && r.due >= options_.duration) return std::nullopt;
    ++index_;
    if (uint64_t{r.input_tokens} + r.output_tokens > options_.context) {
      ++skipped_;
      ++in_a_row_;
      // A load of hardly anything but too long requests ends as well.
      if (in_a_row_ >= (options_.trace.empty() ? most_in_a_row : options_.trace.size())) return std::nullopt;
      continue;
    }
    if (cancels < options_.cancel_share)
      r.leaves_at = static_cast<uint32_t>(leaves * static_cast<double>(r.output_tokens));
    r.slow = slow < options_.slow_share;
    ++given_;
    in_a_row_ = 0;
    return r;
  }
}

std::vector<int32_t> prompt_of(const load_request& r, uint32_t block_tokens, uint32_t vocabulary, uint64_t seed) {
  return kv::trace_prompt(r.ids, r.index, r.input_tokens, block_tokens, vocabulary, seed);
}

}  // namespace troupe::cli
