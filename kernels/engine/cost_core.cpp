#include "kernels/engine/cost_core.hpp"

#include <algorithm>
#include <utility>

#include "kernels/engine/move_state.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

// One running, one next, one spare.
constexpr size_t waiting_plans = 2;

}  // namespace

cost_core::cost_core(cost_engine_config c, model_facts facts, cost_price price, engine::sink on_step)
    : outline_(std::move(c.outline)),
      model_(std::move(c.model)),
      timer_(std::move(c.timer)),
      limits_(c.limits),
      page_memory_(c.pages),
      handoff_(c.handoff),
      facts_(std::move(facts)),
      block_(facts_.has_drafter ? model_->acceptance.block : 0),
      price_(std::move(price)),
      moves_(*outline_, c.expert_slots),
      slots_(c.limits.slots),
      sink_(std::move(on_step)) {
  if (c.adaptive_drafts) control_.emplace();
  planned_.slots.resize(limits_.slots);
}

void cost_core::later(nanoseconds after, void (cost_core::*what)()) {
  timer_->schedule(after, [keep = weak_from_this(), what] {
    if (auto self = keep.lock()) (self.get()->*what)();
  });
}

result<void> cost_core::submit(step_plan plan) {
  std::lock_guard lock(mutex_);
  if (stopping_) return fail(errc::unavailable, "the engine has stopped");
  if (failed_) return fail(errc::unavailable, "plan {}: a step failed, the engine waits for its next group", plan.id);
  if (queue_.size() >= waiting_plans)
    return fail(errc::exhausted, "plan {}: {} plans are waiting already", plan.id, queue_.size());
  planned_state next = planned_;
  if (auto r = check_plan(plan, limits_, facts_, next); !r) return r;
  for (size_t i = 0; i < plan.open.size(); ++i) {
    const sequence_open& o = plan.open[i];
    if (o.imported.rows == 0 || handoff_.empty()) continue;
    auto head = read_cost_state(facts_, o.imported.rows, state_place(o.imported.state));
    if (!head) return fail(head.error().code, "plan {}: open[{}].imported: {}", plan.id, i, head.error().message);
    if (head->chain != chain_of(std::span(o.tokens).first(o.imported.rows)))
      return fail(errc::invalid_argument, "plan {}: open[{}].imported: the state is that of other tokens", plan.id, i);
  }
  planned_ = std::move(next);
  queue_.push_back(std::move(plan));
  if (awake_) awake_->wake();
  return {};
}

result<void> cost_core::regroup(std::unique_ptr<ep::group> group, ep::placement placement) {
  if (!group) return fail(errc::invalid_argument, "regroup: no group");
  if (auto r = check_placement(*outline_, placement, group->shape().ranks); !r) return r;
  std::lock_guard lock(mutex_);
  if (stopping_) return fail(errc::unavailable, "the engine has stopped");
  failed_ = false;
  regrouping_ = regrouping{std::move(group), std::move(placement), ++regroups_};
  if (awake_) awake_->wake();
  later(nanoseconds(0), &cost_core::take_group);
  return {};
}

void cost_core::enter(std::unique_ptr<ep::group> group, ep::placement placement) {
  std::lock_guard lock(mutex_);
  regrouping_ = regrouping{std::move(group), std::move(placement), 0};
  later(nanoseconds(0), &cost_core::take_group);
}

void cost_core::wake() {
  std::lock_guard lock(mutex_);
  if (awake_) awake_->wake();
}

void cost_core::stop() {
  {
    std::lock_guard lock(sink_mutex_);
    sink_ = nullptr;
  }
  std::unique_lock lock(mutex_);
  stopping_ = true;
  queue_.clear();
  if (seat_) return seat_->leave();
  // Another group is used by the timer's thread, and belongs to somebody who may end after this call.
  if (awake_) awake_->wake();
  changed_.wait(lock, [this] { return !round_; });
}

void cost_core::deliver(step_result r) {
  std::lock_guard lock(sink_mutex_);
  if (sink_) sink_(std::move(r));
}

// Between two steps: takes the group that regroup has brought.
void cost_core::take_group() {
  std::unique_ptr<ep::group> old;
  {
    std::lock_guard lock(mutex_);
    if (in_step_ || !regrouping_ || stopping_) return;
    old = std::move(group_);
    group_ = std::move(regrouping_->group);
    seat_ = dynamic_cast<cost_seat*>(group_.get());
    group_number_ = regrouping_->number;
    moves_.enter(std::move(regrouping_->placement), group_->shape().ranks, group_->rank(), group_number_, seat_);
    regrouping_.reset();
    awake_ = group_.get();
    group_step_ = 0;
    if (!seat_) {
      if (!round_) later(nanoseconds(0), &cost_core::foreign_round);
      round_ = true;
      return;
    }
  }
  seat_->attach(weak_from_this());
}

// Takes the next plan if there is none. Plans that only open or close are answered on the way.
bool cost_core::next_plan() {
  for (;;) {
    if (!has_plan_) {
      std::lock_guard lock(mutex_);
      if (stopping_ || queue_.empty()) return false;
      plan_ = std::move(queue_.front());
      queue_.pop_front();
      has_plan_ = true;
      steps_done_ = 0;
    }
    if (steps_done_ == 0) {
      result_ = {};
      apply_lists(result_);
    }
    compose();
    if (!items_.empty()) return true;
    // Nothing for the group: only opens and closes, or every sequence has finished or waits for pages.
    step_result r = std::exchange(result_, {});
    r.plan = plan_.id;
    r.plan_done = true;
    r.step = group_step_;
    r.regroups = group_number_;
    for (const sequence_step& s : plan_.sequences)
      r.sequences.push_back({.slot = s.slot,
                             .committed = slots_[s.slot.value].committed,
                             .first_position = slots_[s.slot.value].known()});
    has_plan_ = false;
    deliver(std::move(r));
  }
}

void cost_core::begin_step(ep::step_header& header, policies::step_work& work) {
  moves_.load();
  items_.clear();
  work_ = {};
  const bool mine = next_plan();
  if (mine) {
    header.has_work = header.encoder = true;
    header.decoder = work_.decoder_rows > 0;
    header.draft = work_.drafting > 0;
  }
  moves_.announce(header, group_step_ + 1);
  work = work_;
  in_step_ = header.has_work;
}

result<void> cost_core::run_step(const ep::step_header& agreed) {
  if (auto ok = moves_.adopt(agreed, group_step_ + 1); !ok) return ok;
  if (!agreed.has_work) return {};
  in_step_ = true;
  ++group_step_;
  return {};
}

void cost_core::end_step(const cost_step& step) {
  in_step_ = false;
  moves_.finish_step(step, work_);
  if (has_plan_ && !items_.empty()) {
    step_result r = std::exchange(result_, {});
    r.plan = plan_.id;
    r.step = group_step_;
    r.regroups = group_number_;
    r.sequences.reserve(items_.size());
    drafted_ = emitted_ = 0;
    bool finished = false;
    for (const step_item& item : items_) {
      run_item(item, r);
      finished = finished || r.sequences.back().finish != finish_reason::none;
    }
    const policies::step_cost_parts& p = step.took;
    const auto ns = [](uint64_t v) { return static_cast<int64_t>(v); };
    r.times.total = ns(p.total_ns);
    r.times.attention = ns(p.attention_ns);
    r.times.dispatch = ns(p.dispatch_ns);
    r.times.experts = ns(p.experts_ns);
    r.times.combine = ns(p.combine_ns);
    r.times.sampling = ns(p.sampling_ns);
    if (ended_.count() > 0) r.times.gap = std::max<int64_t>(0, (step.began - ended_).count());
    ended_ = timer_->now();
    if (control_) {
      draft_measurement m;
      m.drafted = work_.drafting;
      m.draft_ns = work_.drafting > 0 ? ns(p.draft_ns) : 0;
      m.target_ns = ns(p.total_ns) - m.draft_ns;
      m.verified = drafted_;
      m.tokens = emitted_;
      control_->observe(m);
    }
    {
      std::lock_guard lock(mutex_);
      r.plan_done = ++steps_done_ >= plan_.max_steps || finished || !queue_.empty() || stopping_;
    }
    has_plan_ = !r.plan_done;
    deliver(std::move(r));
  }
  take_group();
}

// Reports the running plan and those behind it as failed, or that a rank has left; waits for a new group.
void cost_core::group_over(const result<void>& why, const std::vector<uint32_t>& suspects) {
  in_step_ = false;
  std::unique_ptr<ep::group> old;
  std::vector<step_plan> dropped;
  {
    std::lock_guard lock(mutex_);
    old = std::move(group_);
    seat_ = nullptr;
    awake_ = nullptr;
    if (!why) {
      for (step_plan& p : queue_) dropped.push_back(std::move(p));
      queue_.clear();
      failed_ = !regrouping_;
      for (size_t i = 0; i < slots_.size(); ++i) {
        const slot_state& s = slots_[i];
        planned_.slots[i] = {};
        if (s.open)
          planned_.slots[i] = {true, s.known() == s.committed + 1 && s.known() > s.prompt_length, s.committed,
                               s.known(), static_cast<uint32_t>(s.pages.size())};
      }
    }
  }
  moves_.leave();
  if (!why) {
    const auto report = [&](uint64_t plan, bool applied) {
      step_result r;
      r.plan = plan;
      r.step = group_step_;
      r.regroups = group_number_;
      r.plan_done = plan != 0;
      r.failure = why.error().code;
      r.failure_text = why.error().message;
      r.suspects = suspects;
      r.applied = applied;
      if (applied && steps_done_ == 0) r.closed = plan_.close;  // later steps: already reported
      deliver(std::move(r));
    };
    const bool running = std::exchange(has_plan_, false);
    result_ = {};
    if (running)
      report(plan_.id, true);
    else if (dropped.empty())
      report(0, false);  // no plan was running: the scheduler still has to know
    for (const step_plan& p : dropped) report(p.id, false);
  }
  take_group();
}

// Tells the ranks elsewhere that this one stops.
void cost_core::leave() {
  std::unique_ptr<ep::group> old;
  {
    std::lock_guard lock(mutex_);
    awake_ = nullptr;
    old = std::move(group_);
  }
  if (!old) return;
  if (old->shape().ranks > 1) {
    ep::step_header mine;
    mine.leaving = true;
    (void)old->begin_step(mine);
  }
  old->end();
}

// One meeting with a group whose ranks are elsewhere. Blocks while the group is parked.
void cost_core::foreign_round() {
  const auto done = [this] {
    std::lock_guard lock(mutex_);
    round_ = false;
    changed_.notify_all();
  };
  bool stopping, next;
  {
    std::lock_guard lock(mutex_);
    stopping = stopping_;
    next = regrouping_.has_value();
  }
  if (stopping) {
    leave();
    return done();
  }
  if (next) take_group();
  if (!group_ || seat_) return done();
  ep::step_header mine;
  begin_step(mine, work_);
  auto agreed = group_->begin_step(mine);
  const auto over = [&](const result<void>& why) {
    const std::vector<uint32_t> suspects = group_->suspects();
    done();
    group_over(why, suspects);
  };
  if (!agreed) {
    // This rank's own process ended the group, to join the next one: nothing was lost.
    if (agreed.error().code == errc::cancelled && !has_plan_) return over({});
    return over(fail(agreed.error()));
  }
  if (auto ok = run_step(*agreed); !ok) return over(ok);
  foreign_ = {};
  foreign_.agreed = *agreed;
  if (!agreed->has_work) {
    if (agreed->leaving) return over({});
    return later(agreed->moving ? load_interval : nanoseconds(0), &cost_core::foreign_round);
  }
  // What the others run is not known here; they are taken to run the same, or to wait for this rank.
  foreign_.ranks = group_->shape().ranks;
  foreign_.rows = uint64_t{work_.rows} * foreign_.ranks;
  foreign_.decoder_rows = uint64_t{work_.decoder_rows} * foreign_.ranks;
  foreign_.drafting = uint64_t{work_.drafting} * foreign_.ranks;
  foreign_.took = price_(std::span(&work_, 1), foreign_.ranks, moves_.active(), group_step_, agreed->draft);
  foreign_.use = price_.use();
  foreign_.began = timer_->now();
  later(nanoseconds(static_cast<int64_t>(foreign_.took.total_ns)), &cost_core::foreign_end);
}

void cost_core::foreign_end() {
  end_step(foreign_);
  if (foreign_.agreed.leaving && group_) {
    {
      std::lock_guard lock(mutex_);
      round_ = false;
      changed_.notify_all();
    }
    return group_over({}, {});
  }
  later(nanoseconds(0), &cost_core::foreign_round);
}

}  // namespace troupe::kernels
