// Random traffic through a group, checked against a naive model that every rank computes for itself: what all ranks
// send is a pure function of (seed, step, layer, rank).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/ep/ep.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::ep {

enum class traffic { random, empty_ranks, one_expert, redundant, zero_rows };

struct ep_scenario {
  uint64_t seed = 1;
  traffic kind = traffic::random;
  uint32_t steps = 4, layers = 5, experts = 12;
};

/// What `rank` sends in one exchange.
struct sent_rows {
  uint32_t rows = 0, k = 0;
  std::vector<float> x;
  std::vector<route> routes;
};

inline sent_rows make_rows(const ep_scenario& s, const group_shape& g, uint64_t step, uint32_t layer, uint32_t rank) {
  rng shared(s.seed, (step << 20) ^ (uint64_t{layer} << 8));
  sent_rows out;
  out.k = 1 + static_cast<uint32_t>(shared.below(g.top_k));
  rng r(s.seed, (step << 20) ^ (uint64_t{layer} << 8) ^ (rank + 1));
  out.rows = static_cast<uint32_t>(r.below(g.max_rows + 1));
  if (s.kind == traffic::empty_ranks && (rank + step) % 2 == 0) out.rows = 0;
  if (s.kind == traffic::zero_rows) out.rows = 0;
  if (s.kind == traffic::one_expert) out.rows = g.max_rows;
  out.x.resize(size_t{out.rows} * g.hidden);
  for (auto& v : out.x) v = static_cast<float>(r.below(4096));
  for (uint32_t i = 0; i < out.rows * out.k; ++i) {
    route to;
    to.expert = s.kind == traffic::one_expert ? 3 : static_cast<uint32_t>(r.below(s.experts));
    to.rank = to.expert % g.ranks;
    if (s.kind == traffic::redundant) to.rank = static_cast<uint32_t>(r.below(g.ranks));
    to.weight = static_cast<float>(r.uniform());
    out.routes.push_back(to);
  }
  return out;
}

/// The "expert": depends on the row, the expert, the weight and the rank that ran it.
inline float expert_value(float x, uint32_t expert, float weight, uint32_t rank, uint32_t h) {
  return x * weight + static_cast<float>(expert * 7 + rank * 131 + h % 5);
}

/// One layer on rank g.rank(). Empty, or what was wrong; an error of the group itself starts with its code.
inline std::string run_layer(group& g, const ep_scenario& s, uint64_t step, uint32_t layer) {
  const group_shape& shape = g.shape();
  const uint32_t me = g.rank(), hidden = shape.hidden;
  const sent_rows mine = make_rows(s, shape, step, layer, me);
  auto got = g.dispatch(layer, mine.x, mine.routes, mine.k);
  if (!got) return fmt::format("{}: {}", to_string(got.error().code), got.error().message);
  // What must have come, naively.
  std::vector<float> rows, y;
  std::vector<received::item> items;
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const sent_rows in = source == me ? mine : make_rows(s, shape, step, layer, source);
    for (uint32_t row = 0; row < in.rows; ++row) {
      const bool any = std::any_of(in.routes.begin() + row * in.k, in.routes.begin() + (row + 1) * in.k,
                                   [&](const route& r) { return r.rank == me; });
      if (!any) continue;
      const auto at = static_cast<uint32_t>(rows.size() / hidden);
      rows.insert(rows.end(), in.x.begin() + row * hidden, in.x.begin() + (row + 1) * hidden);
      for (uint32_t i = 0; i < in.k; ++i) {
        const route& r = in.routes[row * in.k + i];
        if (r.rank != me) continue;
        items.push_back({at, r.expert, r.weight});
        for (uint32_t h = 0; h < hidden; ++h)
          y.push_back(expert_value(in.x[row * hidden + h], r.expert, r.weight, me, h));
      }
    }
  }
  if (!std::equal(rows.begin(), rows.end(), got->rows.begin(), got->rows.end()))
    return fmt::format("step {} layer {} rank {}: rows differ ({} came, {} expected)", step, layer, me,
                       got->rows.size() / hidden, rows.size() / hidden);
  if (items.size() != got->items.size())
    return fmt::format("step {} layer {} rank {}: {} items, {} expected", step, layer, me, got->items.size(),
                       items.size());
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].row != got->items[i].row || items[i].expert != got->items[i].expert ||
        items[i].weight != got->items[i].weight)
      return fmt::format("step {} layer {} rank {}: item {} differs", step, layer, me, i);
  std::vector<float> out(size_t{mine.rows} * mine.k * hidden, -1.0f);
  // Some numbers along with it: as many as (rank + layer) says.
  auto notes_of = [&](uint32_t rank) {
    std::vector<uint32_t> n(shape.notes == 0 ? 0 : (rank + layer) % (shape.notes + 1));
    for (size_t i = 0; i < n.size(); ++i) n[i] = static_cast<uint32_t>(1000 * rank + 10 * layer + i + step);
    return n;
  };
  if (auto ok = g.combine(layer, y, out, notes_of(me)); !ok)
    return fmt::format("{}: {}", to_string(ok.error().code), ok.error().message);
  for (uint32_t r = 0; r < shape.ranks; ++r) {
    const auto want = notes_of(r);
    const auto got_notes = g.notes(r);
    if (!std::equal(want.begin(), want.end(), got_notes.begin(), got_notes.end()))
      return fmt::format("step {} layer {} rank {}: the notes of rank {} differ", step, layer, me, r);
  }
  for (size_t i = 0; i < mine.routes.size(); ++i)
    for (uint32_t h = 0; h < hidden; ++h) {
      const route& r = mine.routes[i];
      if (out[i * hidden + h] != expert_value(mine.x[i / mine.k * hidden + h], r.expert, r.weight, r.rank, h))
        return fmt::format("step {} layer {} rank {}: vector {} differs", step, layer, me, i);
    }
  return {};
}

/// Steps with layers, then one step of everybody leaving. Empty, or the first thing wrong.
inline std::string run_scenario(group& g, const ep_scenario& s) {
  for (uint64_t step = 0; step < s.steps; ++step) {
    step_header mine;
    // Each step some rank has work, never the same flags on all.
    mine.has_work = g.rank() == step % g.shape().ranks;
    mine.encoder = g.rank() == 0;
    mine.draft = g.rank() + 1 == g.shape().ranks;
    mine.micro_batches = 1 + g.rank();
    mine.chunk_budget_ns = 1000 + g.rank() * 10 + step;
    mine.moving = g.rank() == 0;
    mine.flip_step = 50 + step + g.rank() % 2;  // of those at the earliest step the newest counts
    mine.flip_version = placement_version{1 + g.rank()};
    auto all = g.begin_step(mine);
    if (!all) return fmt::format("{}: {}", to_string(all.error().code), all.error().message);
    step_header expected{true, true, false, true, false, g.shape().ranks, 1000 + step};
    expected.moving = true;
    expected.flip_step = 50 + step;
    expected.flip_version = placement_version{1 + (g.shape().ranks - 1) / 2 * 2};
    if (!(*all == expected)) return fmt::format("step {} rank {}: the group's header differs", step, g.rank());
    for (uint32_t layer = 0; layer < s.layers; ++layer)
      if (auto wrong = run_layer(g, s, step, layer); !wrong.empty()) return wrong;
  }
  step_header bye;
  bye.leaving = true;
  if (auto all = g.begin_step(bye); !all)
    return fmt::format("{}: {}", to_string(all.error().code), all.error().message);
  return {};
}

}  // namespace troupe::kernels::ep
