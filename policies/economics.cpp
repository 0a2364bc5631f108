#include "policies/economics.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace troupe::policies {

result<economics_plan> plan_economics(const economics_input& in) {
  const std::pair<const char*, double> all[] = {{"hit_price", in.hit_price},
                                                {"miss_price", in.miss_price},
                                                {"output_price", in.output_price},
                                                {"gpu_hour_cost", in.gpu_hour_cost},
                                                {"storage_tb", in.storage_tb},
                                                {"storage_tb_month_cost", in.storage_tb_month_cost},
                                                {"hours", in.hours},
                                                {"gpus", in.gpus},
                                                {"input_mtokens", in.input_mtokens},
                                                {"hit_ratio", in.hit_ratio},
                                                {"output_mtokens", in.output_mtokens}};
  for (const auto& [name, v] : all)
    if (!(v >= 0) || v > 1e15) return fail(errc::invalid_argument, "{}: {} is not between 0 and 1e15", name, v);
  if (in.hit_ratio > 1) return fail(errc::invalid_argument, "hit_ratio: {} is above 1", in.hit_ratio);
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0; };
  economics_plan out;
  const double hits = in.input_mtokens * in.hit_ratio, misses = in.input_mtokens - hits, gpu_hours = in.gpus * in.hours;
  out.revenue = hits * in.hit_price + misses * in.miss_price + in.output_mtokens * in.output_price;
  out.gpu_cost = gpu_hours * in.gpu_hour_cost;
  out.storage_cost = in.storage_tb * in.storage_tb_month_cost * in.hours / 730;
  out.cost = out.gpu_cost + out.storage_cost;
  out.profit = out.revenue - out.cost;
  out.margin_on_cost = ratio(out.profit, out.cost);
  out.revenue_per_gpu_hour = ratio(out.revenue, gpu_hours);
  out.cost_per_gpu_hour = ratio(out.cost, gpu_hours);
  const double tokens = in.input_mtokens + in.output_mtokens;
  out.revenue_per_mtoken = ratio(out.revenue, tokens);
  out.cost_per_mtoken = ratio(out.cost, tokens);
  out.cost_per_output_mtoken = ratio(out.cost, in.output_mtokens);
  out.saved_by_hits = hits * (in.miss_price - in.hit_price);
  out.reason = fmt::format("revenue {:.0f}, cost {:.0f} over {:.0f} GPU-hours", out.revenue, out.cost, gpu_hours);
  return out;
}

}  // namespace troupe::policies
