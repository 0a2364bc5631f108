// Which expert copies live in which slots of an EP group's GPUs. (How the rows of a batch split among the copies is
// copy_split.hpp.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// How a placement is made. Values index the names of the command line.
enum class eplb_algorithm : uint8_t {
  hierarchical,  // DeepSeek's published algorithm: groups to nodes, copies within a node, copies to the GPUs of a node
  global,        // the same with one group and one node
  balanced,      // ours: no two copies of an expert on a GPU, lower lb, few moves from `current`
};

/// Loads and shape. Slots are numbered GPU-major: GPU g owns slots [g * slots / gpus, (g + 1) * slots / gpus).
struct eplb_input {
  eplb_algorithm algorithm = eplb_algorithm::balanced;
  std::vector<std::vector<double>> weights;  // [layer][expert] rows of a window, >= 0
  uint32_t slots = 0;                        // over all GPUs; experts <= slots, a multiple of gpus
  uint32_t groups = 1, nodes = 1;            // hierarchical only
  uint32_t gpus = 1;
  std::vector<std::vector<int32_t>> current;  // [layer][slot] -> expert, or empty: nothing is placed yet
  uint32_t max_moves = UINT32_MAX;            // balanced with `current`: most copies to load, over all layers
  double min_gain = 0.01;  // balanced with `current`: smaller relative gains leave everything as it is
};

/// A placement of every layer. lb = busiest GPU / mean GPU under the weights of the input, rows of an expert split
/// evenly among its copies; 1 for a layer without load.
struct eplb_plan {
  std::vector<std::vector<int32_t>> phy2log;  // [layer][slot] -> expert
  std::vector<std::vector<std::vector<int32_t>>>
      log2phy;                                // [layer][expert][copy] -> slot, padded with -1 to the most copies
  std::vector<std::vector<uint32_t>> counts;  // [layer][expert] -> copies
  std::vector<double> lb;                     // per layer
  uint32_t moved = 0;  // copies that a GPU must load because it does not hold them in `current`; 0 without `current`
  std::string reason;
};

/// hierarchical and global follow DeepSeek's published EPLB (eplb.py) to the index, in single precision as there; ties
/// go to the lower index; hierarchical with groups that do not divide among the nodes falls back to global, as there.
/// They ignore `current` except for `moved`, and may put two copies of an expert on one GPU.
///
/// balanced never does (so slots / gpus <= experts), and without `current` it minimises lb layer by layer: counts as
/// published (each extra slot to the expert with the most load per copy), copies to the lightest GPU that may take
/// them, then exchanges between the busiest GPU and others until lb is at most 1.001 and no worse than `global`'s, or
/// nothing helps. With `current` it starts there, keeps every copy that stays in its slot, loads at most `max_moves`
/// copies, best gain per move first, never makes a layer worse, and changes nothing unless the sum over layers of the
/// busiest GPU's load falls by `min_gain`. (Second copies of an expert on a GPU in `current` are replaced first,
/// whatever the limits.) Exception to "never worse than global": few experts and many slots, where a GPU with two
/// copies of one expert is the only way to halve a load; the reason then says so.
///
/// Fails on shapes that do not divide, negative or non-finite weights, and a `current` that does not hold every expert.
result<eplb_plan> plan_eplb(const eplb_input& in);

/// lb of one layer under `weights` with even splitting: what plan_eplb reports, for any placement. Preconditions as
/// there.
double eplb_lb(const std::vector<double>& weights, const std::vector<int32_t>& phy2log, uint32_t gpus);

/// Copies that must be loaded to get from one placement of a layer to another (order within a GPU does not matter).
uint32_t eplb_moves(const std::vector<int32_t>& from, const std::vector<int32_t>& to, uint32_t gpus);

}  // namespace troupe::policies
