// What moving experts is worth on a model's real routing: a group of ranks as threads of this process answers requests
// while its experts are placed anew after every window of steps, the way actors/serving/eplb_rebalancer does it.
#pragma once

#include <memory>
#include <vector>

#include "kernels/measure/engine_runner.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels::measure {

/// The group and its windows.
struct balance_options {
  uint32_t ranks = 4;       // at least 2; each with one thread of its own and `slots` requests at once
  uint32_t redundant = 1;   // expert slots per rank and layer beyond its share
  uint32_t interval = 200;  // steps of a window
  uint32_t windows = 4;     // the first under the placement without knowledge
  uint32_t split_window = 0;
  uint32_t slots = 16;
  uint32_t loads_per_step = 4;
  uint32_t context = 4096;
  double min_gain = 0.01;
};

/// One window and the plan that was made from it. lb = busiest rank over mean rank, mean over layers (worst: of the
/// worst layer).
struct balance_window {
  uint64_t steps = 0, rows = 0;            // rows: sent to experts, over all ranks and layers
  placement_version placement;             // in force
  double lb = 0, lb_worst = 0;             // of the rows that came
  double plan_before = 0, plan_after = 0;  // of the window's counts under the placement before and after, split evenly
  uint32_t moved = 0;                      // experts loaded for the next placement; 0: it stays
  uint64_t move_steps = 0;                 // steps from the plan to the flip
  std::vector<double> layer_lb;            // lb of every layer
  std::vector<double> layer_plan;          // plan_after of every layer
  double step_us = 0;                      // mean length of a step
  double busiest_expert_us = 0,
         mean_expert_us = 0;  // processor time in experts per step, of the rank that needs most, and on average
};

/// Runs windows over `requests`, which are repeated as needed. Errors are the engines'; invalid_argument for fewer than
/// two ranks or no request.
result<std::vector<balance_window>> measure_balance(std::shared_ptr<const model> weights,
                                                    const std::vector<request>& requests,
                                                    const balance_options& options);

}  // namespace troupe::kernels::measure
