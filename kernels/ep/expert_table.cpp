#include "kernels/ep/expert_table.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::kernels::ep {

expert_table::expert_table(placement places, uint32_t ranks, uint32_t rank, split_options split)
    : places_(std::move(places)), rank_(rank), ranks_(ranks), split_(split), layers_(places_.copies.size()) {
  TROUPE_CHECK(rank < ranks, "rank {} of {}", rank, ranks);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto& copies = places_.copies[l];
    layer_state& s = layers_[l];
    s.here.assign(copies.size(), -1);
    std::vector<std::vector<uint32_t>> held(ranks);
    bool several = false;
    for (uint32_t e = 0; e < copies.size(); ++e) {
      several = several || copies[e].size() > 1;
      for (const uint32_t r : copies[e]) {
        TROUPE_CHECK(r < ranks, "expert {} of layer {} on rank {} of {}", e, l, r, ranks);
        if (r == rank) s.here[e] = static_cast<int32_t>(held[r].size());
        held[r].push_back(e);
      }
    }
    s.split = several && split_.window > 0;
    if (!s.split) continue;
    auto table = policies::make_copy_table(copies, ranks);
    TROUPE_CHECK(table.has_value(), "layer {}: {}", l, table.error().message);
    s.copies = std::move(*table);
    s.share.resize(s.copies.rank.size());
    s.credit.resize(s.copies.rank.size());
    s.rows.assign(copies.size(), 0);
    for (const auto& h : held) {
      s.first_held.push_back(static_cast<uint32_t>(s.held.size()));
      s.held.insert(s.held.end(), h.begin(), h.end());
    }
    s.first_held.push_back(static_cast<uint32_t>(s.held.size()));
    s.counted.resize(held[rank].size());
    for (uint32_t e = 0; e < copies.size(); ++e) {
      const uint32_t first = s.copies.first[e], n = s.copies.first[e + 1] - first;
      // The ranks start at different copies, so that a few rows of each do not all go to the same one.
      for (uint32_t i = 0; i < n; ++i) {
        s.share[first + i] = 1.0f / static_cast<float>(n);
        s.credit[first + i] = static_cast<float>((rank + i) % n) / static_cast<float>(n);
      }
    }
  }
}

uint32_t expert_table::copies_here(uint32_t layers) const {
  uint32_t sum = 0;
  for (size_t l = 0; l < std::min<size_t>(layers, layers_.size()); ++l)
    for (const int32_t h : layers_[l].here) sum += h >= 0;
  return sum;
}

uint32_t expert_table::choose(uint32_t layer, uint32_t expert, uint32_t position) {
  const auto& ranks = places_.copies[layer][expert];
  if (ranks.size() == 1) return ranks[0];
  layer_state& s = layers_[layer];
  if (!s.split) return ranks[position % ranks.size()];
  // Each copy is owed its share of every row; the one that is owed most gets this row.
  const uint32_t first = s.copies.first[expert], end = s.copies.first[expert + 1];
  uint32_t best = first;
  for (uint32_t i = first; i < end; ++i) {
    s.credit[i] += s.share[i];
    if (s.credit[i] > s.credit[best]) best = i;
  }
  s.credit[best] -= 1;
  return s.copies.rank[best];
}

std::span<const uint32_t> expert_table::count(uint32_t layer, std::span<const received::item> items) {
  layer_state& s = layers_[layer];
  if (!s.split) return {};
  std::fill(s.counted.begin(), s.counted.end(), 0u);
  for (const auto& item : items) ++s.counted[static_cast<size_t>(s.here[item.expert])];
  return s.counted;
}

void expert_table::learn(uint32_t layer, const group& from, uint32_t micro) {
  layer_state& s = layers_[layer];
  if (!s.split) return;
  for (uint32_t r = 0; r < ranks_; ++r) {
    const auto numbers = from.notes(micro, r);
    const uint32_t first = s.first_held[r];
    // A rank of another mind would count otherwise; what it says is then of no use, and no harm.
    if (numbers.size() != s.first_held[r + 1] - first) continue;
    for (size_t i = 0; i < numbers.size(); ++i) s.rows[s.held[first + i]] += numbers[i];
  }
}

void expert_table::end_step() {
  if (split_.window == 0 || ++steps_ < split_.window) return;
  steps_ = 0;
  for (layer_state& s : layers_) {
    if (!s.split) continue;
    auto plan = policies::plan_copy_split(s.copies, s.rows);
    TROUPE_CHECK(plan.has_value(), "{}", plan.error().message);
    for (size_t e = 0; e < s.rows.size(); ++e) {
      const uint32_t first = s.copies.first[e], end = s.copies.first[e + 1];
      if (end - first == 1) continue;
      for (uint32_t i = first; i < end; ++i)
        s.share[i] =
            s.rows[e] > 0 ? static_cast<float>(plan->share[i] / s.rows[e]) : 1.0f / static_cast<float>(end - first);
      s.rows[e] = 0;
    }
    std::fill(s.rows.begin(), s.rows.end(), 0.0);
  }
}

double expert_table::share(uint32_t layer, uint32_t expert, uint32_t rank) const {
  const layer_state& s = layers_[layer];
  const auto& ranks = places_.copies[layer][expert];
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  if (it == ranks.end()) return 0;
  if (!s.split) return 1.0 / static_cast<double>(ranks.size());
  return s.share[s.copies.first[expert] + static_cast<size_t>(it - ranks.begin())];
}

slot_list first_slots(uint32_t ranks, uint32_t experts, uint32_t per_rank) {
  TROUPE_CHECK(ranks > 0 && per_rank <= experts && uint64_t{per_rank} * ranks >= experts, "{} slots on {} ranks for {}",
               per_rank, ranks, experts);
  slot_list out;
  for (uint32_t r = 0; r < ranks; ++r) {
    // The block of contiguous_placement: experts e with e * ranks / experts == r.
    const auto from = static_cast<uint32_t>((uint64_t{r} * experts + ranks - 1) / ranks);
    for (uint32_t i = 0; i < per_rank; ++i) out.push_back(static_cast<int32_t>((from + i) % experts));
  }
  return out;
}

result<std::vector<std::vector<uint32_t>>> copies_of(const slot_list& slots, uint32_t ranks, uint32_t experts) {
  if (ranks == 0 || slots.empty() || slots.size() % ranks)
    return fail(errc::invalid_argument, "{} expert slots do not divide among {} ranks", slots.size(), ranks);
  std::vector<std::vector<uint32_t>> out(experts);
  const size_t per_rank = slots.size() / ranks;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s] < 0 || static_cast<uint32_t>(slots[s]) >= experts)
      return fail(errc::invalid_argument, "slot {} names expert {} of {}", s, slots[s], experts);
    auto& ranks_of = out[static_cast<size_t>(slots[s])];
    const auto r = static_cast<uint32_t>(s / per_rank);
    if (ranks_of.empty() || ranks_of.back() != r) ranks_of.push_back(r);
  }
  for (uint32_t e = 0; e < experts; ++e)
    if (out[e].empty()) return fail(errc::invalid_argument, "expert {} has no slot", e);
  return out;
}

slot_list slots_of(const std::vector<std::vector<uint32_t>>& copies, uint32_t ranks) {
  std::vector<slot_list> held(ranks);
  for (size_t e = 0; e < copies.size(); ++e)
    for (const uint32_t r : copies[e]) held[r].push_back(static_cast<int32_t>(e));
  slot_list out;
  for (const auto& h : held) {
    if (h.size() != held[0].size()) return {};
    out.insert(out.end(), h.begin(), h.end());
  }
  return out;
}

}  // namespace troupe::kernels::ep
