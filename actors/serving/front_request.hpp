// What an entrypoint knows about a request of its clients, and about a scheduler that may take it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/front.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/serving/token_stream.hpp"

namespace troupe::actors {

/// A scheduler somewhere.
struct front_target {
  enum class state : uint8_t { unknown, resolving, attached };
  role what = role::none;
  state at = state::unknown;
  bool admits = false;  // its seat was ready in the last view
  scheduler_actor handle;
  attach_reply facts;
};

/// A request between its submit and its end.
struct front_request {
  enum class phase : uint8_t { waiting, asking, running };  // for a place, for an answer, on a scheduler
  client_submit what;
  phase at = phase::waiting;
  uint32_t attempt = 0;
  actor_key where;  // of asking and running
  bool prefilled = false;
  uint32_t refusals = 0;  // in this round of placing
  uint32_t resumes = 0;
  nanoseconds waiting_since{0};
  status refusal;  // the last one
  uint32_t retry_after_ms = 0;
  std::vector<kernels::token_id> emitted;
  token_stream stream;
  uint32_t cached = 0;
  uint32_t drafted_before = 0, accepted_before = 0, drafted = 0, accepted = 0;  // of older attempts, of this one
};

/// The tokens of an item as the client gets them; the item's are moved out.
inline client_event to_event(stream_item& i) {
  client_event e;
  e.first_position = i.first_position;
  e.tokens = std::move(i.tokens);
  e.logprobs = std::move(i.logprobs);
  e.top = std::move(i.top);
  return e;
}

/// Sends the one event that ends the request: `e` says how, the counts come from the request.
inline void end_request(const front_request& r, client_event e) {
  e.done = true;
  if (e.tokens.empty()) e.first_position = r.stream.next();
  e.prompt_tokens = static_cast<uint32_t>(r.what.prompt.size());
  e.completion_tokens = static_cast<uint32_t>(r.emitted.size());
  e.cached_tokens = r.cached;
  e.drafted = r.drafted_before + r.drafted;
  e.accepted = r.accepted_before + r.accepted;
  r.what.sink->on_event(std::move(e));
}

}  // namespace troupe::actors
