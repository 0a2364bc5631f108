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

policies::speculation_cell& draft_control::class_of(uint32_t requests) {
  const size_t at = std::min<size_t>(policies::bucket_of(requests, 0).requests, classes - 1);
  policies::speculation_cell& cell = known_[at];
  if (!cell.on || policies::is_decided(cell)) return cell;  // it knows something itself
  const policies::speculation_cell* nearest = nullptr;
  const auto far = [at](size_t x) { return x > at ? x - at : at - x; };
  for (size_t i = 0; i < classes; ++i)
    if (policies::is_decided(known_[i]) && (!nearest || far(i) < far(static_cast<size_t>(nearest - known_.data()))))
      nearest = &known_[i];
  if (!nearest) return cell;
  cell = *nearest;
  cell.slower_on = cell.slower_off = 1;
  cell.seen_off = 0;
  return cell;
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
  if (o.most_drafts == 0) return choice;
  if (o.requests == 0) {  // prompts alone: what was right for the decoding sequences before them
    choice.draft = drafted_;
    return choice;
  }
  for (uint32_t n : o.drafts->drafts) had_drafts_ = had_drafts_ || n > 0;
  const policies::speculation_cell& cell = class_of(o.requests);
  if (!target_.knows(o.requests)) {
    choice.draft = drafted_ = false;  // what a step costs without drafts has to be known first
    choice.budget = 0;
    had_drafts_ = false;
    return choice;
  }
  // A class that begins with another one's knowledge may have its switch on where its own costs already say no.
  const auto plan = policies::plan_speculation(cell, table_, o.requests, o.other_rows);
  choice.draft = policies::is_decided(cell) ? plan.draft && plan.gain >= 1 : o.other_rows == 0;
  drafted_ = choice.draft;
  if (!had_drafts_) return choice;
  policies::verify_capacity_input in{*o.drafts, o.other_rows, o.most_drafts};
  // The samples are keyed by position, not by which drafts were verified, so the present confidences may decide.
  if (auto best = policies::plan_verify_capacity(table_, in, memory_)) choice.budget = best->capacity;
  return choice;
}

void draft_control::observe(const draft_measurement& m) {
  if (now_.requests == 0 || now_.other_rows > 0) return;  // rows of a prompt cost something else
  const bool knew = target_.knows(now_.requests + m.verified), knew_draft = draft_.knows(m.drafted);
  target_.add(now_.requests + m.verified, m.target_ns);
  draft_.add(m.drafted, m.draft_ns);
  if (knew != target_.knows(now_.requests + m.verified) || knew_draft != draft_.knows(m.drafted)) refresh_in_ = 0;
  refresh();
  // Steps at a switch are half the one and half the other.
  const bool on = had_drafts_ && m.drafted > 0, off = !had_drafts_ && m.drafted == 0 && m.verified == 0;
  if (!on && !off) return;
  // While it drafts there are no steps without drafts that would correct a ratio to a guessed cost.
  if (off && !knew) return;
  const double rows = now_.requests + m.verified;
  double ns = static_cast<double>(m.target_ns + m.draft_ns);
  const double expected =
      policies::step_cost(table_.verify, 0, rows) + (on ? policies::step_cost(table_.draft, 0, now_.requests) : 0.0);
  // Beyond the rows that were measured the table is a guess, and a ratio to it would only be wrong later.
  const bool measured = policies::is_profiled(table_) && rows <= table_.verify.back().n;
  if (expected > 0) ns = measured ? std::min(ns, longest_of_expected * expected) : expected;
  policies::speculation_sample s{on, now_.requests, m.verified, m.tokens, 0, ns};
  (void)policies::observe(class_of(now_.requests), table_, s);  // refuses what is no step: a failed one
}

}  // namespace troupe::kernels
