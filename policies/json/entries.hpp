// The files of this folder, each of which adds the entries of its decisions. Only registry.cpp calls these.
#pragma once

#include <vector>

#include "policies/registry.hpp"

namespace troupe::policies {

/// Each appends its entries; the order does not matter.
void add_cluster_entries(std::vector<policy_entry>& out);
void add_storage_entries(std::vector<policy_entry>& out);
void add_expert_entries(std::vector<policy_entry>& out);
void add_prefill_entries(std::vector<policy_entry>& out);
void add_placement_entries(std::vector<policy_entry>& out);
void add_serving_entries(std::vector<policy_entry>& out);
void add_simulation_entries(std::vector<policy_entry>& out);
void add_speculation_entries(std::vector<policy_entry>& out);

}  // namespace troupe::policies
