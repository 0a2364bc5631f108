// Entries of the decisions about expert load: placement of copies, split of a batch among them.
#include <array>

#include "policies/copy_split.hpp"
#include "policies/eplb.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"

namespace troupe::policies {
namespace {

// On the command line a layer's copies are plain lists.
struct split_question {
  std::vector<double> rows;
  std::vector<std::vector<uint32_t>> copies;
  uint32_t ranks = 0;
  double tolerance = copy_split_options{}.tolerance;
  uint32_t max_sweeps = copy_split_options{}.max_sweeps;
};
struct split_answer {
  std::vector<std::vector<double>> share;
  std::vector<double> load;
  double busiest = 0, bound = 0;
  uint32_t sweeps = 0;
  std::string reason;
};

result<split_answer> split(const split_question& in) {
  if (in.ranks > 1u << 20) return fail(errc::invalid_argument, "ranks: {} is more than any deployment has", in.ranks);
  TROUPE_TRY(auto table, make_copy_table(in.copies, in.ranks));
  if (!(in.tolerance >= 0)) return fail(errc::invalid_argument, "tolerance: {} is negative", in.tolerance);
  TROUPE_TRY(auto plan, plan_copy_split(table, in.rows, {in.tolerance, in.max_sweeps}));
  split_answer out{{}, plan.load, plan.busiest, plan.bound, plan.sweeps, plan.reason};
  for (size_t e = 0; e < in.copies.size(); ++e) {
    auto& to = out.share.emplace_back();
    for (uint32_t r : in.copies[e]) {  // in the caller's order; a second copy on a rank gets nothing more
      double part = 0;
      for (uint32_t i = table.first[e]; i < table.first[e + 1]; ++i) {
        if (table.rank[i] == r) part = std::exchange(plan.share[i], 0.0);
      }
      to.push_back(part);
    }
  }
  return out;
}

}  // namespace

template <>
struct json_names<eplb_algorithm> {
  static constexpr std::array<const char*, 3> names{"hierarchical", "global", "balanced"};
};
template <>
struct json_fields<eplb_input> {
  static auto list() {
    return std::tuple{required("algorithm", &eplb_input::algorithm,
                               "hierarchical and global are DeepSeek's published ones, balanced is ours"),
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
                      required("moved", &eplb_plan::moved, "copies to load"),
                      required("reason", &eplb_plan::reason, "why")};
  }
};

template <>
struct json_fields<split_question> {
  static auto list() {
    return std::tuple{required("rows", &split_question::rows, "rows of the batch per expert"),
                      required("copies", &split_question::copies, "[expert] -> ranks that hold a copy"),
                      required("ranks", &split_question::ranks, "of the EP group"),
                      optional("tolerance", &split_question::tolerance, "stop this close to the bound"),
                      optional("max_sweeps", &split_question::max_sweeps, "0: split evenly")};
  }
};
template <>
struct json_fields<split_answer> {
  static auto list() {
    return std::tuple{required("share", &split_answer::share, "[expert][copy] rows"),
                      required("load", &split_answer::load, "rows per rank"),
                      required("busiest", &split_answer::busiest, "largest load"),
                      required("bound", &split_answer::bound, "no split gets below it"),
                      required("sweeps", &split_answer::sweeps, "over the experts"),
                      required("reason", &split_answer::reason, "why")};
  }
};

void add_expert_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<eplb_input>("eplb", "which expert copies live in which slots of an EP group", plan_eplb));
  out.push_back(
      make_entry<split_question>("copy_split", "how the rows of a batch split among the copies of each expert", split));
}

}  // namespace troupe::policies
