#include "kernels/engine/cost_moves.hpp"

#include <algorithm>
#include <utility>

#include "kernels/engine/cost_engine.hpp"

namespace troupe::kernels {

cost_moves::cost_moves(const model& outline, uint32_t slots)
    : outline_(outline), shape_(experts_of(outline)), state_(outline, slots) {}

std::shared_ptr<const ep::placement> cost_moves::kept(ep::placement p) const {
  return seat_ ? seat_->intern(std::move(p)) : std::make_shared<const ep::placement>(std::move(p));
}

bool cost_moves::holds(const ep::placement& p, uint32_t layer, uint32_t expert, uint32_t rank) const {
  const auto& copies = p.copies[layer][expert];
  return std::binary_search(copies.begin(), copies.end(), rank);
}

uint32_t cost_moves::copies_of(const ep::placement& p, uint32_t rank) const {
  uint32_t n = 0;
  for (uint32_t l = 0; l < shape_.layers; ++l)
    for (uint32_t e = 0; e < shape_.experts; ++e) n += holds(p, l, e, rank);
  return n;
}

result<void> cost_moves::stage(placement_move move) {
  std::lock_guard lock(mutex_);
  const uint32_t loads_per_step = move.loads_per_step;
  TROUPE_TRY(auto to, state_.target(std::move(move)));
  uint32_t loads = 0;
  for (uint32_t l = 0; l < shape_.layers; ++l)
    for (uint32_t e = 0; e < shape_.experts; ++e)
      loads += holds(to, l, e, state_.rank()) && !holds(*state_.active(), l, e, state_.rank());
  return state_.begin(kept(std::move(to)), loads, loads_per_step);
}

result<void> cost_moves::flip(placement_version version) {
  std::lock_guard lock(mutex_);
  return state_.flip(version);
}

result<void> cost_moves::drop(placement_version version) {
  std::lock_guard lock(mutex_);
  return state_.drop(version);
}

placement_status cost_moves::status() const {
  std::lock_guard lock(mutex_);
  return state_.status();
}

std::shared_ptr<const ep::placement> cost_moves::active() const {
  std::lock_guard lock(mutex_);
  return state_.active();
}

expert_window cost_moves::take(uint64_t min_steps) {
  std::lock_guard lock(mutex_);
  expert_window w;
  w.regroups = state_.regroups();
  w.steps = own_.steps;
  const auto& active = state_.active();
  w.placement = active ? active->version : placement_version{};
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
      w.received[l] = group_.drafts * shape_.draft_top_k / std::max(1u, state_.ranks());
      continue;
    }
    const bool encoder = l < shape_.encoder_layers;
    w.loads[l].resize(shape_.experts);
    if (!use_) continue;
    use_->add(l, encoder ? own_.rows : own_.decoder_rows, w.loads[l]);
    const uint64_t pairs = (encoder ? group_.rows : group_.decoder_rows) * shape_.top_k;
    if (active) w.received[l] = pairs * use_->share(*active, l, state_.rank()) / 1'000'000;
  }
  own_ = group_ = {};
  return w;
}

void cost_moves::enter(ep::placement first, uint32_t ranks, uint32_t rank, uint64_t regroups, cost_seat* seat) {
  std::lock_guard lock(mutex_);
  seat_ = seat;
  auto active = kept(std::move(first));
  const uint32_t copies = copies_of(*active, rank);
  state_.enter(std::move(active), copies, ranks, rank, regroups);
  own_ = group_ = {};
}

void cost_moves::leave() {
  std::lock_guard lock(mutex_);
  state_.leave();
  seat_ = nullptr;
}

void cost_moves::load() {
  std::lock_guard lock(mutex_);
  if (state_.loading()) state_.loaded(state_.next_loads());
}

void cost_moves::announce(ep::step_header& header, uint64_t step) const {
  std::lock_guard lock(mutex_);
  state_.announce(header, step);
}

result<void> cost_moves::adopt(const ep::step_header& agreed, uint64_t step) {
  std::lock_guard lock(mutex_);
  TROUPE_TRY(const bool flips, state_.flips_at(agreed, step));
  if (!flips) return {};
  state_.take_effect(copies_of(*state_.next(), state_.rank()));
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
