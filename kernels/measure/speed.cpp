#include "kernels/measure/speed.hpp"

#include <algorithm>

namespace troupe::kernels::measure {
namespace {

constexpr uint32_t least_requests = 16;  // one answer is luck

}  // namespace

const char* to_string(drafting d) { return d == drafting::none ? "none" : d == drafting::fixed ? "fixed" : "adaptive"; }

result<load_time> measure_load_time(const std::string& directory, const engine_limits& limits,
                                    const clock_source& clock) {
  load_time t;
  const nanoseconds begin = clock.now();
  TROUPE_TRY(auto m, load_model(directory));
  const nanoseconds loaded = clock.now();
  TROUPE_TRY(auto runner, engine_runner::make(m, limits));
  t.model = loaded - begin;
  t.engine = clock.now() - loaded;
  return t;
}

result<decode_speed> measure_decode(std::shared_ptr<const model> weights, uint32_t threads, uint32_t concurrent,
                                    drafting drafts, const std::vector<request>& requests, const clock_source& clock) {
  if (requests.empty() || concurrent == 0) return fail(errc::invalid_argument, "no request to time");
  engine_limits limits{.slots = concurrent, .max_chunk = 256, .threads = threads};
  limits.max_context = 1;
  std::vector<request> work;
  for (uint32_t i = 0; i < std::max(concurrent, least_requests); ++i) {
    request q = requests[i % requests.size()];
    q.speculate = drafts != drafting::none;
    q.sampling.seed += i;
    limits.max_context = std::max(limits.max_context, static_cast<uint32_t>(q.tokens.size()) + q.stop.max_tokens);
    work.push_back(std::move(q));
  }
  TROUPE_TRY(auto runner, engine_runner::make(std::move(weights), limits, {}, drafts == drafting::adaptive, &clock));
  std::vector<request> warm = work;
  for (request& q : warm) q.stop.max_tokens = std::min(q.stop.max_tokens, 48u);
  if (auto r = runner->run(warm); !r) return fail(r.error());
  decode_speed out{.concurrent = concurrent, .drafts = drafts};
  const nanoseconds begin = clock.now();
  TROUPE_TRY(auto answers, runner->run(work));
  out.elapsed = clock.now() - begin;
  for (const answer& a : answers) {
    out.tokens += a.tokens.size();
    out.drafted += a.drafted;
    out.accepted += a.accepted;
  }
  return out;
}

result<double> measure_prefill(std::shared_ptr<const model> weights, uint32_t threads, uint32_t max_chunk,
                               const std::vector<token_id>& prompt, uint32_t repeats, const clock_source& clock) {
  engine_limits limits{.slots = 1, .max_chunk = max_chunk, .threads = threads};
  limits.max_context = static_cast<uint32_t>(prompt.size()) + 1;
  TROUPE_TRY(auto runner, engine_runner::make(std::move(weights), limits));
  request q{.tokens = prompt};
  q.stop.max_tokens = 1;
  double best = 0;
  for (uint32_t i = 0; i <= repeats; ++i) {
    const nanoseconds begin = clock.now();
    if (auto r = runner->run({q}); !r) return fail(r.error());
    const double seconds = static_cast<double>((clock.now() - begin).count()) * 1e-9;
    if (i > 0) best = std::max(best, static_cast<double>(prompt.size()) / seconds);  // the first run warms up
  }
  return best;
}

}  // namespace troupe::kernels::measure
