#include "kernels/engine/expert_moves.hpp"

#include <utility>

namespace troupe::kernels {

expert_moves::expert_moves(const model& m, operators& ops, place where, uint32_t slots, ep::split_options split)
    : model_(m), ops_(ops), where_(where), split_(split), state_(m, slots) {}

result<void> expert_moves::stage(placement_move move) {
  const uint32_t layers = model_.config.num_hidden_layers, loads_per_step = move.loads_per_step;
  move_state::shared_placement active, next;
  uint32_t ranks, rank;
  {
    std::lock_guard lock(mutex_);
    TROUPE_TRY(auto to, state_.target(std::move(move)));
    next = std::make_shared<const ep::placement>(std::move(to));
    active = state_.active();
    ranks = state_.ranks();
    rank = state_.rank();
  }
  ep::expert_table table(*next, ranks, rank, split_);
  const ep::expert_table now(*active, ranks, rank);
  std::vector<expert_at> loads;
  for (uint32_t l = 0; l < layers; ++l)
    for (uint32_t e = 0; e < model_.config.n_routed_experts; ++e)
      if (table.holds(l, e) && !now.holds(l, e)) loads.push_back({l, e});

  std::lock_guard lock(mutex_);
  if (state_.active() != active)
    return fail(errc::stale, "placement {}: the group has changed meanwhile", next->version.value);
  if (auto ok = state_.begin(std::move(next), static_cast<uint32_t>(loads.size()), loads_per_step); !ok) return ok;
  next_table_ = std::move(table);
  to_load_ = std::move(loads);
  return {};
}

result<void> expert_moves::flip(placement_version version) {
  std::lock_guard lock(mutex_);
  return state_.flip(version);
}

result<void> expert_moves::drop(placement_version version) {
  std::lock_guard lock(mutex_);
  return state_.drop(version);
}

placement_status expert_moves::status() const {
  std::lock_guard lock(mutex_);
  return state_.status();
}

expert_window expert_moves::take(uint64_t min_steps) {
  std::lock_guard lock(mutex_);
  window_.regroups = state_.regroups();
  window_.placement = state_.active() ? state_.active()->version : placement_version{};
  if (window_.steps < min_steps) {
    expert_window only;
    only.regroups = window_.regroups;
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
  table_ = std::move(table);
  state_.enter(std::move(active), table_.copies_here(model_.config.num_hidden_layers), ranks, rank, regroups);
  window_ = {};
}

void expert_moves::leave() {
  std::lock_guard lock(mutex_);
  state_.leave();
}

void expert_moves::load() {
  std::vector<expert_at> now;
  placement_version version;
  {
    std::lock_guard lock(mutex_);
    if (!state_.loading()) return;
    const auto from = to_load_.begin() + state_.done_loads();
    now.assign(from, from + state_.next_loads());
    version = state_.next()->version;
  }
  for (const expert_at& e : now) ops_.fetch_expert(where_, model_.weights.layers[e.layer].experts[e.expert]);
  ops_.synchronise(where_);
  std::lock_guard lock(mutex_);
  if (!state_.loading() || state_.next()->version != version) return;  // dropped or replaced meanwhile
  state_.loaded(static_cast<uint32_t>(now.size()));
}

void expert_moves::announce(ep::step_header& header, uint64_t step) const {
  std::lock_guard lock(mutex_);
  state_.announce(header, step);
}

result<void> expert_moves::adopt(const ep::step_header& agreed, uint64_t step) {
  if (agreed.flip_step == ep::step_header::no_flip) return {};
  std::lock_guard lock(mutex_);
  if (auto flips = state_.flips_at(agreed, step); !flips) return fail(flips.error());
  std::swap(table_, next_table_);
  state_.take_effect(table_.copies_here(model_.config.num_hidden_layers));
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
