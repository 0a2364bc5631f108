// What a day of serving costs and earns.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Amounts in US$, tokens in millions. All finite, >= 0.
struct economics_input {
  double hit_price = 0.003, miss_price = 0.15,
         output_price = 0.60;  // per million tokens; default: V4.1-Flash off peak, 27 Oct 2026
  double gpu_hour_cost = 2;
  double storage_tb = 0, storage_tb_month_cost = 0;  // 730 hours a month
  double hours = 24, gpus = 0;
  double input_mtokens = 0;  // hits included
  double hit_ratio = 0;      // 0..1, of input tokens
  double output_mtokens = 0;
};

/// The account. Ratios whose divisor is 0 are 0.
struct economics_plan {
  double revenue = 0, cost = 0, profit = 0;
  double gpu_cost = 0, storage_cost = 0;
  double margin_on_cost = 0;  // profit / cost: what the V3/R1 overview calls cost profit margin
  double revenue_per_gpu_hour = 0, cost_per_gpu_hour = 0;
  double revenue_per_mtoken = 0, cost_per_mtoken = 0;  // over input and output
  double cost_per_output_mtoken = 0;
  double saved_by_hits = 0;  // what clients pay less because of hits
  std::string reason;
};

/// Plain sums: revenue = hits * hit_price + misses * miss_price + outputs * output_price, cost = gpus * hours *
/// gpu_hour_cost + storage. Source of the test: the V3/R1 inference overview of DeepSeek (open-infra-index, day 6).
result<economics_plan> plan_economics(const economics_input& in);

}  // namespace troupe::policies
