#include "kernels/measure/engine_runner.hpp"

#include <algorithm>
#include <utility>

namespace troupe::kernels::measure {
namespace {

// Decode steps per plan while no prompt waits: a plan costs a hand-over between two threads.
constexpr uint32_t steps_per_plan = 32;
constexpr auto longest_step = std::chrono::minutes(10);

}  // namespace

result<std::unique_ptr<engine_runner>> engine_runner::make(std::shared_ptr<const model> weights, engine_limits limits,
                                                           draft_observer on_drafts, bool adaptive_drafts,
                                                           const clock_source* clock) {
  cpu_engine_config c;
  c.weights = std::move(weights);
  c.limits = limits;
  c.on_drafts = std::move(on_drafts);
  c.adaptive_drafts = adaptive_drafts;
  c.clock = clock;
  return make(std::move(c));
}

result<std::unique_ptr<engine_runner>> engine_runner::make(cpu_engine_config config,
                                                           std::function<void(const step_result&)> on_step) {
  const uint32_t window = config.weights->plan.window;
  engine_limits& limits = config.limits;
  limits.pages = limits.slots * ((limits.max_context + window - 1) / window);
  std::unique_ptr<engine_runner> r(new engine_runner);
  r->pool_ = page_pool(limits.pages);
  r->slots_.resize(limits.slots);
  r->used_.resize(limits.slots);
  TROUPE_TRY(r->engine_,
             make_cpu_engine(std::move(config), [raw = r.get(), on_step = std::move(on_step)](step_result s) {
               if (on_step) on_step(s);
               std::lock_guard lock(raw->mutex_);
               raw->results_.push_back(std::move(s));
               raw->arrived_.notify_all();
             }));
  return r;
}

engine_runner::~engine_runner() {
  if (engine_) engine_->stop();
}

result<step_result> engine_runner::next_result() {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_for(lock, longest_step, [&] { return !results_.empty(); }))
    return fail(errc::timeout, "no result of plan {} within 10 minutes", plan_);
  step_result r = std::move(results_.front());
  results_.pop_front();
  return r;
}

step_plan engine_runner::next_plan(const std::vector<request>& requests, size_t& started,
                                   std::vector<slot_id> closing) {
  const uint32_t window = engine_->facts().window;
  step_plan plan;
  plan.id = ++plan_;
  plan.close = std::move(closing);
  for (uint32_t s = 0; s < slots_.size() && started < requests.size(); ++s) {
    // A slot that this plan closes is free when its result has come.
    if (used_[s]) continue;
    const request& q = requests[started];
    const uint32_t n = static_cast<uint32_t>(q.tokens.size());
    plan.open.push_back({slot_id{s}, q.tokens, n, q.sampling, q.stop, q.speculate});
    used_[s] = true;
    slots_[s] = {started++};
  }
  uint32_t budget = engine_->limits().max_chunk;
  bool prompts = false;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    running& r = slots_[s];
    if (!used_[s] || r.finished) continue;
    const request& q = requests[r.index];
    const uint32_t n = static_cast<uint32_t>(q.tokens.size());
    sequence_step step{.slot = slot_id{s}};
    if (r.done < n) {
      prompts = true;
      step.position = r.done;
      step.rows = std::min(n - r.done, budget);
      if (step.rows == 0) continue;
      budget -= step.rows;
      step.decoder_from = step.decoder_floor = n > window ? n - window : 0;  // decoder replay, as in serving
      if (r.pages.empty()) {
        // All pages at once: a slot's share of the pool holds the largest context.
        auto pages = pool_.take((n + q.stop.max_tokens + window - 1) / window);
        TROUPE_CHECK(pages.has_value(), "{}", pages.error().message);
        r.pages = step.pages = std::move(*pages);
      }
      r.done += step.rows;
      step.sample = r.done == n;
    }
    plan.sequences.push_back(std::move(step));
  }
  plan.max_steps = prompts ? 1 : steps_per_plan;
  plan.verify_budget = static_cast<uint32_t>(slots_.size()) * engine_->limits().max_draft;
  return plan;
}

result<std::vector<answer>> engine_runner::run(const std::vector<request>& requests) {
  for (size_t i = 0; i < requests.size(); ++i)
    if (requests[i].tokens.size() + requests[i].stop.max_tokens > engine_->limits().max_context)
      return fail(errc::invalid_argument, "request {}: {} tokens and {} to come, the context holds {}", i,
                  requests[i].tokens.size(), requests[i].stop.max_tokens, engine_->limits().max_context);
  std::vector<answer> out(requests.size());
  std::vector<slot_id> closing;
  size_t started = 0;
  for (;;) {
    step_plan plan = next_plan(requests, started, std::exchange(closing, {}));
    if (plan.close.empty() && plan.open.empty() && plan.sequences.empty()) return out;
    if (auto ok = engine_->submit(std::move(plan)); !ok) return fail(ok.error());
    for (bool done = false; !done;) {
      TROUPE_TRY(step_result r, next_result());
      if (r.failure != errc{}) return fail(r.failure, "step {}: {}", r.step, r.failure_text);
      done = r.plan_done;
      for (slot_id s : r.closed) {
        pool_.release(slots_[s.value].pages, page_owner::request);
        slots_[s.value] = {};
        used_[s.value] = false;
      }
      for (sequence_result& q : r.sequences) {
        running& at = slots_[q.slot.value];
        if (!used_[q.slot.value] || at.finished) continue;
        answer& a = out[at.index];
        a.tokens.insert(a.tokens.end(), q.tokens.begin(), q.tokens.end());
        a.drafted += q.drafted;
        a.accepted += q.accepted;
        a.finish = q.finish;
        if (q.finish == finish_reason::none) continue;
        at.finished = true;
        closing.push_back(q.slot);
      }
    }
  }
}

void fit(std::vector<request>& requests, uint32_t context) {
  for (request& q : requests) {
    q.stop.max_tokens = std::min(q.stop.max_tokens, context > 1 ? context - 1 : 1);
    const size_t room = context - q.stop.max_tokens;
    if (q.tokens.size() > room) q.tokens.erase(q.tokens.begin(), q.tokens.end() - static_cast<ptrdiff_t>(room));
  }
}

}  // namespace troupe::kernels::measure
