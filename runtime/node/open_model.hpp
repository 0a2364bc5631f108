// What a cluster serves, by its configuration.
#pragma once

#include <memory>
#include <string>

#include "kernels/model/model.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// The model of a cluster: its checkpoint, or, where engine.kind is cost, what its config.json says, with descriptor
/// pages (kernels/engine/cost_engine.hpp).
result<std::shared_ptr<const kernels::model>> open_model(const config::settings& s);
/// Its fingerprint, for the store and for who reads it: of the weights, or of configuration and cost model.
result<std::string> model_fingerprint(const config::settings& s, const kernels::model& m);

}  // namespace troupe::node
