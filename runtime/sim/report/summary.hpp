// What a run came to: one JSON document. Built from the events as they come, so a recorded log gives the same document.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "policies/economics.hpp"
#include "runtime/sim/events/log.hpp"
#include "runtime/sim/faults/driver.hpp"
#include "runtime/sim/report/timeline.hpp"

namespace troupe::sim {

/// What the events do not say.
struct summary_options {
  uint64_t seed = 0;
  std::string name;      // of the experiment
  std::string workload;  // workload_source::text()
  std::string command;   // that repeats the run
  nanoseconds slo_first_token{std::chrono::seconds(2)}, slo_per_token{std::chrono::milliseconds(50)};
  uint32_t prefill_ranks = 0, decode_ranks = 0;  // 0: the most that the events show
  policies::economics_input prices;              // prices, costs, storage; hours, gpus and tokens are filled in
};

/// Order statistics of durations in ns; all 0 without any.
struct quantiles {
  uint64_t count = 0;
  int64_t p50 = 0, p90 = 0, p99 = 0, most = 0, mean = 0;
};
/// Sorts `values`. pX is the smallest value that X % of all do not exceed.
quantiles quantiles_of(std::vector<int64_t>& values);

/// A pool of ranks over the run.
struct pool_summary {
  uint32_t ranks = 0;
  uint64_t steps = 0, tokens = 0;
  double in_steps = 0;                // rank time inside steps / (ranks * run)
  double achieved_over_balanced = 0;  // middle 80 % of the run: cost-model work done / (ranks * time)
};

/// A fault as it went.
struct fault_summary {
  std::string name, kind, target;
  int64_t began = -1, ended = -1, seen = -1;  // ns; -1: not
  int64_t recovered = -1;                     // ns from begin until the cluster served as before; -1: not reported
  uint64_t streams = 0;                       // requests that were getting tokens when it began
  int64_t silence = -1;  // longest wait of one of them, from then on, for its next token or its end
};

/// The whole.
struct run_summary {
  summary_options about;
  uint64_t event_log_hash = 0, events = 0;
  int64_t virtual_ns = 0;
  uint64_t submitted = 0, finished = 0, failed = 0, cancelled = 0;
  uint64_t input_tokens = 0, output_tokens = 0;  // of submitted requests; accepted tokens
  quantiles first_token, per_token, whole;       // of finished requests; per_token of those with 2 tokens or more
  uint64_t within_slo = 0;                       // finished requests with both within the limits
  uint64_t asked_blocks = 0, hit_blocks = 0, matched_tokens = 0, hit_tokens = 0;
  uint64_t resumptions = 0;           // attempts beyond a request's first
  std::array<pool_summary, 2> pools;  // by pool_kind: prefill, decode
  std::array<uint64_t, 6> bytes{};    // by byte_kind
  std::vector<fault_summary> faults;
  std::vector<std::string> without_effect;  // of faults; a run with any proves nothing about those
  std::string violation;                    // the checker's report; "" = none
  policies::economics_plan account;
  timeline over_time;
};

/// Builds it; times count from the event run_started. Memory: 24 bytes per finished request, about 100 per open one,
/// and the timeline.
class summary_builder : public event_sink {
 public:
  explicit summary_builder(summary_options options);
  void on(const event& e) override;
  /// Names and effects of the faults, from the driver, once at the end.
  void faults(const std::vector<fault_outcome>& outcomes, std::vector<std::string> without_effect);
  /// The summary so far. `hash` and `count` are the log's.
  run_summary finish(uint64_t hash, uint64_t count) const;

 private:
  struct open_request {
    int64_t submitted = 0, first = -1, last = 0;
    uint64_t tokens = 0, attempt = 0;
    std::vector<uint32_t> waits;  // faults that began since its last token
  };
  struct pool_sums {
    uint64_t steps = 0, tokens = 0, most_ranks = 0;
    double rank_ns = 0;
    std::unordered_map<uint64_t, uint64_t> ranks_of;  // group -> most ranks
  };
  // Tokens or the end of a request came.
  void went_on(open_request& r, int64_t at_ns);

  run_summary out_;
  int64_t start_ = 0;  // of the run, in event time: times of the summary count from it
  std::unordered_map<uint64_t, open_request> open_;
  std::vector<int64_t> first_token_, per_token_, whole_;
  std::array<pool_sums, 2> pools_;
};

/// The document; docs/simulate.md ("Report") names every member. Latencies are in milliseconds.
nlohmann::ordered_json to_json(const run_summary& s);

}  // namespace troupe::sim
