#include "kernels/engine/draft_control.hpp"

#include <algorithm>
#include <bit>

namespace troupe::kernels {
namespace {

constexpr uint32_t largest_seen = 1u << 30;
constexpr uint32_t steps_per_table = 8;    // making a table sorts its points: not in every step
constexpr double longest_of_expected = 3;  // a step that was held up (a busy machine) says little about drafting

}  // namespace

// 1, 2, .. 7 each for itself, then four classes an octave.
size_t step_cost_meter::class_of(uint32_t n) {
  if (n < 8) return n;
  const auto octave = static_cast<uint32_t>(std::bit_width(n)) - 1;
  return 8 + size_t{4} * (octave - 3) + ((n >> (octave - 2)) & 3);
}

void step_cost_meter::add(uint32_t n, int64_t ns) {
  if (n == 0 || ns <= 0) return;
  const size_t at = class_of(n);
  if (at >= cells_.size()) cells_.resize(at + 1);
  cell& c = cells_[at];
  c.n += (n - c.n) / std::min(c.seen + 1, kept);
  c.ns[c.seen % kept] = ns;
  c.seen += c.seen < largest_seen ? 1 : 1 - kept;  // the place in the ring goes on
}

bool step_cost_meter::knows(uint32_t n) const {
  const size_t at = class_of(n);
  return at < cells_.size() && cells_[at].seen >= enough;
}

std::vector<policies::step_cost_point> step_cost_meter::points() const {
  std::vector<policies::step_cost_point> out;
  for (const cell& c : cells_) {
    if (c.seen < enough) continue;
    const size_t n = std::min(c.seen, kept);
    std::array<int64_t, kept> sorted = c.ns;
    std::nth_element(sorted.begin(), sorted.begin() + n / 2, sorted.begin() + n);
    out.push_back({static_cast<uint32_t>(c.n + 0.5), static_cast<double>(sorted[n / 2])});
  }
  return out;
}

policies::speculation_cell& draft_control::cell_of(uint32_t requests, uint64_t context) {
  const auto bucket = policies::bucket_of(requests, context);
  const size_t r = std::min<size_t>(bucket.requests, classes - 1), c = std::min<size_t>(bucket.context, classes - 1);
  known& k = cells_[r][c];
  if (!k.used) {
    k.used = true;
    const known& neighbour = cells_[r][last_[r]];
    if (neighbour.used) k.cell = neighbour.cell;
  }
  last_[r] = c;
  return k.cell;
}

void draft_control::refresh() {
  if (refresh_in_-- > 0) return;
  refresh_in_ = steps_per_table - 1;
  auto made = policies::make_step_cost_table(target_.points(), draft_.points());
  if (made) table_ = std::move(*made);
}

draft_choice draft_control::choose(const draft_outlook& o) {
  now_ = o;
  had_drafts_ = false;
  draft_choice choice{o.most_drafts, o.most_drafts > 0};
  if (o.requests == 0 || o.most_drafts == 0) return choice;
  for (uint32_t n : o.drafts->drafts) had_drafts_ = had_drafts_ || n > 0;
  policies::speculation_cell& cell = cell_of(o.requests, o.context);
  if (!target_.knows(o.requests)) {
    choice.draft = false;  // what a step costs without drafts has to be known first
    choice.budget = 0;
    had_drafts_ = false;
    return choice;
  }
  choice.draft = policies::plan_speculation(cell, table_, o.requests, o.other_rows).draft;
  if (!had_drafts_) return choice;
  policies::verify_capacity_input in{*o.drafts, o.other_rows, o.most_drafts};
  // The samples are keyed by position, not by which drafts were verified, so the present confidences may decide.
  if (auto best = policies::plan_verify_capacity(table_, in, memory_)) choice.budget = best->capacity;
  return choice;
}

void draft_control::observe(const draft_measurement& m) {
  if (now_.requests == 0 || now_.other_rows > 0) return;  // rows of a prompt cost something else
  const bool known = target_.knows(now_.requests + m.verified);
  target_.add(now_.requests + m.verified, m.target_ns);
  draft_.add(m.drafted, m.draft_ns);
  if (!known && target_.knows(now_.requests + m.verified)) refresh_in_ = 0;
  refresh();
  // Steps at a switch are half the one and half the other.
  const bool on = had_drafts_ && m.drafted > 0, off = !had_drafts_ && m.drafted == 0 && m.verified == 0;
  if (!on && !off) return;
  // While it drafts there are no steps without drafts that would correct a ratio to a guessed cost.
  if (off && !known) return;
  const double rows = now_.requests + m.verified;
  double ns = static_cast<double>(m.target_ns + m.draft_ns);
  const double expected =
      policies::step_cost(table_.verify, 0, rows) + (on ? policies::step_cost(table_.draft, 0, now_.requests) : 0.0);
  if (expected > 0) ns = std::min(ns, longest_of_expected * expected);
  policies::speculation_sample s{on, now_.requests, m.verified, m.tokens, 0, ns};
  (void)policies::observe(cell_of(now_.requests, now_.context), table_, s);  // refuses what is no step: a failed one
}

}  // namespace troupe::kernels
