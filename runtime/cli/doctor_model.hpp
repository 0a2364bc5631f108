// The doctor's look at a checkpoint.
#pragma once

#include "runtime/cli/doctor.hpp"

namespace troupe::cli {

/// Opens the checkpoint in `folder` as an engine would: config.json, every tensor's name, type and shape, the
/// tokenizer. Weights are mapped, not read.
finding check_model(const std::string& folder);

}  // namespace troupe::cli
