#include "runtime/node/open_model.hpp"

#include "kernels/engine/cost_engine.hpp"
#include "runtime/config/cost_file.hpp"

namespace troupe::node {

result<std::shared_ptr<const kernels::model>> open_model(const config::settings& s) {
  return s.engine.kind == "cost" ? kernels::load_cost_outline(s.model.path) : kernels::load_model(s.model.path);
}

result<std::string> model_fingerprint(const config::settings& s, const kernels::model& m) {
  if (s.engine.kind != "cost") return kernels::fingerprint(m, "cpu f32", s.engine.replay);
  TROUPE_TRY(auto cost, config::load_cost_model(s.engine.cost_model));
  TROUPE_TRY(auto facts, kernels::cost_model_facts(m, *cost, {}, s.engine.replay));
  return facts.fingerprint;
}

}  // namespace troupe::node
