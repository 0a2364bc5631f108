// DeepSeek's published expert placement. Written from its description; single precision and the order of operations are
// those of the original, because ties and rounding decide indexes.
#include <algorithm>
#include <cstddef>
#include <numeric>

#include "policies/eplb_layer.hpp"

namespace troupe::policies::detail {
namespace {

struct packing {
  std::vector<uint32_t> pack, rank;  // per item
};

// n items into `packs` packs of n / packs each: by descending weight into the lightest pack with room.
packing pack_evenly(const std::vector<float>& weight, uint32_t packs) {
  const uint32_t n = static_cast<uint32_t>(weight.size()), room = n / packs;
  packing out{std::vector<uint32_t>(n), std::vector<uint32_t>(n, 0)};
  if (room == 1) {
    std::iota(out.pack.begin(), out.pack.end(), 0u);
    return out;
  }
  std::vector<uint32_t> order(n), items(packs, 0);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return weight[a] > weight[b]; });
  std::vector<float> load(packs, 0.0f);
  for (uint32_t item : order) {
    uint32_t best = packs;
    for (uint32_t p = 0; p < packs; ++p) {
      if (items[p] < room && (best == packs || load[p] < load[best])) best = p;
    }
    out.pack[item] = best;
    out.rank[item] = items[best]++;
    load[best] += weight[item];
  }
  return out;
}

struct copies {
  std::vector<uint32_t> expert, rank;  // per slot
  std::vector<uint32_t> count;         // per expert
};

// One copy of each, then every further slot to the expert with the most load per copy.
copies replicate(const std::vector<float>& weight, uint32_t slots) {
  const uint32_t n = static_cast<uint32_t>(weight.size());
  copies out{std::vector<uint32_t>(n), std::vector<uint32_t>(n, 0), std::vector<uint32_t>(n, 1)};
  std::iota(out.expert.begin(), out.expert.end(), 0u);
  std::vector<float> each = weight;
  for (uint32_t s = n; s < slots; ++s) {
    uint32_t e = static_cast<uint32_t>(std::max_element(each.begin(), each.end()) - each.begin());
    out.expert.push_back(e);
    out.rank.push_back(out.count[e]++);
    each[e] = weight[e] / static_cast<float>(out.count[e]);
  }
  return out;
}

}  // namespace

published_layer place_published(const std::vector<double>& weights, uint32_t slots, uint32_t groups, uint32_t nodes,
                                uint32_t gpus) {
  const uint32_t experts = static_cast<uint32_t>(weights.size());
  const uint32_t group_size = experts / groups, groups_per_node = groups / nodes, node_experts = experts / nodes;
  const uint32_t node_slots = slots / nodes, gpu_slots = slots / gpus;

  std::vector<float> group_load(groups, 0.0f);
  for (uint32_t e = 0; e < experts; ++e) group_load[e / group_size] += static_cast<float>(weights[e]);
  packing by_node = pack_evenly(group_load, nodes);
  std::vector<uint32_t> of_node_order(experts);  // node-major number -> expert
  for (uint32_t e = 0; e < experts; ++e) {
    uint32_t g = e / group_size;
    of_node_order[(by_node.pack[g] * groups_per_node + by_node.rank[g]) * group_size + e % group_size] = e;
  }

  published_layer out{std::vector<int32_t>(slots), std::vector<int32_t>(slots)};
  for (uint32_t node = 0; node < nodes; ++node) {
    std::vector<float> weight(node_experts);
    for (uint32_t i = 0; i < node_experts; ++i)
      weight[i] = static_cast<float>(weights[of_node_order[node * node_experts + i]]);
    copies c = replicate(weight, node_slots);
    std::vector<float> each(node_slots);
    for (uint32_t s = 0; s < node_slots; ++s) each[s] = weight[c.expert[s]] / static_cast<float>(c.count[c.expert[s]]);
    packing by_gpu = pack_evenly(each, gpus / nodes);
    for (uint32_t s = 0; s < node_slots; ++s) {
      size_t slot = size_t{node} * node_slots + size_t{by_gpu.pack[s]} * gpu_slots + by_gpu.rank[s];
      out.phy2log[slot] = static_cast<int32_t>(of_node_order[node * node_experts + c.expert[s]]);
      out.copy_rank[slot] = static_cast<int32_t>(c.rank[s]);
    }
  }
  return out;
}

}  // namespace troupe::policies::detail
