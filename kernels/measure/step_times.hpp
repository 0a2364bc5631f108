// What the steps of an engine in this process take, as tables of a cost model (policies/step_cost.hpp).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/engine/cpu_engine.hpp"
#include "policies/step_cost.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels::measure {

/// Which steps are measured.
struct step_times_options {
  uint32_t threads = 1;
  std::vector<uint32_t> chunk_rows{1, 32, 128, 256};
  std::vector<uint64_t> chunk_context{0, 1024, 4096};
  std::vector<uint32_t> decode_rows{1, 4, 16};
  std::vector<uint64_t> decode_context{128, 1024};
  uint32_t repeats = 8;  // the fastest counts: others may have waited for a core
};

/// Tables, and two more points that lie between theirs, for the check.
struct step_times_result {
  policies::measured_table chunk, decode, draft;
  std::vector<policies::cost_point> points;
};

/// Runs an engine with synthetic prompts and takes the times of its steps. `tell` gets a line now and then. Minutes.
/// Errors are the engine's; invalid_argument for contexts beyond the model's.
result<step_times_result> measure_steps(std::shared_ptr<const model> weights, const step_times_options& options,
                                        const std::function<void(const std::string&)>& tell);

/// The tables as a cost file (docs/cost_models.md) for an engine of this model.
std::string cost_file_text(const model& m, const step_times_options& options, const step_times_result& times);

}  // namespace troupe::kernels::measure
