// Fault plans drawn from a seed.
#include <algorithm>
#include <map>

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct span_of_time {
  nanoseconds from{0}, to{0};
  bool meets(const span_of_time& o) const { return from <= o.to && o.from <= to; }
};

nanoseconds between(rng& random, nanoseconds least, nanoseconds most) {
  return most <= least
             ? least
             : least +
                   nanoseconds(static_cast<int64_t>(random.below(static_cast<uint64_t>((most - least).count()) + 1)));
}

bool has_key(fault_kind k, const char* key) { return has_word(row_of(k).keys, key); }

// A fault of the kind, apart from its name.
fault draw_fault(rng& random, fault_kind kind, nanoseconds duration) {
  // After a fault's end its node needs a moment before the next one hits it; all is over by 3/4 of the run.
  const nanoseconds first = duration / 20, last = duration * 3 / 4;
  fault f;
  f.kind = kind;
  f.when.at = between(random, first, duration * 3 / 5);
  nanoseconds most = std::max<nanoseconds>(duration / 8, milliseconds(100));
  if (kind == fault_kind::freeze) most = std::min<nanoseconds>(most, seconds(10));
  if (has_key(kind, "lasts"))
    f.lasts =
        std::min(between(random, milliseconds(50), most), std::max(last - f.when.at, nanoseconds(milliseconds(1))));
  if (has_key(kind, "silent")) f.silent = random.below(4) == 0;
  if (has_key(kind, "one_way")) f.one_way = random.below(3) == 0;
  if (has_key(kind, "factor")) f.factor = 2 + static_cast<uint32_t>(random.below(40));
  if (kind == fault_kind::flap) f.period = between(random, milliseconds(20), seconds(2));
  if (has_key(kind, "permille")) {
    constexpr uint32_t steps[] = {10, 100, 500, 1'000};
    f.permille = steps[random.below(std::size(steps))];
  }
  if (kind == fault_kind::clock_jump) {
    f.jump_ns = between(random, milliseconds(10), seconds(30)).count();
    if (random.below(2) == 0) f.jump_ns = -f.jump_ns;
  }
  return f;
}

}  // namespace

fault_plan draw_swarm(uint64_t seed, const cluster_shape& shape, nanoseconds duration, uint32_t storage_parity,
                      const swarm_rates& rates) {
  TROUPE_CHECK(duration >= milliseconds(100), "a swarm of {} ns", duration.count());
  fault_plan plan;
  plan.name = fmt::format("swarm-{}", seed), plan.seed = seed;
  rng random(seed, 77);
  std::map<node_ref, std::vector<span_of_time>> taken;
  std::vector<span_of_time> storage, cluster;
  for (size_t k = 0; k < fault_kinds; ++k) {
    const auto kind = static_cast<fault_kind>(k);
    const bool occurs = random.below(2) == 0;
    // Half to twice the rate; the fraction is a chance. Over 60 s, so that numbers stay far from 2^64.
    const uint64_t ms = static_cast<uint64_t>(duration / milliseconds(1));
    const uint64_t millionths = rates.per_hour[k] * ms * (128 + random.below(385)) / 256 * 10 / 36;
    const uint64_t count =
        std::min<uint64_t>(millionths / 1'000'000 + (random.below(1'000'000) < millionths % 1'000'000), 500);
    if (!occurs) continue;
    for (uint64_t i = 0; i < count; ++i) {
      fault f = draw_fault(random, kind, duration);
      span_of_time when{f.when.at, f.when.at + f.lasts + duration / 50};
      node_ref node;
      if (kind == fault_kind::director_loss) {
        node = {node_role::director, 0};
        if (shape.of(node.role) == 0) continue;
      } else if (kind == fault_kind::rolling_restart) {
        // One role as a whole; the period leaves room for a drain.
        std::vector<node_role> whole;
        for (const auto r : {node_role::front, node_role::prefill, node_role::decode, node_role::storage})
          if (shape.of(r) >= 2) whole.push_back(r);
        if (whole.empty()) continue;
        f.target = {fault_target::pick::everybody, whole[random.below(whole.size())], 0};
        const uint32_t nodes = shape.of(f.target.role);
        f.when.at = between(random, duration / 20, duration / 4);
        f.period = std::clamp<nanoseconds>(duration / 3 / nodes, milliseconds(1), seconds(5));
        when = {f.when.at, f.when.at + f.period * nodes + duration / 50};
      } else if (kind != fault_kind::coordination_outage) {
        const auto nodes = hittable(shape, kind, node_role::any);
        if (nodes.empty()) continue;
        node = nodes[random.below(nodes.size())];
        f.target = {fault_target::pick::index, node.role, node.index};
        if (has_key(kind, "peer")) {
          const auto peer = all_nodes(shape)[random.below(shape.of(node_role::any))];
          if (random.below(2) == 0 && peer != node) f.peer = {fault_target::pick::index, peer.role, peer.index};
          if (shape.of(node_role::any) < 2) continue;
        }
      }
      // One fault at a time on a node (a second one would often show no effect), and no more of storage at once than
      // the code can lose. What does not fit is left out: the draw stays a function of the seed.
      std::vector<std::vector<span_of_time>*> rows;
      if (kind == fault_kind::rolling_restart) {
        for (uint32_t n = 0; n < shape.of(f.target.role); ++n) rows.push_back(&taken[{f.target.role, n}]);
      } else {
        rows.push_back(node.role == node_role::any ? &cluster : &taken[node]);
      }
      const auto meets = [&](const span_of_time& s) { return s.meets(when); };
      bool fits = true;
      for (const auto* row : rows) fits = fits && std::none_of(row->begin(), row->end(), meets);
      const bool of_storage = node.role == node_role::storage || f.target.role == node_role::storage;
      if (of_storage) fits = fits && std::count_if(storage.begin(), storage.end(), meets) < int64_t{storage_parity};
      if (!fits) continue;
      for (auto* row : rows) row->push_back(when);
      if (of_storage) storage.push_back(when);
      plan.faults.push_back(std::move(f));
    }
  }
  std::stable_sort(plan.faults.begin(), plan.faults.end(),
                   [](const fault& a, const fault& b) { return a.when.at < b.when.at; });
  for (size_t i = 0; i < plan.faults.size(); ++i)
    plan.faults[i].name = std::string(to_string(plan.faults[i].kind)) + "-" + std::to_string(i);
  const auto ok = check_plan(plan, shape);
  TROUPE_CHECK(ok, "seed {}: {}", seed, ok.error().message);
  return plan;
}

}  // namespace troupe::sim
