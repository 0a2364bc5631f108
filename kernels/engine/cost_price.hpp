// What a step of a group of cost engines takes: the cost model, the use of experts and the placement in force together.
#pragma once

#include <memory>
#include <span>

#include "kernels/engine/cost_experts.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kernels {

/// Not thread safe.
class cost_price {
 public:
  /// not_found for the fabric.
  static result<cost_price> make(std::shared_ptr<const policies::cost_model> model, const std::string& fabric,
                                 const expert_shape& experts, uint64_t seed);

  /// Of step number `step` of a group of `ranks`, of which `work` are listed; `places` may be null (evenly spread).
  policies::step_cost_parts operator()(std::span<const policies::step_work> work, uint32_t ranks,
                                       const std::shared_ptr<const ep::placement>& places, uint64_t step, bool draft);

  /// By the placement of the last step.
  uint32_t imbalance_permille() const { return imbalance_; }
  /// How experts were used in the last step; null before the first and where the model has none.
  const std::shared_ptr<const expert_use>& use() const { return use_; }
  const policies::cost_model& model() const { return *model_; }

 private:
  std::shared_ptr<const policies::cost_model> model_;
  const policies::fabric* over_ = nullptr;
  expert_shape experts_;
  uint64_t seed_ = 0, drift_ = 0;
  std::shared_ptr<const expert_use> use_;
  std::shared_ptr<const ep::placement> places_;  // of imbalance_ and slots_
  uint32_t imbalance_ = 1000, slots_ = 0;
};

}  // namespace troupe::kernels
