#include "kernels/engine/expert_moves.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kernels {

result<void> check_placement(const model& m, const ep::placement& placement, uint32_t ranks) {
  const model_config& c = m.config;
  if (placement.copies.size() != m.plan.moe_layers)
    return fail(errc::invalid_argument, "placement: {} MoE layers, the model has {}", placement.copies.size(),
                m.plan.moe_layers);
  for (uint32_t l = 0; l < m.plan.moe_layers; ++l) {
    const uint32_t experts = l < c.num_hidden_layers ? c.n_routed_experts : c.dspark_n_routed_experts;
    if (placement.copies[l].size() != experts)
      return fail(errc::invalid_argument, "placement: layer {} lists {} experts, the model has {}", l,
                  placement.copies[l].size(), experts);
    for (uint32_t e = 0; e < experts; ++e) {
      if (placement.copies[l][e].empty())
        return fail(errc::invalid_argument, "placement: layer {} expert {} has no copy", l, e);
      for (uint32_t r : placement.copies[l][e])
        if (r >= ranks)
          return fail(errc::invalid_argument, "placement: layer {} expert {} is on rank {} of {}", l, e, r, ranks);
    }
  }
  return {};
}

expert_moves::expert_moves(const model& m, operators& ops, place where, uint32_t slots, ep::split_options split)
    : model_(m),
      ops_(ops),
      where_(where),
      slots_(slots ? slots : m.config.num_hidden_layers * m.config.n_routed_experts),
      split_(split) {}

result<void> expert_moves::stage(placement_move move) {
  const uint32_t layers = model_.config.num_hidden_layers;
  std::shared_ptr<const ep::placement> active;
  uint32_t ranks, rank;
  {
    std::lock_guard lock(mutex_);
    if (!active_) return fail(errc::unavailable, "placement {}: the engine has no group", move.to.version.value);
    if (move.regroups != regroups_)
      return fail(errc::stale, "placement {} is for group {} of this engine, which runs in {}", move.to.version.value,
                  move.regroups, regroups_);
    active = active_;
    ranks = ranks_;
    rank = rank_;
  }
  if (move.from != active->version || move.to.version <= active->version)
    return fail(errc::stale, "placement {} is to follow {}, in force is {}", move.to.version.value, move.from.value,
                active->version.value);
  if (move.loads_per_step == 0 || move.to.copies.size() != layers)
    return fail(errc::invalid_argument, "placement {}: {} layers of {}, {} loads per step", move.to.version.value,
                move.to.copies.size(), layers, move.loads_per_step);
  // The drafter's experts stay where they are.
  move.to.copies.insert(move.to.copies.end(), active->copies.begin() + layers, active->copies.end());
  if (auto ok = check_placement(model_, move.to, ranks); !ok) return ok;
  auto next = std::make_shared<const ep::placement>(std::move(move.to));
  ep::expert_table table(*next, ranks, rank, split_);
  const ep::expert_table now(*active, ranks, rank);
  std::vector<expert_at> loads;
  for (uint32_t l = 0; l < layers; ++l)
    for (uint32_t e = 0; e < model_.config.n_routed_experts; ++e)
      if (table.holds(l, e) && !now.holds(l, e)) loads.push_back({l, e});

  std::lock_guard lock(mutex_);
  if (active_ != active) return fail(errc::stale, "placement {}: the group has changed meanwhile", next->version.value);
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {}: {} is about to take effect", next->version.value,
                next_->version.value);
  if (copies_ + loads.size() > slots_)
    return fail(errc::exhausted, "placement {}: {} experts are to be loaded beside {}, in {} slots",
                next->version.value, loads.size(), copies_, slots_);
  next_ = std::move(next);
  next_table_ = std::move(table);
  to_load_ = std::move(loads);
  loaded_ = 0;
  loads_per_step_ = move.loads_per_step;
  phase_ = to_load_.empty() ? move_phase::staged : move_phase::loading;
  return {};
}

result<void> expert_moves::flip(placement_version version) {
  std::lock_guard lock(mutex_);
  if (active_ && active_->version == version) return {};
  if (phase_ < move_phase::staged || next_->version != version)
    return fail(errc::stale, "placement {} is not staged here", version.value);
  phase_ = move_phase::flipping;
  return {};
}

result<void> expert_moves::drop(placement_version version) {
  std::lock_guard lock(mutex_);
  if (phase_ == move_phase::none || next_->version != version) return {};
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {} is about to take effect", version.value);
  phase_ = move_phase::none;
  return {};
}

placement_status expert_moves::status() const {
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
  s.to_load = static_cast<uint32_t>(to_load_.size());
  s.copies += s.to_load;
  return s;
}

expert_window expert_moves::take(uint64_t min_steps) {
  std::lock_guard lock(mutex_);
  window_.regroups = regroups_;
  window_.placement = active_ ? active_->version : placement_version{};
  if (window_.steps < min_steps) {
    expert_window only;
    only.regroups = regroups_;
    only.steps = window_.steps;
    only.placement = window_.placement;
    only.received_steps = window_.received_steps;
    return only;
  }
  return std::exchange(window_, {});
}

void expert_moves::enter(ep::placement first, uint32_t ranks, uint32_t rank, uint64_t regroups) {
  auto active = std::make_shared<const ep::placement>(std::move(first));
  ep::expert_table table(*active, ranks, rank, split_);
  std::lock_guard lock(mutex_);
  active_ = std::move(active);
  table_ = std::move(table);
  ranks_ = ranks;
  rank_ = rank;
  regroups_ = regroups;
  copies_ = table_.copies_here(model_.config.num_hidden_layers);
  phase_ = move_phase::none;
  window_ = {};
}

void expert_moves::leave() {
  std::lock_guard lock(mutex_);
  active_ = nullptr;
  phase_ = move_phase::none;
}

void expert_moves::load() {
  std::vector<expert_at> now;
  placement_version version;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != move_phase::loading) return;
    const size_t n = std::min<size_t>(loads_per_step_, to_load_.size() - loaded_);
    now.assign(to_load_.begin() + loaded_, to_load_.begin() + static_cast<ptrdiff_t>(loaded_ + n));
    version = next_->version;
  }
  for (const expert_at& e : now) ops_.fetch_expert(where_, model_.weights.layers[e.layer].experts[e.expert]);
  ops_.synchronise(where_);
  std::lock_guard lock(mutex_);
  if (phase_ != move_phase::loading || next_->version != version) return;  // dropped or replaced meanwhile
  loaded_ += static_cast<uint32_t>(now.size());
  if (loaded_ == to_load_.size()) phase_ = move_phase::staged;
}

void expert_moves::announce(ep::step_header& header, uint64_t step) const {
  std::lock_guard lock(mutex_);
  header.moving = phase_ == move_phase::loading;
  if (phase_ != move_phase::flipping) return;
  header.flip_step = step;
  header.flip_version = next_->version;
}

result<void> expert_moves::adopt(const ep::step_header& agreed, uint64_t step) {
  if (agreed.flip_step == ep::step_header::no_flip) return {};
  std::lock_guard lock(mutex_);
  if (phase_ < move_phase::staged || next_->version != agreed.flip_version || agreed.flip_step != step)
    return fail(errc::stale, "step {}: the group takes placement {} at step {}, which is not staged here", step,
                agreed.flip_version.value, agreed.flip_step);
  std::swap(table_, next_table_);
  active_ = std::move(next_);
  copies_ = table_.copies_here(model_.config.num_hidden_layers);
  phase_ = move_phase::none;
  ++flips_;
  window_.received.assign(window_.received.size(), 0);
  window_.received_steps = 0;
  return {};
}

void expert_moves::finish_step(forward_pass& forward) {
  table_.end_step();
  std::lock_guard lock(mutex_);
  forward.take_loads(window_.loads, window_.received);
  ++window_.steps;
  ++window_.received_steps;
}

}  // namespace troupe::kernels
