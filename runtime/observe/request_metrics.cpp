#include "runtime/observe/request_metrics.hpp"

namespace troupe::observe {

namespace {
const std::vector<double> first_token_bounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                                .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80,  160};
const std::vector<double> token_bounds = {.001, .0025, .005, .01, .025, .05, .075, .1, .15,
                                          .2,   .3,    .4,   .5,  .75,  1,   2.5,  5,  10};
const std::vector<double> latency_bounds = {.05, .1, .3, .5, .8, 1,  1.5, 2,   2.5, 5,  10,
                                            15,  20, 30, 40, 50, 60, 120, 240, 480, 960};
const std::vector<double> count_bounds = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const char* success_help = "Requests that ended, by reason.";
}  // namespace

request_metrics::request_metrics(metrics& r)
    : running(r.gauge("vllm:num_requests_running", "Requests that have got a token and are not finished.")),
      waiting(r.gauge("vllm:num_requests_waiting", "Requests that wait for their first token.")),
      prompt_tokens(r.counter("vllm:prompt_tokens_total", "Prompt tokens of finished requests.")),
      generation_tokens(r.counter("vllm:generation_tokens_total", "Tokens generated.")),
      prefix_queries(r.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the KV cache.")),
      prefix_hits(r.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the KV cache and not computed.")),
      draft_tokens(r.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.")),
      accepted_tokens(r.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.")),
      time_to_first_token(
          r.histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", first_token_bounds)),
      inter_token(r.histogram("vllm:inter_token_latency_seconds", "Time between tokens.", token_bounds)),
      time_per_output_token(r.histogram("vllm:time_per_output_token_seconds", "Time between tokens.", token_bounds)),
      e2e_latency(r.histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", latency_bounds)),
      request_prompt_tokens(r.histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", count_bounds)),
      request_generation_tokens(
          r.histogram("vllm:request_generation_tokens", "Generated tokens per request.", count_bounds)),
      finished_stop(r.counter("vllm:request_success_total", success_help, {{"finished_reason", "stop"}})),
      finished_length(r.counter("vllm:request_success_total", success_help, {{"finished_reason", "length"}})),
      finished_abort(r.counter("vllm:request_success_total", success_help, {{"finished_reason", "abort"}})),
      finished_error(r.counter("vllm:request_success_total", success_help, {{"finished_reason", "error"}})),
      connections(r.gauge("troupe_http_connections", "Open HTTP connections.")),
      client_gone(
          r.counter("troupe_client_gone_total", "Clients that left, or took no byte for too long, before the end.")),
      registry_(r) {}

void request_metrics::answered(const std::string& route, unsigned code) {
  registry_.counter("troupe_http_requests_total", "HTTP answers.", {{"route", route}, {"code", std::to_string(code)}})
      .add();
}

void request_metrics::rejected(const char* reason) {
  registry_.counter("troupe_rejected_total", "Requests and connections turned away.", {{"reason", reason}}).add();
}

}  // namespace troupe::observe
