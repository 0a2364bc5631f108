// The small checkpoint that tests run, mapped once per process.
#pragma once

#include <memory>

#include "kernels/model/model.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::testing_support {

/// tests/data/tiny-v41; ends the test program with the reason if it cannot be loaded.
inline std::shared_ptr<const model> tiny() {
  static const auto m = load_model(TROUPE_TEST_DATA "/tiny-v41");
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  return *m;
}

}  // namespace troupe::kernels::testing_support
