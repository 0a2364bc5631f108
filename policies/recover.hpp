// What to do with a request whose rank died or failed it.
#pragma once

#include <cstdint>
#include <string>

#include "policies/resume.hpp"
#include "runtime/base/result.hpp"

namespace troupe::policies {

/// Why the request has no rank any more.
enum class request_fault : uint8_t {
  rank_lost = 0,     // its rank or node died
  group_lost = 1,    // a peer of its EP group died: the rank lives and waits for the next group view
  refused = 2,       // full or draining
  client_error = 3,  // the request is wrong
  cancelled = 4,     // by the client
};

/// The request as the entrypoint knows it.
struct recover_input {
  request_fault fault = request_fault::rank_lost;
  resume_input at;                   // prompt and known tokens (prompt + emitted), model facts
  uint32_t max_length = UINT32_MAX;  // prompt + allowed new tokens
  uint32_t rank_losses = 0;          // ranks that died under it, this one included
  uint32_t max_rank_losses = 3;      // it may be what kills them: then it is failed
  uint32_t attempts = 0;             // times it was started again, for any reason
  uint32_t max_attempts = 8;
  int64_t left_ms = 0;           // of its deadline
  int64_t view_wait_ms = 5'000;  // how long a group waits for its next view
};

/// go_elsewhere: the same request and seed on another rank, running from resume.decoder_from / hit_limit, first token
/// to emit at position known. wait_for_view: on the same rank. finish: all tokens are out, only the end was lost.
/// give_up: end it with an error event, which the client may resume. drop: nobody wants it.
enum class recover_action : uint8_t { go_elsewhere = 0, wait_for_view = 1, finish = 2, give_up = 3, drop = 4 };

/// What happens next.
struct recover_plan {
  recover_action action = recover_action::drop;
  int64_t after_ms = 0;    // go_elsewhere: pause first; wait_for_view: at most so long, then ask again with rank_lost
  bool resumable = false;  // give_up: trying again can help
  resume_plan resume;      // go_elsewhere
  std::string reason;
};

/// In this order: cancelled -> drop; client_error -> give_up, not resumable; known == max_length -> finish; more rank
/// losses than allowed -> give_up, not resumable (a request that kills ranks must not go round the fleet); no time or
/// attempts left -> give_up, resumable; group_lost -> wait_for_view; else go_elsewhere, at once after a loss, after 50
/// ms * 2^attempts (at most 2 s and half of the time left) after a refusal. Errors: window 0, known < prompt, known >
/// max_length.
result<recover_plan> plan_recover(const recover_input& in);

}  // namespace troupe::policies
