// Every decision by name, from JSON to JSON: what `troupe policy` offers. The structs and functions are the very ones
// that the actors call; this file only lists them.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One decision. `input` and `output` return a JSON Schema (draft 2020-12, the subset
/// type/properties/required/items/enum/ minimum/maximum/description/default). `run` is pure; errors are
/// invalid_argument and name the field by path, e.g. "ranks[3].kv".
struct policy_entry {
  std::string_view name;  // as on the command line
  std::string_view help;  // one line
  std::function<nlohmann::json()> input, output;
  std::function<result<nlohmann::json>(const nlohmann::json&)> run;
};

/// All decisions, sorted by name. Built once, safe from any thread.
std::span<const policy_entry> registry();

/// The decision called `name`, or null.
const policy_entry* find_policy(std::string_view name);

}  // namespace troupe::policies
