// Random traffic through a group, checked against a naive model that every rank computes for itself: what all ranks
// send is a pure function of (seed, step, layer, rank).
#pragma once

#include <algorithm>
#include <optional>
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

/// One exchange of a micro-batch on rank g.rank(), in its four halves. Each returns an empty string, or what was wrong;
/// an error of the group itself starts with its code.
class layer_run {
 public:
  layer_run(group& g, const ep_scenario& s, uint64_t step, uint32_t layer, uint32_t micro)
      : g_(g), s_(s), shape_(g.shape()), step_(step), layer_(layer), micro_(micro) {
    shape_.max_rows = shape_.rows_of(micro);
    mine_ = rows_of(g.rank());
  }

  std::string half(uint32_t number) {
    switch (number) {
      case 0:
        return said(g_.dispatch_send(micro_, layer_, mine_.x, mine_.routes, mine_.k));
      case 1:
        return take();
      case 2:
        out_.assign(size_t{mine_.rows} * mine_.k * shape_.hidden, -1.0f);
        return said(g_.combine_send(micro_, layer_, y_, out_, notes_of(g_.rank())));
      default:
        return end();
    }
  }

 private:
  sent_rows rows_of(uint32_t rank) const { return make_rows(s_, shape_, step_, layer_ + 100 * micro_, rank); }

  template <class T>
  static std::string said(const result<T>& r) {
    return r ? std::string() : fmt::format("{}: {}", to_string(r.error().code), r.error().message);
  }

  std::string wrong(const std::string& what) const {
    return fmt::format("step {} layer {} micro-batch {} rank {}: {}", step_, layer_, micro_, g_.rank(), what);
  }

  // Some numbers along with the vectors: as many as (rank + layer) says.
  std::vector<uint32_t> notes_of(uint32_t rank) const {
    std::vector<uint32_t> n(shape_.notes == 0 ? 0 : (rank + layer_) % (shape_.notes + 1));
    for (size_t i = 0; i < n.size(); ++i)
      n[i] = static_cast<uint32_t>(1000 * rank + 10 * layer_ + i + step_ + 100'000 * micro_);
    return n;
  }

  std::string take() {
    auto got = g_.dispatch_wait(micro_);
    if (!got) return said(got);
    // What must have come, naively.
    const uint32_t me = g_.rank(), hidden = shape_.hidden;
    std::vector<float> rows;
    std::vector<received::item> items;
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const sent_rows in = rows_of(source);
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
            y_.push_back(expert_value(in.x[row * hidden + h], r.expert, r.weight, me, h));
        }
      }
    }
    if (!std::equal(rows.begin(), rows.end(), got->rows.begin(), got->rows.end()))
      return wrong(fmt::format("rows differ ({} came, {} expected)", got->rows.size() / hidden, rows.size() / hidden));
    if (items.size() != got->items.size())
      return wrong(fmt::format("{} items, {} expected", got->items.size(), items.size()));
    for (size_t i = 0; i < items.size(); ++i)
      if (items[i].row != got->items[i].row || items[i].expert != got->items[i].expert ||
          items[i].weight != got->items[i].weight)
        return wrong(fmt::format("item {} differs", i));
    return {};
  }

  std::string end() {
    if (auto ok = g_.combine_wait(micro_); !ok) return said(ok);
    for (uint32_t r = 0; r < shape_.ranks; ++r) {
      const auto want = notes_of(r);
      const auto got = g_.notes(micro_, r);
      if (!std::equal(want.begin(), want.end(), got.begin(), got.end()))
        return wrong(fmt::format("the notes of rank {} differ", r));
    }
    const uint32_t hidden = shape_.hidden;
    for (size_t i = 0; i < mine_.routes.size(); ++i)
      for (uint32_t h = 0; h < hidden; ++h) {
        const route& r = mine_.routes[i];
        if (out_[i * hidden + h] != expert_value(mine_.x[i / mine_.k * hidden + h], r.expert, r.weight, r.rank, h))
          return wrong(fmt::format("vector {} differs", i));
      }
    return {};
  }

  group& g_;
  const ep_scenario& s_;
  group_shape shape_;  // as this micro-batch sees it
  const uint64_t step_;
  const uint32_t layer_, micro_;
  sent_rows mine_;
  std::vector<float> y_, out_;
};

/// `layers` exchanges of each micro-batch, whose halves mix at random, in the same order on every rank.
inline std::string run_layers(group& g, const ep_scenario& s, uint64_t step) {
  rng order(s.seed, (step << 20) ^ 77);
  struct place {
    uint32_t layer = 0, half = 0;
    std::optional<layer_run> run;
  };
  std::vector<place> at(g.shape().micro_batches);
  for (;;) {
    std::vector<uint32_t> open;
    for (uint32_t b = 0; b < at.size(); ++b)
      if (at[b].layer < s.layers) open.push_back(b);
    if (open.empty()) return {};
    const uint32_t b = open[order.below(open.size())];
    if (at[b].half == 0) at[b].run.emplace(g, s, step, at[b].layer, b);
    if (auto wrong = at[b].run->half(at[b].half); !wrong.empty()) return wrong;
    if (++at[b].half < 4) continue;
    at[b].half = 0;
    ++at[b].layer;
  }
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
    if (auto wrong = run_layers(g, s, step); !wrong.empty()) return wrong;
  }
  step_header bye;
  bye.leaving = true;
  if (auto all = g.begin_step(bye); !all)
    return fmt::format("{}: {}", to_string(all.error().code), all.error().message);
  return {};
}

}  // namespace troupe::kernels::ep
