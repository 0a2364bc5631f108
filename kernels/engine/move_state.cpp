#include "kernels/engine/move_state.hpp"

#include <algorithm>
#include <utility>

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

result<ep::placement> move_state::target(placement_move move) const {
  const uint32_t layers = model_.config.num_hidden_layers;
  const auto version = move.to.version.value;
  if (!active_) return fail(errc::unavailable, "placement {}: the engine has no group", version);
  if (move.regroups != regroups_)
    return fail(errc::stale, "placement {} is for group {} of this engine, which runs in {}", version, move.regroups,
                regroups_);
  if (move.from != active_->version || move.to.version <= active_->version)
    return fail(errc::stale, "placement {} is to follow {}, in force is {}", version, move.from.value,
                active_->version.value);
  if (move.loads_per_step == 0 || move.to.copies.size() != layers)
    return fail(errc::invalid_argument, "placement {}: {} layers of {}, {} loads per step", version,
                move.to.copies.size(), layers, move.loads_per_step);
  move.to.copies.insert(move.to.copies.end(), active_->copies.begin() + layers, active_->copies.end());
  if (auto ok = check_placement(model_, move.to, ranks_); !ok) return fail(ok.error());
  return std::move(move.to);
}

result<void> move_state::begin(shared_placement next, uint32_t loads, uint32_t loads_per_step) {
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {}: {} is about to take effect", next->version.value,
                next_->version.value);
  if (copies_ + loads > slots_)
    return fail(errc::exhausted, "placement {}: {} experts are to be loaded beside {}, in {} slots",
                next->version.value, loads, copies_, slots_);
  next_ = std::move(next);
  to_load_ = loads;
  loaded_ = 0;
  loads_per_step_ = loads_per_step;
  phase_ = loads == 0 ? move_phase::staged : move_phase::loading;
  return {};
}

result<void> move_state::flip(placement_version version) {
  if (active_ && active_->version == version) return {};
  if (phase_ < move_phase::staged || next_->version != version)
    return fail(errc::stale, "placement {} is not staged here", version.value);
  phase_ = move_phase::flipping;
  return {};
}

result<void> move_state::drop(placement_version version) {
  if (phase_ == move_phase::none || next_->version != version) return {};
  if (phase_ == move_phase::flipping)
    return fail(errc::unavailable, "placement {} is about to take effect", version.value);
  phase_ = move_phase::none;
  return {};
}

placement_status move_state::status() const {
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

void move_state::enter(shared_placement first, uint32_t copies, uint32_t ranks, uint32_t rank, uint64_t regroups) {
  active_ = std::move(first);
  copies_ = copies;
  ranks_ = ranks;
  rank_ = rank;
  regroups_ = regroups;
  phase_ = move_phase::none;
}

void move_state::leave() {
  active_ = nullptr;
  phase_ = move_phase::none;
}

void move_state::loaded(uint32_t experts) {
  loaded_ += experts;
  if (loaded_ == to_load_) phase_ = move_phase::staged;
}

void move_state::announce(ep::step_header& header, uint64_t step) const {
  header.moving = loading();
  if (phase_ != move_phase::flipping) return;
  header.flip_step = step;
  header.flip_version = next_->version;
}

result<bool> move_state::flips_at(const ep::step_header& agreed, uint64_t step) const {
  if (agreed.flip_step == ep::step_header::no_flip) return false;
  if (phase_ < move_phase::staged || next_->version != agreed.flip_version || agreed.flip_step != step)
    return fail(errc::stale, "step {}: the group takes placement {} at step {}, which is not staged here", step,
                agreed.flip_version.value, agreed.flip_step);
  return true;
}

void move_state::take_effect(uint32_t copies) {
  active_ = std::move(next_);
  copies_ = copies;
  phase_ = move_phase::none;
  ++flips_;
}

}  // namespace troupe::kernels
