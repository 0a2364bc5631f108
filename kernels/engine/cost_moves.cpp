#include "kernels/engine/cost_moves.hpp"

#include <algorithm>
#include <utility>

#include "kernels/engine/cost_engine.hpp"
#include "kernels/engine/expert_moves.hpp"

namespace troupe::kernels {

cost_moves::cost_moves(const model& outline, uint32_t slots)
    : outline_(outline), shape_(experts_of(outline)), slots_(slots ? slots : shape_.layers * shape_.experts) {}

std::shared_ptr<const ep::placement> cost_moves::kept(ep::placement p) const {
  return seat_ ? seat_->intern(std::move(p)) : std::make_shared<const ep::placement>(std::move(p));
}

bool cost_moves::holds(const ep::placement& p, uint32_t layer, uint32_t expert) const {
  const auto& copies = p.copies[layer][expert];
  return std::binary_search(copies.begin(), copies.end(), rank_);
}

uint32_t cost_moves::copies_of(const ep::placement& p) const {
  uint32_t n = 0;
  for (uint32_t l = 0; l < shape_.layers; ++l)
    for (uint32_t e = 0; e < shape_.experts; ++e) n += holds(p, l, e);
  return n;
}

result<void> cost_moves::stage(placement_move move) {
  std::lock_guard lock(mutex_);
  if (!active_) return fail(errc::unavailable, "placement {}: the engine has no group", move.to.version.value);
  if (move.regroups != regroups_)
    return fail(errc::stale, "placement {} is for group {} of this engine, which runs in {}", move.to.version.value,
                move.regroups, regroups_);
  if (move.from != active_->version || move.to.version <= active_->version)
    return fail(errc::stale, "placement {} is to follow {}, in force is {}", move.to.version.value, move.from.value,
                active_->version.value);
  if (move.loads_per_step == 0 || move.to.copies.size() != shape_.layers)
    return fail(errc::invalid_argument, "placement {}: {} layers of {}, {} loads per step", move.to.version.value,
                move.to.copies.size(), shape_.layers, move.loads_per_step);
  // The drafter's experts stay where they are.
  move.to.copies.insert(move.to.copies.end(), active_->copies.begin() + shape_.layers, active_->copies.end());
  if (auto ok = check_placement(outline_, move.to, ranks_); !ok) return ok;
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {}: {} is about to take effect", move.to.version.value,
                next_->version.value);
  uint32_t loads = 0;
  for (uint32_t l = 0; l < shape_.layers; ++l)
    for (uint32_t e = 0; e < shape_.experts; ++e) loads += holds(move.to, l, e) && !holds(*active_, l, e);
  if (copies_ + loads > slots_)
    return fail(errc::exhausted, "placement {}: {} experts are to be loaded beside {}, in {} slots",
                move.to.version.value, loads, copies_, slots_);
  next_ = kept(std::move(move.to));
  to_load_ = loads;
  loaded_ = 0;
  loads_per_step_ = move.loads_per_step;
  phase_ = loads == 0 ? move_phase::staged : move_phase::loading;
  return {};
}

result<void> cost_moves::flip(placement_version version) {
  std::lock_guard lock(mutex_);
  if (active_ && active_->version == version) return {};
  if (phase_ < move_phase::staged || next_->version != version)
    return fail(errc::stale, "placement {} is not staged here", version.value);
  phase_ = move_phase::flipping;
  return {};
}

result<void> cost_moves::drop(placement_version version) {
  std::lock_guard lock(mutex_);
  if (phase_ == move_phase::none || next_->version != version) return {};
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {} is about to take effect", version.value);
  phase_ = move_phase::none;
  return {};
}

placement_status cost_moves::status() const {
  std::lock_guard lock(mutex_);
  placement_status s;
  s.regroups = regroups_;
  s.active = active_;
  s.ranks = ranks_;
  s.rank = rank_;
  s.phase = phase_;
  s.copies = copies_;
  s.slots = slots_;
  s.flips = flips_;
  if (phase_ == move_phase::none) return s;
  s.next = next_->version;
  s.loaded = loaded_;
  s.to_load = to_load_;
  s.copies += s.to_load;
  return s;
}

std::shared_ptr<const ep::placement> cost_moves::active() const {
  std::lock_guard lock(mutex_);
  return active_;
}

expert_window cost_moves::take(uint64_t min_steps) {
  std::lock_guard lock(mutex_);
  expert_window w;
  w.regroups = regroups_;
  w.steps = own_.steps;
  w.placement = active_ ? active_->version : placement_version{};
  w.received_steps = group_.steps;
  if (own_.steps < min_steps) return w;
  const uint32_t all = shape_.layers + shape_.draft_layers;
  w.loads.resize(all);
  w.received.resize(all);
  for (uint32_t l = 0; l < all; ++l) {
    if (l >= shape_.layers) {  // drafters' experts are used evenly, and never moved
      const uint64_t pairs = own_.drafts * shape_.draft_top_k;
      for (uint64_t e = 0; e < shape_.draft_experts; ++e)
        w.loads[l].push_back(pairs * (e + 1) / shape_.draft_experts - pairs * e / shape_.draft_experts);
      w.received[l] = group_.drafts * shape_.draft_top_k / std::max(1u, ranks_);
      continue;
    }
    const bool encoder = l < shape_.encoder_layers;
    w.loads[l].resize(shape_.experts);
    if (!use_) continue;
    use_->add(l, encoder ? own_.rows : own_.decoder_rows, w.loads[l]);
    const uint64_t pairs = (encoder ? group_.rows : group_.decoder_rows) * shape_.top_k;
    if (active_) w.received[l] = pairs * use_->share(*active_, l, rank_) / 1'000'000;
  }
  own_ = group_ = {};
  return w;
}

void cost_moves::enter(ep::placement first, uint32_t ranks, uint32_t rank, uint64_t regroups, cost_seat* seat) {
  std::lock_guard lock(mutex_);
  seat_ = seat;
  active_ = kept(std::move(first));
  ranks_ = ranks;
  rank_ = rank;
  regroups_ = regroups;
  copies_ = copies_of(*active_);
  phase_ = move_phase::none;
  own_ = group_ = {};
}

void cost_moves::leave() {
  std::lock_guard lock(mutex_);
  active_ = nullptr;
  seat_ = nullptr;
  phase_ = move_phase::none;
}

void cost_moves::load() {
  std::lock_guard lock(mutex_);
  if (phase_ != move_phase::loading) return;
  loaded_ = std::min(to_load_, loaded_ + loads_per_step_);
  if (loaded_ == to_load_) phase_ = move_phase::staged;
}

void cost_moves::announce(ep::step_header& header, uint64_t step) const {
  std::lock_guard lock(mutex_);
  header.moving = phase_ == move_phase::loading;
  if (phase_ != move_phase::flipping) return;
  header.flip_step = step;
  header.flip_version = next_->version;
}

result<void> cost_moves::adopt(const ep::step_header& agreed, uint64_t step) {
  if (agreed.flip_step == ep::step_header::no_flip) return {};
  std::lock_guard lock(mutex_);
  if (phase_ < move_phase::staged || next_->version != agreed.flip_version || agreed.flip_step != step)
    return fail(errc::stale, "step {}: the group takes placement {} at step {}, which is not staged here", step,
                agreed.flip_version.value, agreed.flip_step);
  active_ = std::move(next_);
  copies_ = copies_of(*active_);
  phase_ = move_phase::none;
  ++flips_;
  group_ = {};
  return {};
}

void cost_moves::finish_step(const cost_step& step, const policies::step_work& mine) {
  std::lock_guard lock(mutex_);
  use_ = step.use;
  ++own_.steps;
  own_.rows += mine.rows;
  own_.decoder_rows += mine.decoder_rows;
  own_.drafts += uint64_t{mine.drafting} * outline_.config.dspark_block_size;
  ++group_.steps;
  group_.rows += step.rows;
  group_.decoder_rows += step.decoder_rows;
  group_.drafts += step.drafting * outline_.config.dspark_block_size;
}

}  // namespace troupe::kernels
