#include "kernels/engine/step_engine.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/engine/handoff.hpp"
#include "kernels/engine/snapshot.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/run_queue.hpp"

namespace troupe::kernels {
namespace {

// One running, one next, one spare.
constexpr size_t waiting_plans = 2;

}  // namespace

uint32_t step_rows(const engine_limits& limits) { return limits.max_chunk + limits.slots * (1 + limits.max_draft); }

step_engine::step_engine(step_engine_parts parts, sink on_step)
    : model_(std::move(parts.weights)),
      ops_(std::move(parts.ops)),
      where_(parts.where),
      limits_(parts.limits),
      own_pages_(std::move(parts.own_pages)),
      page_memory_(parts.pages),
      handoff_(parts.handoff),
      snapshots_(parts.snapshots),
      facts_(std::move(parts.facts)),
      clock_(*parts.clock),
      sink_(std::move(on_step)),
      on_drafts_(std::move(parts.on_drafts)),
      moves_(*model_, *ops_, where_, parts.expert_slots, parts.split),
      group_(std::move(parts.group)),
      first_placement_(std::move(parts.placement)) {
  if (parts.adaptive_drafts) control_.emplace();
}

result<std::unique_ptr<engine>> step_engine::make(step_engine_parts parts, sink on_step) {
  TROUPE_CHECK(parts.weights && parts.ops && parts.clock && on_step, "a step engine lacks a part");
  const engine_limits& l = parts.limits;
  if (l.slots == 0 || l.max_chunk == 0 || l.max_context == 0 || l.pages == 0)
    return fail(errc::invalid_argument,
                "engine limits: slots {}, max_chunk {}, max_context {}, pages {} must be positive", l.slots,
                l.max_chunk, l.max_context, l.pages);
  if (parts.handoff.size() < size_t{l.handoffs} * parts.facts.handoff_bytes)
    return fail(errc::invalid_argument, "handoff memory: {} bytes, {} places of {} bytes need {}", parts.handoff.size(),
                l.handoffs, parts.facts.handoff_bytes, size_t{l.handoffs} * parts.facts.handoff_bytes);
  if (parts.snapshots.size() < l.snapshots * parts.facts.snapshot_bytes)
    return fail(errc::invalid_argument, "snapshot memory: {} bytes, {} places of {} bytes need {}",
                parts.snapshots.size(), l.snapshots, parts.facts.snapshot_bytes,
                l.snapshots * parts.facts.snapshot_bytes);
  if (l.max_context > parts.weights->config.max_position_embeddings)
    return fail(errc::invalid_argument, "engine limits: max_context {} is above the model's {}", l.max_context,
                parts.weights->config.max_position_embeddings);
  std::unique_ptr<step_engine> e(new step_engine(std::move(parts), std::move(on_step)));
  if (auto r = e->prepare(); !r) return fail(r.error());
  e->thread_ = std::thread([raw = e.get()] { raw->run(); });
  return e;
}

result<void> step_engine::prepare() {
  const model_config& c = model_->config;
  if (group_) {
    const ep::group_shape& shape = group_->shape();
    if (shape.hidden != c.hidden_size || shape.max_rows < step_rows(limits_))
      return fail(errc::invalid_argument, "EP group: hidden {} and {} rows per rank, the engine needs {} and {}",
                  shape.hidden, shape.max_rows, c.hidden_size, step_rows(limits_));
    if (auto r = check_placement(*model_, first_placement_, shape.ranks); !r) return r;
    moves_.enter(std::move(first_placement_), shape.ranks, group_->rank(), 0);
  }
  TROUPE_TRY(kv_state state,
             kv_state::make(*model_, *ops_, where_, {limits_.slots, limits_.max_context, limits_.pages}, page_memory_));
  state_.emplace(std::move(state));
  TROUPE_TRY(forward_,
             forward_pass::make(*model_, *ops_, where_, *state_, {step_rows(limits_), limits_.slots}, clock_));
  block_ = c.num_nextn_predict_layers ? c.dspark_block_size : 0;
  slots_.resize(limits_.slots);
  for (slot_state& s : slots_) {
    s.drafts.resize(block_);
    s.confidences.resize(block_);
  }
  const size_t samples = size_t{limits_.slots} * (1 + limits_.max_draft);
  items_.reserve(limits_.slots);
  rows_.reserve(limits_.slots);
  commits_.reserve(limits_.slots);
  sampled_tail_.reserve(samples);
  sample_rows_.reserve(samples);
  sampled_.resize(samples);
  logprobs_.resize(samples);
  top_logprobs_.resize(samples * operators::max_top);
  top_tokens_.resize(samples * operators::max_top);
  draft_sequences_.reserve(limits_.slots);
  drafts_.resize(size_t{limits_.slots} * block_);
  confidences_.resize(size_t{limits_.slots} * block_);
  planned_.slots.resize(limits_.slots);
  parked_ = group_.get();
  return {};
}

step_engine::~step_engine() { stop(); }

result<void> step_engine::submit(step_plan plan) {
  std::lock_guard lock(mutex_);
  if (stopping_) return fail(errc::unavailable, "the engine has stopped");
  if (failed_) return fail(errc::unavailable, "plan {}: a step failed, the engine waits for its next group", plan.id);
  if (queue_.size() >= waiting_plans)
    return fail(errc::exhausted, "plan {}: {} plans are waiting already", plan.id, queue_.size());
  planned_state next = planned_;
  if (auto r = check_plan(plan, limits_, facts_, next); !r) return r;
  for (size_t i = 0; i < plan.open.size(); ++i)
    if (plan.open[i].imported.rows > 0)
      if (auto r = read_handoff_head(*model_, facts_, plan.open[i], handoff_place(plan.open[i].imported.state)); !r)
        return fail(r.error().code, "plan {}: open[{}].imported: {}", plan.id, i, r.error().message);
  planned_ = std::move(next);
  queue_.push_back(std::move(plan));
  if (parked_) parked_->wake();
  changed_.notify_all();
  return {};
}

result<void> step_engine::regroup(std::unique_ptr<ep::group> group, ep::placement placement) {
  if (!group) return fail(errc::invalid_argument, "regroup: no group");
  const ep::group_shape& shape = group->shape();
  if (shape.hidden != model_->config.hidden_size || shape.max_rows < step_rows(limits_))
    return fail(errc::invalid_argument, "regroup: hidden {} and {} rows per rank, the engine needs {} and {}",
                shape.hidden, shape.max_rows, model_->config.hidden_size, step_rows(limits_));
  if (auto r = check_placement(*model_, placement, shape.ranks); !r) return r;
  std::lock_guard lock(mutex_);
  if (stopping_) return fail(errc::unavailable, "the engine has stopped");
  failed_ = false;
  regrouping_ = regrouping{std::move(group), std::move(placement), ++regroups_};
  if (parked_) parked_->wake();
  changed_.notify_all();
  return {};
}

result<void> step_engine::stage(placement_move move) {
  if (auto ok = moves_.stage(std::move(move)); !ok) return ok;
  wake();
  return {};
}

result<void> step_engine::flip(placement_version version) {
  if (auto ok = moves_.flip(version); !ok) return ok;
  wake();
  return {};
}

// Experts are loaded, and placements taken, by the engine thread, which may be parked.
void step_engine::wake() {
  std::lock_guard lock(mutex_);
  if (parked_) parked_->wake();
  changed_.notify_all();
}

void step_engine::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (parked_) parked_->wake();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// Takes the next plan if there is none. Returns false when the thread shall end.
bool step_engine::next_plan(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    if (stopping_) return false;
    if (regrouping_) {
      group_ = std::move(regrouping_->group);
      moves_.enter(std::move(regrouping_->placement), group_->shape().ranks, group_->rank(), regrouping_->number);
      group_number_ = regrouping_->number;
      regrouping_.reset();
      parked_ = group_.get();
      group_step_ = 0;
    }
    if (group_) break;
    changed_.wait(lock);
  }
  if (!has_plan_ && !queue_.empty()) {
    plan_ = std::move(queue_.front());
    queue_.pop_front();
    has_plan_ = true;
    steps_done_ = 0;
  }
  return true;
}

void step_engine::run() {
  const run_queue_meter cores;
  idle_since_ = clock_.now().count();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (!next_plan(lock)) break;
    }
    step_result result;
    result.regroups = group_number_;
    if (has_plan_) {
      result.plan = plan_.id;
      if (steps_done_ == 0) apply_lists(result);
      compose(steps_done_ == 0);
      if (rows_.empty()) {
        // Nothing for the group: only opens and closes, or every sequence has finished or waits for pages.
        result.plan_done = true;
        result.step = group_step_;
        for (const sequence_step& s : plan_.sequences)
          result.sequences.push_back({.slot = s.slot,
                                      .committed = slots_[s.slot.value].committed,
                                      .first_position = slots_[s.slot.value].known});
        has_plan_ = false;
        sink_(std::move(result));
        continue;
      }
    } else {
      items_.clear();
      rows_.clear();
    }
    moves_.load();
    forward_->begin(rows_);
    const int64_t waiting = clock_.now().count();
    if (has_plan_ && ended_ > 0) {
      result.times.gap = waiting - ended_;
      result.times.gap_waited = std::min(cores.waited() - ended_waited_, result.times.gap);
    }
    auto agreed = group_->begin_step(header());
    if (!agreed) {
      if (agreed.error().code == errc::cancelled && !has_plan_) {
        // This rank's own process ended the group, to join the next one: nothing was lost.
        std::lock_guard lock(mutex_);
        parked_ = nullptr;
        drop_group();
        continue;
      }
      fail_step(std::move(agreed.error()));
      continue;
    }
    if (auto r = moves_.adopt(*agreed, group_step_ + 1); !r) {
      fail_step(std::move(r.error()));
      continue;
    }
    const int64_t start = clock_.now().count();
    result.times.idle_before = start - (has_plan_ ? waiting : idle_since_);
    if (agreed->has_work) {
      ++group_step_;
      result.step = group_step_;
      if (auto r = run_step(*agreed, result); !r) {
        fail_step(std::move(r.error()));
        continue;
      }
      if (has_plan_) ended_waited_ = cores.waited();
      const int64_t end = clock_.now().count();
      observe_drafts(end - start);
      const forward_times t = forward_->take_times();
      result.times.total = end - start;
      result.times.attention = t.attention;
      result.times.dispatch = t.dispatch;
      result.times.experts = t.experts;
      result.times.combine = t.combine;
      result.times.sampling = std::exchange(sampling_ns_, 0);
      idle_since_ = end;
      {
        moves_.finish_step(*forward_);
        std::lock_guard lock(mutex_);
        bool finished = false;
        for (const step_item& item : items_) finished = finished || item.finish != finish_reason::none;
        result.plan_done = ++steps_done_ >= plan_.max_steps || finished || !queue_.empty() || stopping_;
      }
      if (has_plan_) {
        has_plan_ = !result.plan_done;
        ended_ = end;
        sink_(std::move(result));
      }
    }
    if (agreed->leaving) {
      // A rank has stopped after this step; plans wait for the next group.
      std::lock_guard lock(mutex_);
      parked_ = nullptr;
      drop_group();
    }
  }
  leave();
}

// Tells the peers that this rank stops, so that they do not take it for lost.
void step_engine::leave() {
  {
    std::lock_guard lock(mutex_);
    queue_.clear();
    if (!group_) return;
  }
  items_.clear();
  rows_.clear();
  forward_->begin(rows_);
  if (group_->shape().ranks > 1) {
    ep::step_header mine;
    mine.leaving = true;
    auto agreed = group_->begin_step(mine);
    step_result ignored;
    if (agreed && agreed->has_work && moves_.adopt(*agreed, group_step_ + 1)) (void)run_step(*agreed, ignored);
  }
  group_->end();
}

void step_engine::drop_group() {
  group_.reset();
  moves_.leave();
}

void step_engine::apply_lists(step_result& result) {
  for (slot_id s : plan_.close) {
    slots_[s.value].open = false;
    slots_[s.value].draft_count = 0;
    result.closed.push_back(s);
  }
  for (sequence_open& o : plan_.open) {
    slot_state& s = slots_[o.slot.value];
    std::vector<token_id> drafts = std::move(s.drafts);
    std::vector<float> confidences = std::move(s.confidences);
    s = {};
    s.drafts = std::move(drafts);
    s.confidences = std::move(confidences);
    s.open = true;
    s.known = static_cast<uint32_t>(o.tokens.size());
    s.prompt_length = o.prompt_length;
    s.tokens = std::move(o.tokens);
    // Room for every token it can emit and for a block of drafts, so that decoding does not allocate.
    const uint64_t longest = std::min<uint64_t>(limits_.max_context, uint64_t{o.prompt_length} + o.stop.max_tokens);
    s.tokens.resize(std::max<uint64_t>(longest, s.known) + limits_.max_draft + 1);
    s.sampling = o.sampling;
    s.stop = std::move(o.stop);
    s.speculate = o.speculate;
    s.banned = s.stop.stop_ids;
    s.banned.push_back(facts_.eos);
    if (o.imported.rows > 0) import_sequence(s, o);
    if (o.windows.position > 0) {
      read_snapshot(*model_, *ops_, where_, *state_, o.slot.value, o.windows.position, snapshot_bytes(o.windows.place));
      s.committed = s.windows_from = o.windows.position;
      s.window_floor = o.windows.position - facts_.window;
    }
  }
  for (const sequence_step& step : plan_.sequences) {
    slot_state& s = slots_[step.slot.value];
    auto table = state_->table(step.slot.value);
    for (page_id p : step.pages) {
      // A page that starts before write_global_from was filled by the caller; the others start empty.
      if (s.pages * facts_.window >= step.write_global_from)
        std::memset(page_memory_.data() + size_t{p.value} * facts_.page_bytes, 0, facts_.page_bytes);
      table[s.pages++] = p.value;
    }
  }
}

void step_engine::import_sequence(slot_state& s, const sequence_open& o) {
  auto head = head_of(*model_, facts_, o.imported.rows, handoff_place(o.imported.state));
  TROUPE_CHECK(head.has_value(), "a state that was checked when its plan was submitted has changed: {}",
               head.error().message);
  read_handoff(*model_, *ops_, where_, *state_, o.slot.value, *head, handoff_place(o.imported.state));
  auto table = state_->table(o.slot.value);
  for (page_id p : o.imported.pages) table[s.pages++] = p.value;
  s.committed = head->rows;
  s.window_floor = head->window_floor;
  s.decoder_floor = head->decoder_floor;
  s.context_floor = head->context_floor;
  s.context_end = head->context_end;
}

// Reports the running plan and those behind it as failed, and waits for a new group.
void step_engine::fail_step(error e) {
  std::vector<step_plan> dropped;
  const std::vector<uint32_t> suspects = group_->suspects();
  {
    std::lock_guard lock(mutex_);
    parked_ = nullptr;
    for (step_plan& p : queue_) dropped.push_back(std::move(p));
    queue_.clear();
    failed_ = !regrouping_;
    resync();
  }
  drop_group();
  auto report = [&](uint64_t plan, bool applied) {
    step_result r;
    r.plan = plan;
    r.step = group_step_;
    r.regroups = group_number_;
    r.plan_done = plan != 0;
    r.failure = e.code;
    r.failure_text = e.message;
    r.suspects = suspects;
    r.applied = applied;
    if (applied && steps_done_ == 0) r.closed = plan_.close;  // later steps: already reported
    sink_(std::move(r));
  };
  if (has_plan_) {
    has_plan_ = false;
    report(plan_.id, true);
  } else if (dropped.empty()) {
    report(0, false);  // no plan was running: the scheduler still has to know
  }
  for (const step_plan& p : dropped) report(p.id, false);
}

// After plans were dropped: what is planned is what is.
void step_engine::resync() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const slot_state& s = slots_[i];
    planned_.slots[i] = {
        s.open, s.known == s.committed + 1 && s.known > s.prompt_length, s.committed, s.known, s.pages, s.windows_from};
    if (!s.open) planned_.slots[i] = {};
  }
}

}  // namespace troupe::kernels
