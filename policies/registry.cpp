#include "policies/registry.hpp"

#include <algorithm>
#include <vector>

#include "policies/json/entries.hpp"
#include "runtime/base/check.hpp"

namespace troupe::policies {

std::span<const policy_entry> registry() {
  static const std::vector<policy_entry> all = [] {
    std::vector<policy_entry> v;
    add_expert_entries(v);
    add_prefill_entries(v);
    add_placement_entries(v);
    add_cluster_entries(v);
    add_storage_entries(v);
    add_serving_entries(v);
    add_simulation_entries(v);
    add_speculation_entries(v);
    std::sort(v.begin(), v.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (size_t i = 1; i < v.size(); ++i)
      TROUPE_CHECK(v[i - 1].name != v[i].name, "two decisions called {}", v[i].name);
    return v;
  }();
  return all;
}

const policy_entry* find_policy(std::string_view name) {
  for (const auto& e : registry())
    if (e.name == name) return &e;
  return nullptr;
}

}  // namespace troupe::policies
