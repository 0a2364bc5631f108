#include "runtime/cli/sim_cost.hpp"

#include <nlohmann/json.hpp>

#include "kernels/measure/step_times.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/config/cost_file.hpp"

namespace troupe::cli {
namespace {

const char* unit_of(policies::point_kind kind) {
  return kind == policies::point_kind::prefill || kind == policies::point_kind::decode ? "tokens/s" : "ns";
}

}  // namespace

int check_cost(const std::string& file) {
  const auto check = config::check_cost_file(file);
  if (!check) return complain("sim", check.error().message, usage);
  using nlohmann::json;
  json points = json::array();
  tell("{}: {}\n{:<52} {:>10} {:>10} {:>8} {:>9} {:>8} {:>8}\n", file, check->model.name, "point", "published", "model",
       "residual", "verified", "tokens", "ms/step");
  for (const auto& c : check->points) {
    const auto& [p, r] = c;
    json j{{"name", p.name},          {"source", p.source},
           {"unit", unit_of(p.kind)}, {"published", p.value},
           {"model", r.value},        {"residual", static_cast<double>(r.residual_permille) / 1000},
           {"step_ns", r.step_ns},    {"tolerance", static_cast<double>(p.tolerance_permille) / 1000},
           {"within", r.within}};
    std::string drafts, tokens;
    if (p.kind == policies::point_kind::decode) {
      j["verified"] = r.verified_milli / 1000.0;
      j["tokens"] = r.tokens_milli / 1000.0;
      drafts = fmt::format("{:.2f}", r.verified_milli / 1000.0);
      tokens = fmt::format("{:.2f}", r.tokens_milli / 1000.0);
    }
    tell("{:<52} {:>10} {:>10} {:>+7.1f}% {:>9} {:>8} {:>8.3f}{}\n", p.name, p.value, r.value,
         static_cast<double>(r.residual_permille) / 10, drafts, tokens, static_cast<double>(r.step_ns) / 1e6,
         r.within ? "" : "  beyond its tolerance");
    points.push_back(std::move(j));
  }
  if (check->points.empty()) tell("no points: nothing to compare with\n");
  fmt::print("{}\n",
             json{{"model", check->model.name}, {"file", file}, {"within", check->within}, {"points", points}}.dump(2));
  return check->within ? ok : failed;
}

int measure_cost(const std::string& folder, uint32_t threads) {
  auto model = kernels::load_model(folder);
  if (!model) return complain("sim", model.error().message, failed);
  kernels::measure::step_times_options o;
  o.threads = threads;
  auto times = kernels::measure::measure_steps(*model, o, [](const std::string& line) { tell("{}\n", line); });
  if (!times) return complain("sim", times.error().message, failed);
  fmt::print("{}", kernels::measure::cost_file_text(**model, o, *times));
  return ok;
}

}  // namespace troupe::cli
