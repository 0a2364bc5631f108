// What the front end measures about requests, under the names that dashboards and autoscalers of vLLM know.
#pragma once

#include <string>

#include "runtime/observe/metrics.hpp"

namespace troupe::observe {

/// Handles of the request metrics of one process. Any thread.
struct request_metrics {
  explicit request_metrics(metrics& registry);

  gauge running;  // requests that have got a token already and are not finished
  gauge waiting;  // requests handed to the cluster that have got no token yet
  counter prompt_tokens, generation_tokens;
  counter prefix_queries, prefix_hits;    // in tokens
  counter draft_tokens, accepted_tokens;  // of speculative decoding
  histogram time_to_first_token;          // seconds from the request's arrival
  histogram inter_token;                  // seconds between tokens; a message of n tokens counts n times its share
  histogram time_per_output_token;        // the same under vLLM's older name
  histogram e2e_latency;                  // seconds from the request's arrival to its last token
  histogram request_prompt_tokens, request_generation_tokens;
  counter finished_stop, finished_length, finished_abort, finished_error;  // vllm:request_success_total by reason
  gauge connections;
  counter client_gone;  // clients that left or were too slow before their answer was complete

  /// troupe_http_requests_total; `route` is one of the served paths or "other", never the client's text.
  void answered(const std::string& route, unsigned code);
  /// troupe_rejected_total: `reason` is a fixed word (overload, draining, connections, auth, body, header, timeout).
  void rejected(const char* reason);

 private:
  metrics& registry_;
};

}  // namespace troupe::observe
