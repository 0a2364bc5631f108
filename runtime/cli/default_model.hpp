// The model that commands take when none is named.
#pragma once

#include <string>

#include "runtime/base/result.hpp"

namespace troupe::cli {

/// `model.path` of the configs/local.yaml that comes with the program (installation.hpp). not_found if there is no such
/// file, invalid_argument if it has mistakes; the message says to give --model.
result<std::string> default_model();

}  // namespace troupe::cli
