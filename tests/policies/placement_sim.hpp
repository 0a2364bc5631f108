// A small fleet to judge placement on: lock-step groups of ranks, a looped and rate-scaled trace, cost-model time. It
// shares no code with the decisions except that the decision under test is called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::policies::sim {

/// One request of the trace. `at` in seconds from the start; the requests of a 3 s bin are spread evenly over it.
struct trace_request {
  double at = 0;
  uint32_t input = 0, fresh = 0, output = 0;  // tokens; fresh = not served by an infinite shared prefix cache
};

/// conversation_trace.jsonl in the folder TROUPE_TRACES, or, without it, 4,000 generated requests of similar lengths.
/// `name` says which.
std::vector<trace_request> load_trace(std::string& name, uint64_t seed);

/// Who decides.
enum class placer { round_robin, least_requests, two_choices, ours };
const char* to_string(placer p);

/// A run. The fleet holds at most `in_flight` requests, all of which are there at the start; the trace, looped, offers
/// `offered` times what the fleet could do if its work were spread perfectly; what finds the fleet full is refused.
struct run_options {
  uint32_t ranks = 8;
  uint32_t group = 4;  // ranks that step together: a step takes as long as its busiest rank
  uint32_t in_flight = 64;
  double offered = 1.4;   // so that the quietest five minutes of the trace still offer 110 %
  uint64_t requests = 0;  // offered in all
  uint64_t seed = 1;
  placer by = placer::ours;
  double isolation_ns = -1;  // of our prefill placement; below 0: its default
};

/// What the middle 80 % of the run's time achieved.
struct run_report {
  double of_bound = 0;  // cost-model work done / (ranks * time)
  double short_p50 = 0,
         short_p99 = 0;  // prefill: seconds from arrival to last chunk, prompts of at most 4,096 new tokens
  uint64_t done = 0;
};

/// Prefill: cost a q^2 + b q c + d q per chunk with the published illustration's coefficients; a step runs chunks of up
/// to 300 ms per rank, half of it shared equally by at most 16 prompts, the rest to the oldest.
run_report run_prefill(const std::vector<trace_request>& trace, const run_options& o);

/// Decode: a step gives each request one token and costs a rank 12 us per request + 1 ns per KV token.
run_report run_decode(const std::vector<trace_request>& trace, const run_options& o);

/// Requests in flight at which `by` first reaches `goal` of the bound, by bisection over [ranks, 4096 * ranks].
uint32_t find_load(const std::vector<trace_request>& trace, run_options o, double goal,
                   run_report (*run)(const std::vector<trace_request>&, const run_options&));

}  // namespace troupe::policies::sim
