// The expert site of the forward pass: router, exchange with the group, experts, ordered sum.
#include <algorithm>

#include "kernels/model/forward.hpp"

namespace troupe::kernels {

// From the site's normalised input u: which experts its rows go to. Which copy of an expert a row goes to is the
// table's choice; the result does not depend on it, because each (row, expert) vector is computed alone and the vectors
// are added in the order of the row's list.
result<void> forward_pass::send_rows(ep::group& group, ep::expert_table& table, const micro_batch& b,
                                     uint32_t moe_layer, const layer_weights& w, uint32_t n, uint32_t k,
                                     const uint32_t* positions) {
  const uint32_t h = c_.hidden_size, experts = static_cast<uint32_t>(w.experts.size());
  ops_.linear(where_, b.u, n, w.gate, router_);
  ops_.route(where_, router_, n, experts, w.gate_bias, static_cast<float>(c_.gate_temp), k,
             static_cast<float>(c_.routed_scaling_factor), route_ids_, route_weights_);
  if (probe_ && moe_layer < c_.num_hidden_layers) {
    probe_->see(probe_point::router_ids, moe_layer, route_ids_, n, k);
    probe_->see(probe_point::router_weights, moe_layer, route_weights_, n, k);
  }
  auto& loads = step_loads_[moe_layer];
  for (uint32_t row = 0; row < n; ++row)
    for (uint32_t i = 0; i < k; ++i) {
      const size_t at = size_t{row} * k + i;
      const uint32_t expert = route_ids_[at];
      routes_[at] = {table.choose(moe_layer, expert, positions[row]), expert, route_weights_[at]};
      ++loads[expert];
    }
  const int64_t start = now();
  auto sent = group.dispatch_send(b.number, moe_layer, {b.u, size_t{n} * h}, {routes_.data(), size_t{n} * k}, k);
  times_.dispatch += now() - start;
  return sent;
}

result<void> forward_pass::run_experts(ep::group& group, ep::expert_table& table, const micro_batch& b,
                                       uint32_t moe_layer, const layer_weights& w, uint32_t n, uint32_t k) {
  const uint32_t h = c_.hidden_size, experts = static_cast<uint32_t>(w.experts.size());
  int64_t start = now();
  auto sent = group.dispatch_wait(b.number);
  if (!sent) return fail(std::move(sent.error()));
  int64_t end = now();
  times_.dispatch += end - start;
  start = end;
  const uint32_t items = static_cast<uint32_t>(sent->items.size());
  if (items > expert_capacity_) {  // grows to the largest exchange seen
    if (expert_out_)
      ops_.release(where_, reinterpret_cast<std::byte*>(expert_out_), expert_capacity_ * h * sizeof(float));
    expert_capacity_ = std::max<size_t>(items, 2 * expert_capacity_);
    expert_out_ = reinterpret_cast<float*>(ops_.allocate(where_, expert_capacity_ * h * sizeof(float)));
    if (!expert_out_) {
      expert_capacity_ = 0;
      return fail(errc::exhausted, "no memory for {} expert outputs of {} values", items, h);
    }
  }
  items_.resize(items);
  for (uint32_t i = 0; i < items; ++i) {
    const auto& item = sent->items[i];
    if (item.expert >= experts || size_t{item.row} * h >= sent->rows.size())
      return fail(errc::corrupt, "expert exchange {}: item {} names expert {} of {}, row {} of {}", moe_layer, i,
                  item.expert, experts, item.row, sent->rows.size() / h);
    if (!table.holds(moe_layer, item.expert))
      return fail(errc::stale, "expert exchange {}: a row came for expert {}, of which placement {} has no copy here",
                  moe_layer, item.expert, table.version().value);
    items_[i] = {item.row, item.expert, item.weight};
  }
  step_received_[moe_layer] += items;
  const auto notes = table.count(moe_layer, sent->items);
  const float limit = static_cast<float>(c_.swiglu_limit);
  ops_.expert_mlp(where_, sent->rows.data(), items_.data(), items, w.experts.data(), experts, limit, expert_out_);
  end = now();
  times_.experts += end - start;
  start = end;
  if (auto r = group.combine_send(b.number, moe_layer, {expert_out_, size_t{items} * h}, {b.parts, size_t{n} * k * h},
                                  notes);
      !r)
    return r;
  end = now();
  times_.combine += end - start;
  start = end;
  // The shared expert runs at home, while the vectors of the others are on their way.
  ops_.expert_mlp(where_, b.u, shared_items_.data(), n, &w.shared, 1, limit, b.shared);
  times_.experts += now() - start;
  return {};
}

// To the sublayer's output y_.
result<void> forward_pass::add_up(ep::group& group, ep::expert_table& table, micro_batch& b, uint32_t moe_layer,
                                  uint32_t n, uint32_t k) {
  const int64_t start = now();
  if (auto r = group.combine_wait(b.number); !r) return r;
  table.learn(moe_layer, group, b.number);
  const int64_t end = now();
  times_.combine += end - start;
  ops_.combine_add(where_, b.parts, n, k, c_.hidden_size, b.shared, y_);
  times_.experts += now() - end;
  return {};
}

}  // namespace troupe::kernels
