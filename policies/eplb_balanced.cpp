// Expert placement of our own: exchanges and replacements between the busiest GPU and the others.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "policies/eplb_layer.hpp"
#include "runtime/base/check.hpp"

namespace troupe::policies::detail {
namespace {

// A legal placement of one layer with its loads.
struct state {
  const std::vector<double>& weight;
  uint32_t gpus, per_gpu;
  std::vector<int32_t> slot;                 // -> expert, or -1 while being filled
  std::vector<uint32_t> count;               // per expert
  std::vector<double> each;                  // weight / count
  std::vector<double> load;                  // per GPU
  std::vector<uint8_t> has;                  // [gpu][expert]
  std::vector<std::vector<uint32_t>> where;  // expert -> GPUs, kept by the incremental search only

  state(const std::vector<double>& w, uint32_t slots, uint32_t gpu_count)
      : weight(w),
        gpus(gpu_count),
        per_gpu(slots / gpu_count),
        slot(slots, -1),
        count(w.size(), 0),
        each(w.size(), 0.0),
        load(gpu_count, 0.0),
        has(size_t{gpu_count} * w.size(), 0) {}

  uint8_t& at(uint32_t g, int32_t e) { return has[size_t{g} * weight.size() + static_cast<size_t>(e)]; }
  bool on(uint32_t g, int32_t e) const { return has[size_t{g} * weight.size() + static_cast<size_t>(e)] != 0; }
  double one(int32_t e) const { return each[static_cast<size_t>(e)]; }
  uint32_t gpu_of(size_t s) const { return static_cast<uint32_t>(s) / per_gpu; }

  void list_places() {
    where.assign(weight.size(), {});
    for (size_t s = 0; s < slot.size(); ++s) where[static_cast<size_t>(slot[s])].push_back(gpu_of(s));
  }
  void leaves(int32_t e, uint32_t g) {
    if (!where.empty()) std::erase(where[static_cast<size_t>(e)], g);
  }
  void joins(int32_t e, uint32_t g) {
    if (!where.empty()) where[static_cast<size_t>(e)].push_back(g);
  }
  void set_count(int32_t e, uint32_t n) {
    auto i = static_cast<size_t>(e);
    double was = each[i], now = weight[i] / n;
    for (uint32_t g : where[i]) load[g] += now - was;
    count[i] = n;
    each[i] = now;
  }
  void put(size_t s, int32_t e) {  // counts already include it
    slot[s] = e;
    at(gpu_of(s), e) = 1;
    load[gpu_of(s)] += one(e);
  }
  void exchange(size_t a, size_t b) {
    uint32_t ga = gpu_of(a), gb = gpu_of(b);
    int32_t ea = slot[a], eb = slot[b];
    at(ga, ea) = at(gb, eb) = 0;
    at(ga, eb) = at(gb, ea) = 1;
    load[ga] += one(eb) - one(ea);
    load[gb] += one(ea) - one(eb);
    leaves(ea, ga), joins(ea, gb), leaves(eb, gb), joins(eb, ga);
    std::swap(slot[a], slot[b]);
  }
  // Overwrites a copy of an expert that has others.
  void replace(size_t s, int32_t e) {
    int32_t old = slot[s];
    uint32_t g = gpu_of(s);
    load[g] -= one(old);
    at(g, old) = 0;
    leaves(old, g);
    set_count(old, count[static_cast<size_t>(old)] - 1);
    set_count(e, count[static_cast<size_t>(e)] + 1);
    put(s, e);
    joins(e, g);
  }
  uint32_t busiest() const { return static_cast<uint32_t>(std::max_element(load.begin(), load.end()) - load.begin()); }
};

std::vector<uint32_t> by_load(const state& st) {
  std::vector<uint32_t> order(st.gpus);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return st.load[a] != st.load[b] ? st.load[a] < st.load[b] : a < b; });
  return order;
}

// Exchanges one copy of the busiest GPU for a smaller one elsewhere until its load is at most `goal` or nothing helps.
// Each exchange lowers the larger load of its pair, so the sorted loads fall and it ends.
void exchange_down(state& st, double goal, size_t limit) {
  std::vector<uint32_t> order = by_load(st);
  std::vector<double> unit(st.slot.size());
  for (size_t s = 0; s < unit.size(); ++s) unit[s] = st.one(st.slot[s]);
  for (size_t round = 0; round < limit; ++round) {
    const uint32_t h = order.back();
    if (st.load[h] <= goal) return;
    // Lightest partners first; one that brings both to the goal ends the search.
    double best = st.load[h] * (1 - 1e-12);
    size_t from = 0, to = 0;
    bool found = false;
    for (uint32_t g : order) {
      if (g == h || st.load[g] + (st.load[h] - st.load[g]) / 2 >= best) break;  // even a perfect exchange is no better
      for (size_t a = size_t{h} * st.per_gpu; a < (size_t{h} + 1) * st.per_gpu; ++a) {
        const double ea = unit[a];
        if (st.on(g, st.slot[a])) continue;
        for (size_t b = size_t{g} * st.per_gpu; b < (size_t{g} + 1) * st.per_gpu; ++b) {
          const double shift = ea - unit[b];
          const double worse = std::max(st.load[h] - shift, st.load[g] + shift);
          if (worse >= best || st.on(h, st.slot[b])) continue;
          best = worse, from = a, to = b, found = true;
        }
      }
      if (best <= goal) break;
    }
    if (!found) return;
    const uint32_t g = st.gpu_of(to);
    st.exchange(from, to);
    std::swap(unit[from], unit[to]);
    for (uint32_t moved : {h, g}) {  // two entries of the order changed
      order.erase(std::find(order.begin(), order.end(), moved));
      auto less = [&](uint32_t a, uint32_t b) { return st.load[a] != st.load[b] ? st.load[a] < st.load[b] : a < b; };
      order.insert(std::lower_bound(order.begin(), order.end(), moved, less), moved);
    }
  }
}

// A slot for a copy of `e` where every GPU with room holds one already: some full GPU without `e` gives up a copy that
// fits the free slot. There is one: a GPU with room holds fewer distinct experts than a full one without `e`.
size_t make_room(state& st, int32_t e) {
  for (size_t s = 0; s < st.slot.size(); ++s) {
    if (st.slot[s] >= 0) continue;
    const uint32_t g = st.gpu_of(s);
    if (!st.on(g, e)) return s;
    for (size_t o = 0; o < st.slot.size(); ++o) {
      const uint32_t h = st.gpu_of(o);
      if (st.slot[o] < 0 || st.on(h, e) || st.on(g, st.slot[o])) continue;
      const int32_t f = st.slot[o];
      st.at(h, f) = 0;
      st.load[h] -= st.one(f);
      st.put(s, f);
      st.slot[o] = -1;
      return o;
    }
  }
  TROUPE_CHECK(false, "no slot for expert {}", e);
}

size_t free_slot(const state& st, uint32_t g) {
  size_t s = size_t{g} * st.per_gpu;
  while (s < (size_t{g} + 1) * st.per_gpu && st.slot[s] >= 0) ++s;
  return s;
}

// Copies in descending load to the lightest GPU that has room and no copy yet.
void fill(state& st, std::vector<int32_t> copies) {
  std::stable_sort(copies.begin(), copies.end(), [&](int32_t a, int32_t b) { return st.one(a) > st.one(b); });
  std::vector<uint32_t> used(st.gpus, 0);
  for (size_t s = 0; s < st.slot.size(); ++s) used[st.gpu_of(s)] += st.slot[s] >= 0;
  for (int32_t e : copies) {
    uint32_t best = st.gpus;
    for (uint32_t g = 0; g < st.gpus; ++g) {
      if (used[g] < st.per_gpu && (best == st.gpus || st.load[g] < st.load[best]) && !st.on(g, e)) best = g;
    }
    if (best < st.gpus) {
      st.put(free_slot(st, best), e);
      ++used[best];
    } else {
      st.put(make_room(st, e), e);  // may take the free slot of another GPU
      std::fill(used.begin(), used.end(), 0u);
      for (size_t s = 0; s < st.slot.size(); ++s) used[st.gpu_of(s)] += st.slot[s] >= 0;
    }
  }
}

// The state of a placement; the second and later copies of an expert on a GPU are taken out, and as many copies as that
// leaves free are given to the experts with the most load per copy.
state legal_state(const std::vector<int32_t>& phy2log, const std::vector<double>& weights, uint32_t gpus) {
  state st(weights, static_cast<uint32_t>(phy2log.size()), gpus);
  uint32_t open = 0;
  for (size_t s = 0; s < phy2log.size(); ++s) {
    if (st.on(st.gpu_of(s), phy2log[s])) {
      ++open;
      continue;
    }
    st.slot[s] = phy2log[s];
    st.at(st.gpu_of(s), phy2log[s]) = 1;
    ++st.count[static_cast<size_t>(phy2log[s])];
  }
  std::vector<int32_t> extra;
  for (size_t e = 0; e < weights.size(); ++e) st.each[e] = weights[e] / st.count[e];
  for (; open > 0; --open) {
    size_t best = weights.size();
    for (size_t e = 0; e < weights.size(); ++e) {
      if (st.count[e] < gpus && (best == weights.size() || st.each[e] > st.each[best])) best = e;
    }
    st.each[best] = weights[best] / ++st.count[best];
    extra.push_back(static_cast<int32_t>(best));
  }
  for (size_t s = 0; s < st.slot.size(); ++s) {
    if (st.slot[s] >= 0) st.load[st.gpu_of(s)] += st.one(st.slot[s]);
  }
  fill(st, std::move(extra));
  return st;
}

// One change of a placement, and what it is worth.
struct change {
  enum kind_t { none, exchange, replace } kind = none;
  size_t a = 0, b = 0;  // slots; `replace` overwrites a
  int32_t expert = 0;   // by this
  double worth = 0;     // fall of the excess per copy to load
};

// Sum over GPUs of the squared load above the goal: falls with the busiest ones and does not care who is below.
double excess(double load, double goal) { return load > goal ? (load - goal) * (load - goal) : 0; }

// Fall of the excess if slot s holds e instead, counts included.
double replace_worth(const state& st, size_t s, int32_t e, double goal) {
  const int32_t old = st.slot[s];
  const uint32_t at = st.gpu_of(s);
  const double old_up = st.weight[static_cast<size_t>(old)] / (st.count[static_cast<size_t>(old)] - 1) - st.one(old);
  const double e_now = st.weight[static_cast<size_t>(e)] / (st.count[static_cast<size_t>(e)] + 1),
               e_down = st.one(e) - e_now;
  double fall = excess(st.load[at], goal) - excess(st.load[at] + e_now - st.one(old), goal);
  for (uint32_t g : st.where[static_cast<size_t>(old)]) {
    if (g == at) continue;
    fall += excess(st.load[g], goal) - excess(st.load[g] + old_up - (st.on(g, e) ? e_down : 0), goal);
  }
  for (uint32_t g : st.where[static_cast<size_t>(e)]) {
    if (!st.on(g, old)) fall += excess(st.load[g], goal) - excess(st.load[g] - e_down, goal);
  }
  return fall;
}

change best_change(const state& st, double goal, uint32_t left) {
  const uint32_t h = st.busiest();
  change best;
  auto offer = [&](change c) {
    if (c.worth > best.worth * (1 + 1e-12)) best = c;
  };
  const size_t first = size_t{h} * st.per_gpu, last = first + st.per_gpu;
  if (left >= 2) {
    for (uint32_t g = 0; g < st.gpus; ++g) {
      if (g == h) continue;
      const double now = excess(st.load[h], goal) + excess(st.load[g], goal);
      for (size_t a = first; a < last; ++a) {
        if (st.on(g, st.slot[a])) continue;
        for (size_t b = size_t{g} * st.per_gpu; b < (size_t{g} + 1) * st.per_gpu; ++b) {
          const double shift = st.one(st.slot[a]) - st.one(st.slot[b]);
          if (shift <= 0 || st.on(h, st.slot[b])) continue;
          offer({change::exchange, a, b, 0,
                 (now - excess(st.load[h] - shift, goal) - excess(st.load[g] + shift, goal)) / 2});
        }
      }
    }
  }
  if (left >= 1) {
    // Another copy of an expert of the busiest GPU, in place of a spare copy on a GPU with room for it ...
    for (size_t b = 0; b < st.slot.size(); ++b) {
      const uint32_t g = st.gpu_of(b);
      if (g == h || st.count[static_cast<size_t>(st.slot[b])] < 2) continue;
      const double spare = st.one(st.slot[b]);
      for (size_t a = first; a < last; ++a) {
        const int32_t e = st.slot[a];
        if (st.on(g, e) || e == st.slot[b]) continue;
        const double more = st.weight[static_cast<size_t>(e)] / (st.count[static_cast<size_t>(e)] + 1) - spare;
        if (st.load[g] + more >= st.load[h]) continue;
        offer({change::replace, b, 0, e, replace_worth(st, b, e, goal)});
      }
    }
    // ... or a spare copy on the busiest GPU gives way to a lighter expert.
    for (size_t a = first; a < last; ++a) {
      if (st.count[static_cast<size_t>(st.slot[a])] < 2) continue;
      for (size_t e = 0; e < st.weight.size(); ++e) {
        const auto x = static_cast<int32_t>(e);
        if (st.on(h, x) || st.weight[e] / (st.count[e] + 1) >= st.one(st.slot[a])) continue;
        offer({change::replace, a, 0, x, replace_worth(st, a, x, goal)});
      }
    }
  }
  return best;
}

// Places given numbers of copies from nothing.
state place_counts(const std::vector<uint32_t>& count, const std::vector<double>& weights, uint32_t slots,
                   uint32_t gpus, double goal) {
  state st(weights, slots, gpus);
  st.count = count;
  std::vector<int32_t> copies;
  for (size_t e = 0; e < weights.size(); ++e) {
    st.each[e] = weights[e] / count[e];
    copies.insert(copies.end(), count[e], static_cast<int32_t>(e));
  }
  fill(st, std::move(copies));
  exchange_down(st, goal, 16 * size_t{slots});
  return st;
}

}  // namespace

std::vector<int32_t> place_balanced(const std::vector<double>& weights, uint32_t slots, uint32_t gpus, double goal) {
  std::vector<uint32_t> count(weights.size(), 1);
  std::vector<double> each = weights;
  for (size_t s = weights.size(); s < slots; ++s) {
    size_t best = weights.size();
    for (size_t e = 0; e < weights.size(); ++e) {
      if (count[e] < gpus && (best == weights.size() || each[e] > each[best])) best = e;
    }
    each[best] = weights[best] / ++count[best];
  }
  return place_counts(count, weights, slots, gpus, goal).slot;
}

std::vector<int32_t> search_counts(std::vector<int32_t> phy2log, const std::vector<double>& weights, uint32_t gpus,
                                   double goal) {
  const auto slots = static_cast<uint32_t>(phy2log.size());
  state st = legal_state(phy2log, weights, gpus);
  double best = st.load[st.busiest()];
  double work = 0;
  for (bool better = true; better && best > goal;) {
    better = false;
    const std::vector<uint32_t> base = st.count;
    for (size_t from = 0; from < base.size() && best > goal; ++from) {
      if (base[from] < 2) continue;
      for (size_t to = 0; to < base.size() && best > goal; ++to) {
        if (to == from || base[to] >= gpus) continue;
        if ((work += static_cast<double>(slots) * gpus) > 2e6) return st.slot;
        std::vector<uint32_t> count = base;
        --count[from], ++count[to];
        state next = place_counts(count, weights, slots, gpus, goal);
        if (double load = next.load[next.busiest()]; load < best * (1 - 1e-12)) {
          best = load, better = true;
          st.slot = next.slot, st.count = next.count;
        }
      }
    }
  }
  return st.slot;
}

std::vector<int32_t> repair_and_exchange(std::vector<int32_t> phy2log, const std::vector<double>& weights,
                                         uint32_t gpus, double goal) {
  state st = legal_state(phy2log, weights, gpus);
  exchange_down(st, goal, 16 * st.slot.size());
  return st.slot;
}

std::vector<int32_t> improve_balanced(const std::vector<int32_t>& current, const std::vector<double>& weights,
                                      uint32_t gpus, double goal, uint32_t max_moves) {
  state st = legal_state(current, weights, gpus);
  st.list_places();
  std::vector<int32_t> best = st.slot;
  double best_load = st.load[st.busiest()];
  uint32_t left = max_moves;
  while (left > 0 && st.load[st.busiest()] > goal) {
    change c = best_change(st, goal, left);
    if (c.kind == change::none) break;
    if (c.kind == change::exchange) {
      st.exchange(c.a, c.b);
      left -= 2;
    } else {
      st.replace(c.a, c.expert);
      left -= 1;
    }
    if (double now = st.load[st.busiest()]; now < best_load) best_load = now, best = st.slot;
  }
  return best;
}

}  // namespace troupe::policies::detail
