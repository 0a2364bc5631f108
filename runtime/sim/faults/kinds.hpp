// What each kind of fault has and can hit, in one table, for the parser, the checks, the driver and the printer.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "runtime/sim/faults/driver.hpp"
#include "runtime/sim/faults/plan.hpp"

namespace troupe::sim {

/// One row.
struct fault_kind_row {
  const char* name;
  const char* expectation;
  const char* keys;   // that files may give besides name, kind, at, when, after: separated by spaces
  const char* roles;  // that can be hit: names separated by spaces; "": it has no target
  std::vector<fault_effect> proofs;
};
/// Of every kind.
const fault_kind_row& row_of(fault_kind k);

/// True if `word` is one of the space-separated words of `list`.
bool has_word(std::string_view list, std::string_view word);

/// Nodes of the shape that the kind can hit, of this role (any: of all its roles), by role, then index.
std::vector<node_ref> hittable(const cluster_shape& shape, fault_kind k, node_role role);

/// Every node, by role, then index.
std::vector<node_ref> all_nodes(const cluster_shape& shape);

}  // namespace troupe::sim
