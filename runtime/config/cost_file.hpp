// Cost models as files: configs/sim/cost/*.yaml. What stands there is a floor (bytes, operations, bandwidths, rates),
// how much of the hardware's rates is reached (fitted), measured tables where an engine was measured, and the points
// that the fit is judged by. docs/simulate.md describes every key.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/step_cost.hpp"
#include "runtime/config/config.hpp"

namespace troupe::config {

/// A file, and every mistake in it; the model is usable only when there is none.
struct loaded_cost {
  policies::cost_model model;
  std::vector<config::problem> problems;
};

/// Reads a cost model. Unknown keys, wrong types and units, values out of range and models that cannot be evaluated are
/// problems that name file, line and key.
loaded_cost read_cost(const std::string& file);
/// The same from text; `name` stands for the file in messages.
loaded_cost read_cost_text(const std::string& text, const std::string& name);

/// `read_cost` for callers that go on only with a good file: all mistakes, one a line, in one invalid_argument.
result<std::shared_ptr<const policies::cost_model>> load_cost_model(const std::string& file);

/// A model and what it says of its points, in the order of the file.
struct cost_check {
  policies::cost_model model;
  std::vector<std::pair<policies::cost_point, policies::point_residual>> points;
  bool within = true;  // every residual is within its point's tolerance
};
/// Reads a file and checks its points. Errors: those of load_cost_model; invalid_argument for a point that cannot be
/// evaluated.
result<cost_check> check_cost_file(const std::string& file);

/// Every key of the format as a Markdown table, for docs/simulate.md.
std::string cost_markdown();

}  // namespace troupe::config
