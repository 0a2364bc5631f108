// The entrypoint's own side: what a gateway (or a test) in the same process asks of it. client_submit stays inside the
// process: it carries a sink.
//
//   gateway --- client_submit{request, sink} ---> entrypoint --- client_event, in order, the last with `done` ---> sink
//   gateway --- client_cancel{id} --------------> entrypoint
#pragma once

#include <memory>

#include "actors/protocol/cluster.hpp"
#include "actors/protocol/eplb.hpp"
#include "actors/protocol/serving.hpp"

namespace troupe::actors {

/// What the client is told. Tokens in order of position, each once; exactly one event has `done`.
struct client_event {
  uint32_t first_position = 0;
  std::vector<kernels::token_id> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<kernels::token_logprob>> top;
  bool done = false;
  kernels::finish_reason finish = kernels::finish_reason::none;
  uint32_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, drafted = 0, accepted = 0;
  errc failure{};
  std::string failure_text;
  uint32_t retry_after_ms = 0;  // with exhausted and unavailable
};

/// Takes the events of one request, on the entrypoint's thread; must not block and must not throw.
class client_sink {
 public:
  virtual ~client_sink() = default;
  virtual void on_event(client_event e) = 0;
};

/// Starts a request. Stays inside the process, because it carries a sink.
struct client_submit {
  std::string id;  // unique among running requests
  std::string tenant, salt;
  uint8_t traffic = 0;                // kv::traffic_class
  uint8_t priority = 5;               // 0 to 9, higher is sooner (policies/queue_order.hpp)
  bool cache = true;                  // blocks of it may be read from and written to the store
  std::vector<kv::block_hash> chain;  // of the complete blocks of the prompt, under the salt
  std::vector<kernels::token_id> prompt;
  kernels::sampling_params sampling;
  kernels::stop_params stop;
  bool speculate = true;
  std::shared_ptr<client_sink> sink;
};

/// Ends a request early; unknown ids are ignored.
struct client_cancel {
  std::string id;
  bool operator==(const client_cancel&) const = default;
};
TROUPE_FIELDS(client_cancel, id)

struct front_query {
  bool operator==(const front_query&) const = default;
};
TROUPE_NO_FIELDS(front_query)

/// Counters are since the start of the actor.
struct front_report {
  bool ready = false;  // a decode scheduler is attached and admission is open
  bool draining = false;
  uint32_t running = 0, prefill_schedulers = 0, decode_schedulers = 0;
  uint64_t accepted = 0, refused = 0, finished = 0, cancelled = 0, failed = 0, resumed = 0, tokens = 0;
  uint64_t pulled = 0, pulled_bytes = 0, computed_again = 0;  // sequences handed over, and those whose hand-over failed
  int64_t pulled_ns = 0;                                      // sum
  uint64_t balanced = 0, alone = 0;  // places that balancers gave, and that this front chose without one
  uint64_t matches = 0, matches_failed = 0, matches_late = 0;  // asked of the store; of these not answered; too late
  uint64_t hit_tokens = 0, miss_tokens = 0;                    // of prompts that ended: not computed, computed
  kernels::model_facts facts;                                  // of the attached decode schedulers
  std::vector<eplb_report> experts;                            // the last one of each group that is balanced
  bool operator==(const front_report&) const = default;
};
TROUPE_FIELDS(front_report, ready, draining, running, prefill_schedulers, decode_schedulers, accepted, refused,
              finished, cancelled, failed, resumed, tokens, pulled, pulled_bytes, computed_again, pulled_ns, balanced,
              alone, matches, matches_failed, matches_late, hit_tokens, miss_tokens, facts, experts)

using entrypoint_actor = actor_type<takes<client_submit>, takes<client_cancel>, takes<cluster_view>, takes<token_batch>,
                                    takes<eplb_report>, takes<match_answer>, answers<front_query, front_report>,
                                    answers<drain_request, drain_reply>, takes<tick>>;

}  // namespace troupe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::client_submit)
