// The small checkpoint that the tests of models use.
#pragma once

#include <string>

namespace troupe::kernels {

inline const std::string tiny_folder = TROUPE_TEST_DATA "/tiny-v41";

}  // namespace troupe::kernels
