// Fields of the prefill cost model, which several entries use.
#pragma once

#include "policies/json/fields.hpp"
#include "policies/prefill_cost.hpp"

namespace troupe::policies {

/// Coefficients.
template <>
struct json_fields<prefill_cost> {
  static auto list() {
    return std::tuple{required("a", &prefill_cost::a, "ns per token^2"),
                      required("b", &prefill_cost::b, "ns per token and cached token"),
                      required("d", &prefill_cost::d, "ns per token")};
  }
};

}  // namespace troupe::policies
