// Entries of the decisions about expert load: placement of copies, split of a batch among them.
#include <array>

#include "policies/eplb.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"

namespace troupe::policies {

template <>
struct json_names<eplb_algorithm> {
  static constexpr std::array<const char*, 3> names{"hierarchical", "global", "balanced"};
};
template <>
struct json_fields<eplb_input> {
  static auto list() {
    return std::tuple{required("algorithm", &eplb_input::algorithm, "hierarchical and global are DeepSeek's published ones, balanced is ours"),
                      required("weights", &eplb_input::weights, "[layer][expert] rows of a window"),
                      required("slots", &eplb_input::slots, "over all GPUs"),
                      optional("groups", &eplb_input::groups, "expert groups, for hierarchical"),
                      optional("nodes", &eplb_input::nodes, "for hierarchical"),
                      required("gpus", &eplb_input::gpus, "ranks of the EP group"),
                      optional("current", &eplb_input::current, "[layer][slot] -> expert: the present placement"),
                      optional("max_moves", &eplb_input::max_moves, "most copies to load, for balanced with current"),
                      optional("min_gain", &eplb_input::min_gain, "smaller relative gains leave everything as it is")};
  }
};
template <>
struct json_fields<eplb_plan> {
  static auto list() {
    return std::tuple{required("phy2log", &eplb_plan::phy2log, "[layer][slot] -> expert"),
                      required("log2phy", &eplb_plan::log2phy, "[layer][expert][copy] -> slot, padded with -1"),
                      required("counts", &eplb_plan::counts, "[layer][expert] -> copies"),
                      required("lb", &eplb_plan::lb, "per layer: busiest GPU / mean GPU"),
                      required("moved", &eplb_plan::moved, "copies to load"), required("reason", &eplb_plan::reason, "why")};
  }
};

void add_expert_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<eplb_input>("eplb", "which expert copies live in which slots of an EP group", plan_eplb));
}

}  // namespace troupe::policies
