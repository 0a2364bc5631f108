#include "policies/eplb.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "policies/eplb_layer.hpp"

namespace troupe::policies {
namespace {

constexpr double good_enough = 1.001;  // lb below which further exchanges are not worth their time

const char* name(eplb_algorithm a) {
  return a == eplb_algorithm::hierarchical ? "hierarchical" : a == eplb_algorithm::global ? "global" : "balanced";
}

result<void> check_input(const eplb_input& in) {
  auto bad = [](const std::string& what) { return fail(errc::invalid_argument, "eplb: {}", what); };
  if (in.weights.empty() || in.weights[0].empty()) return bad("weights are empty");
  const size_t experts = in.weights[0].size();
  if (in.gpus == 0 || in.slots == 0 || in.groups == 0 || in.nodes == 0)
    return bad("gpus, slots, groups and nodes must be at least 1");
  if (in.slots > 1u << 20 || experts > 1u << 20 || uint64_t{in.gpus} * experts > 1u << 26 ||
      in.weights.size() > 1u << 16 || uint64_t{in.slots} * in.weights.size() > 1u << 26) {
    return bad("more slots, experts or layers than any deployment has");
  }
  if (in.slots < experts) return bad(fmt::format("{} slots cannot hold {} experts", in.slots, experts));
  if (in.slots % in.gpus) return bad(fmt::format("{} slots do not divide among {} GPUs", in.slots, in.gpus));
  if (in.algorithm == eplb_algorithm::hierarchical && in.groups % in.nodes == 0) {
    if (experts % in.groups) return bad(fmt::format("{} experts do not divide into {} groups", experts, in.groups));
    if (in.gpus % in.nodes) return bad(fmt::format("{} GPUs do not divide among {} nodes", in.gpus, in.nodes));
  }
  if (in.algorithm == eplb_algorithm::balanced && in.slots / in.gpus > experts) {
    return bad(fmt::format("{} slots per GPU cannot hold distinct ones of {} experts", in.slots / in.gpus, experts));
  }
  if (!std::isfinite(in.min_gain) || in.min_gain < 0) return bad("min_gain must be >= 0");
  for (size_t l = 0; l < in.weights.size(); ++l) {
    if (in.weights[l].size() != experts)
      return bad(fmt::format("layer {} has {} experts, layer 0 has {}", l, in.weights[l].size(), experts));
    for (double w : in.weights[l]) {
      if (!(w >= 0 && w <= 1e30))
        return bad(fmt::format("layer {} has the weight {}; weights are from 0 to 1e30", l, w));
    }
  }
  if (in.current.empty()) return {};
  if (in.current.size() != in.weights.size())
    return bad(fmt::format("current has {} layers, weights {}", in.current.size(), in.weights.size()));
  for (size_t l = 0; l < in.current.size(); ++l) {
    if (in.current[l].size() != in.slots)
      return bad(fmt::format("layer {} of current has {} slots, not {}", l, in.current[l].size(), in.slots));
    std::vector<bool> there(experts, false);
    for (int32_t e : in.current[l]) {
      if (e < 0 || static_cast<size_t>(e) >= experts)
        return bad(fmt::format("layer {} of current names expert {} of {}", l, e, experts));
      there[static_cast<size_t>(e)] = true;
    }
    if (std::find(there.begin(), there.end(), false) != there.end())
      return bad(fmt::format("layer {} of current lacks an expert", l));
  }
  return {};
}

double total(const std::vector<double>& w) { return std::accumulate(w.begin(), w.end(), 0.0); }

// Load of the busiest GPU. Even splitting.
double busiest(const std::vector<double>& weights, const std::vector<int32_t>& phy2log, uint32_t gpus) {
  std::vector<uint32_t> count(weights.size(), 0);
  for (int32_t e : phy2log) ++count[static_cast<size_t>(e)];
  const size_t per_gpu = phy2log.size() / gpus;
  double most = 0;
  for (size_t g = 0; g < gpus; ++g) {
    double load = 0;
    for (size_t s = g * per_gpu; s < (g + 1) * per_gpu; ++s) {
      auto e = static_cast<size_t>(phy2log[s]);
      load += weights[e] / count[e];
    }
    most = std::max(most, load);
  }
  return most;
}

// One layer of ours without history: at most the busiest load of `global`, where that is possible.
std::vector<int32_t> fresh(const eplb_input& in, const std::vector<double>& w, size_t& worse) {
  auto global = detail::place_published(w, in.slots, 1, 1, in.gpus).phy2log;
  const double theirs = busiest(w, global, in.gpus);
  const double goal = std::min(theirs, good_enough * total(w) / in.gpus);
  auto ours = detail::place_balanced(w, in.slots, in.gpus, goal);
  const double mine = busiest(w, ours, in.gpus);
  if (mine <= theirs) return ours;
  auto repaired = detail::repair_and_exchange(std::move(global), w, in.gpus, goal);
  if (busiest(w, repaired, in.gpus) < mine) ours = std::move(repaired);
  if (busiest(w, ours, in.gpus) > theirs) ours = detail::improve_balanced(ours, w, in.gpus, goal, 4 * in.slots);
  if (busiest(w, ours, in.gpus) > theirs) ours = detail::search_counts(ours, w, in.gpus, theirs);
  worse += busiest(w, ours, in.gpus) > theirs * (1 + 1e-9);
  return ours;
}

bool has_doubles(const std::vector<int32_t>& phy2log, uint32_t gpus) {
  const size_t per_gpu = phy2log.size() / gpus;
  for (size_t g = 0; g < gpus; ++g) {
    std::vector<int32_t> held(phy2log.begin() + static_cast<long>(g * per_gpu),
                              phy2log.begin() + static_cast<long>((g + 1) * per_gpu));
    std::sort(held.begin(), held.end());
    if (std::adjacent_find(held.begin(), held.end()) != held.end()) return true;
  }
  return false;
}

std::string reason(const eplb_input& in, const eplb_plan& plan) {
  double sum = 0, worst = 0;
  for (double x : plan.lb) sum += x, worst = std::max(worst, x);
  return fmt::format("{}: {} experts in {} slots of {} GPUs, {} layers, lb {:.4f} on average and {:.4f} at worst",
                     name(in.algorithm), in.weights[0].size(), in.slots, in.gpus, in.weights.size(),
                     sum / static_cast<double>(plan.lb.size()), worst);
}

}  // namespace

double eplb_lb(const std::vector<double>& weights, const std::vector<int32_t>& phy2log, uint32_t gpus) {
  double sum = total(weights);
  return sum > 0 ? busiest(weights, phy2log, gpus) * gpus / sum : 1;
}

uint32_t eplb_moves(const std::vector<int32_t>& from, const std::vector<int32_t>& to, uint32_t gpus) {
  const auto per_gpu = static_cast<long>(to.size() / gpus);
  uint32_t moves = 0;
  for (long g = 0; g < static_cast<long>(gpus); ++g) {
    std::vector<int32_t> a(from.begin() + g * per_gpu, from.begin() + (g + 1) * per_gpu);
    std::vector<int32_t> b(to.begin() + g * per_gpu, to.begin() + (g + 1) * per_gpu), fresh_ones;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    // A GPU that holds an expert once serves any number of its slots from it, so only distinct new ones are loaded.
    b.erase(std::unique(b.begin(), b.end()), b.end());
    std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(fresh_ones));
    moves += static_cast<uint32_t>(fresh_ones.size());
  }
  return moves;
}

result<eplb_plan> plan_eplb(const eplb_input& in) {
  if (auto ok = check_input(in); !ok) return fail(ok.error());
  const size_t layers = in.weights.size(), experts = in.weights[0].size();
  eplb_plan plan;
  plan.phy2log.resize(layers);
  std::vector<std::vector<int32_t>> copy_rank(layers);  // published algorithms only: their order of copies
  const bool ours = in.algorithm == eplb_algorithm::balanced, history = !in.current.empty();
  const bool divides = in.algorithm == eplb_algorithm::hierarchical && in.groups % in.nodes == 0;

  std::string note;
  if (!ours) {
    for (size_t l = 0; l < layers; ++l) {
      auto layer =
          detail::place_published(in.weights[l], in.slots, divides ? in.groups : 1, divides ? in.nodes : 1, in.gpus);
      plan.phy2log[l] = std::move(layer.phy2log);
      copy_rank[l] = std::move(layer.copy_rank);
    }
    if (in.algorithm == eplb_algorithm::hierarchical && !divides)
      note = "; groups do not divide among nodes, so placed as global";
  } else if (!history) {
    size_t worse = 0;
    for (size_t l = 0; l < layers; ++l) plan.phy2log[l] = fresh(in, in.weights[l], worse);
    if (worse)
      note = fmt::format(
          "; in {} layers nothing was found that reaches the lb of global without two copies of an expert on one GPU",
          worse);
  } else {
    // Worst layer first; each may use its share of what is left of the budget.
    std::vector<size_t> order(layers);
    std::iota(order.begin(), order.end(), size_t{0});
    std::vector<double> before(layers);
    for (size_t l = 0; l < layers; ++l) before[l] = eplb_lb(in.weights[l], in.current[l], in.gpus);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return before[a] > before[b]; });
    uint64_t left = in.max_moves;
    double load_before = 0, load_after = 0;
    bool legal = true;
    for (size_t i = 0; i < layers; ++i) {
      const size_t l = order[i];
      const uint64_t share = (left + layers - i - 1) / (layers - i);
      plan.phy2log[l] =
          detail::improve_balanced(in.current[l], in.weights[l], in.gpus, good_enough * total(in.weights[l]) / in.gpus,
                                   static_cast<uint32_t>(std::min<uint64_t>(share, UINT32_MAX)));
      left -= std::min<uint64_t>(left, eplb_moves(in.current[l], plan.phy2log[l], in.gpus));
      legal = legal && !has_doubles(in.current[l], in.gpus);
      load_before += busiest(in.weights[l], in.current[l], in.gpus);
      load_after += busiest(in.weights[l], plan.phy2log[l], in.gpus);
    }
    const double gain = load_before > 0 ? 1 - load_after / load_before : 0;
    if (legal && (gain < in.min_gain || gain <= 0)) {
      plan.phy2log = in.current;
      note = fmt::format("; stays as it is: moving copies would save {:.2f} % of the busiest load, less than {:.2f} %",
                         100 * gain, 100 * in.min_gain);
    } else {
      note = fmt::format("; saves {:.2f} % of the busiest load{}", 100 * gain,
                         legal ? "" : ", and no GPU holds an expert twice any more");
    }
  }

  for (size_t l = 0; l < layers; ++l) {
    const auto& p = plan.phy2log[l];
    auto& count = plan.counts.emplace_back(experts, 0u);
    for (int32_t e : p) ++count[static_cast<size_t>(e)];
    const size_t most = *std::max_element(count.begin(), count.end());
    auto& slots = plan.log2phy.emplace_back(experts, std::vector<int32_t>(most, -1));
    std::vector<uint32_t> seen(experts, 0);
    for (size_t s = 0; s < p.size(); ++s) {
      auto e = static_cast<size_t>(p[s]);
      slots[e][ours ? seen[e]++ : static_cast<size_t>(copy_rank[l][s])] = static_cast<int32_t>(s);
    }
    plan.lb.push_back(eplb_lb(in.weights[l], p, in.gpus));
    if (history) plan.moved += eplb_moves(in.current[l], p, in.gpus);
  }
  plan.reason = reason(in, plan) + note;
  if (history) plan.reason += fmt::format("; {} of {} copies are loaded", plan.moved, layers * in.slots);
  return plan;
}

}  // namespace troupe::policies
