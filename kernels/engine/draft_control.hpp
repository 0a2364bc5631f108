// Whether an engine drafts in a step, and how many drafts it verifies: policies/speculation and
// policies/verify_lengths, fed with what the engine's own steps cost and bring. The answers never depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/speculation.hpp"

namespace troupe::kernels {

/// Medians of the last times by number of rows. Classes of a quarter of an octave, so that memory is bounded.
class step_cost_meter {
 public:
  /// `n` rows (or requests) took `ns`. Zero of either is no measurement and ignored.
  void add(uint32_t n, int64_t ns);
  /// Whether rows of this class were measured often enough to count (3 times).
  bool knows(uint32_t n) const;
  /// One point for every class that counts, at the mean of its rows; ascending.
  std::vector<policies::step_cost_point> points() const;

 private:
  static constexpr uint32_t kept = 9, enough = 3;
  struct cell {
    std::array<int64_t, kept> ns{};
    uint32_t seen = 0;  // saturates
    double n = 0;       // mean of the last ones
  };
  static size_t class_of(uint32_t n);
  std::vector<cell> cells_;  // by class, as far as used
};

/// What a step will consist of, as far as drafts are concerned.
struct draft_outlook {
  uint32_t requests = 0;                              // sequences that decode
  uint32_t other_rows = 0;                            // rows of prompt chunks
  uint32_t most_drafts = 0;                           // the plan's verify budget
  const policies::confidence_rows* drafts = nullptr;  // at hand, one entry a request
};

/// What to do: verify the best `budget` drafts at hand, and draft for the next step.
struct draft_choice {
  uint32_t budget = 0;
  bool draft = true;
};

/// What the step was, times in nanoseconds of the engine thread.
struct draft_measurement {
  uint32_t verified = 0, drafted = 0;  // drafts verified; sequences of the draft pass
  uint32_t tokens = 0;                 // emitted by the decoding sequences
  int64_t target_ns = 0, draft_ns = 0;
};

/// Plain state of one engine; its thread calls choose() before a step and observe() after it. Deterministic: only what
/// it is told counts.
///
/// Costs are measured by rows, acceptance by classes of requests (powers of two; contexts grow too fast for classes of
/// their own). The first steps are a trial: 3 without drafting, then 3 with it, up to 24 for few requests, whose luck
/// is no measure; steps that also run prompts do not count, so they do not draft either while nothing is decided. A
/// further class begins with what the nearest decided one knows, after 3 steps without drafting where such rows were
/// never measured: a trial in each class would cost short answers more than it tells. Afterwards policies/speculation
/// switches and probes.
class draft_control {
 public:
  draft_choice choose(const draft_outlook& o);
  void observe(const draft_measurement& m);

 private:
  static constexpr size_t classes = 16;
  policies::speculation_cell& class_of(uint32_t requests);
  void refresh();

  step_cost_meter target_, draft_;
  policies::step_cost_table table_;
  policies::survival_memory memory_;
  std::array<policies::speculation_cell, classes> known_;
  draft_outlook now_;
  bool had_drafts_ = false, drafted_ = false;
  uint32_t refresh_in_ = 0;
};

}  // namespace troupe::kernels
