// How many drafted tokens of each request the target model verifies in a step: DSpark's hardware-aware prefix scheduler
// in its production form. (Whether to draft at all is speculation.hpp; calibrated confidences are confidence.hpp.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A profiled time: `n` rows or requests take `ns`.
struct step_cost_point {
  uint32_t n = 0;
  double ns = 0;
};

/// What a decode step costs, profiled at start-up. Made by make_step_cost_table.
struct step_cost_table {
  std::vector<step_cost_point> verify;  // target step by rows (1 + verified drafts per request), ascending and monotone
  std::vector<step_cost_point> draft;   // draft pass by requests; empty: costs nothing or is part of `verify`
  uint32_t stairs =
      0;  // between points below this, n rows cost what the next point costs (captured sizes); above, interpolated
};

/// Sorts the points, keeps the largest time of equal n, and makes times monotone by a running maximum (noise must not
/// make more rows look cheaper). Fails on times that are not positive and finite. Empty lists are allowed: nothing was
/// profiled.
result<step_cost_table> make_step_cost_table(std::vector<step_cost_point> verify, std::vector<step_cost_point> draft,
                                             uint32_t stairs = 0);

/// True if the table can tell more rows from fewer. Without one the argmax would be arbitrary, so nothing is trimmed.
bool is_profiled(const step_cost_table& table);

/// Time of `n` by points: the first point's below it, the next point's after a point below `stairs`, else linear
/// between points, and on along the last segment beyond the last. 0 without points.
double step_cost(const std::vector<step_cost_point>& points, uint32_t stairs, double n);

/// Calibrated confidences: value[r * width + k] is the probability that draft k of request r survives given that 0..k-1
/// did; the first drafts[r] <= width of a request count.
struct confidence_rows {
  uint32_t width = 0;
  std::vector<float> value;
  std::vector<uint32_t> drafts;
};

/// Input of plan_verify_capacity.
struct verify_capacity_input {
  confidence_rows stale;             // two steps old; 1 for requests that are new or were reset since
  uint32_t other_rows = 0;           // rows of the step besides one per request and the drafts (prompt chunks)
  uint32_t max_drafts = UINT32_MAX;  // cap on the total, e.g. what the sampler holds
};

/// Total number of drafts to verify, and what it is expected to bring.
struct verify_capacity_plan {
  uint32_t capacity = 0;
  double tokens = 0;   // expected tokens of the step, one per request included
  double cost_ns = 0;  // draft pass and target step; 0 without a profiled table
  std::string reason;
};

/// capacity = argmax over n of (requests + sum of the n largest survivals) / (draft(requests) + verify(requests + other
/// + n)), survival = product of a request's confidences up to the draft; ties to the smaller n. A global argmax:
/// staircase costs have several maxima. Survivals below 1e-6 are never worth a row. Without a profiled table:
/// everything, and the reason says so. Lossless because the confidences are older than the tokens they decide on
/// (DSpark section 5.2). Fails on wrong sizes and on values outside [0, 1].
result<verify_capacity_plan> plan_verify_capacity(const step_cost_table& table, const verify_capacity_input& in);

/// What survived lately: the mean over past steps of the largest survival of a batch, of the second largest, and so on.
/// Few requests say little about the next step: their survivals two steps ago are mostly luck, and an argmax over luck
/// trims too much. So their steps are averaged, over about `request_steps` requests in all, the newest weighing most.
struct survival_memory {
  uint32_t request_steps = 256;
  uint32_t seen = 0;        // requests averaged so far; counts up to request_steps
  double weight = 0;        // steps averaged, each as far as it still counts
  std::vector<float> best;  // best[i] = mean survival of the draft with the (i + 1)-th largest survival of its step
};

/// As above, but by `memory` with in.stale added to it. Everything is verified until the memory is full, and whenever
/// trimming promises less than 0.1 %: the long-run choice, which does not lose against verifying everything. Batches of
/// request_steps requests or more are judged by in.stale alone. When the number of drafts changes, the memory is
/// stretched to it. On an error the memory stays as it was.
result<verify_capacity_plan> plan_verify_capacity(const step_cost_table& table, const verify_capacity_input& in,
                                                  survival_memory& memory);

/// Drafts to verify per request.
struct verify_lengths_plan {
  std::vector<uint32_t> lengths;
  double tokens = 0;  // expected, by these confidences
  std::string reason;
};

/// Gives `capacity` drafts to the largest current survivals; ties to the earlier position, then to the lower request.
/// Survival falls along a request, so each gets a prefix; whether draft k is verified never depends on later
/// confidences of its request. Fails as plan_verify_capacity.
result<verify_lengths_plan> assign_verify_lengths(const confidence_rows& current, uint32_t capacity);

}  // namespace troupe::policies
