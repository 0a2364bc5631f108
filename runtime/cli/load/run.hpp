// Plays a load plan against an HTTP server: many streams on one thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/cli/load/histogram.hpp"
#include "runtime/cli/load/plan.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {

/// Where the load goes and how much of it at once.
struct load_target {
  std::vector<config::address> servers;  // the fronts, at least one; they take turns
  std::string model, api_key;
  uint32_t vocabulary = 256;  // of prompts
  uint32_t concurrency = 32;  // requests at once; further ones that are due wait here, which `lag` shows
  float temperature = 0;
  nanoseconds silence{0};  // that a request may last without a byte
};

/// What came of it. sent = finished + left + interrupted + failed. Latencies are of finished requests whose client did
/// not read slowly.
struct load_summary {
  uint64_t sent = 0, finished = 0, left = 0, interrupted = 0, failed = 0;
  uint64_t skipped = 0;  // do not fit the model's context
  uint64_t unsent = 0;   // due, but stopped before
  uint64_t slow = 0;     // of `sent`: the client read slowly
  uint64_t leavers = 0;  // of `sent`: were to be left
  uint32_t most_at_once = 0;
  bool stopped = false;                                                  // by a signal
  std::map<std::string, uint64_t> errors;                                // of `failed`, by kind; at most 32 kinds
  uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // of finished requests, by their usage
  uint64_t expected_prompt_tokens = 0, expected_completion_tokens = 0;   // of the same, as asked for
  uint64_t tokens = 0;                                                   // received, of all requests
  nanoseconds took{0};                                                   // from the first request to the last end
  latency_histogram first_token, between_tokens, per_token, whole, lag;
};

/// How a run goes, for progress.
struct load_progress {
  nanoseconds since_start{0};
  uint32_t running = 0;
  const load_summary* so_far = nullptr;
};

/// Runs the plan to its end on the calling thread. SIGINT or SIGTERM: no further requests, running ones are closed,
/// and the summary is of what was done; a second one ends the process. `progress` is called about once a second.
load_summary run_load(load_plan plan, const load_target& target, const clock_source& clock,
                      const std::function<void(const load_progress&)>& progress);

/// The JSON body of a request.
std::string completion_body(const load_request& r, const load_target& target, const std::vector<int32_t>& prompt,
                            uint64_t seed);

}  // namespace troupe::cli
