// The entrypoint: one per front process. Owns every request of the front from submit to its one end.
//
//   submit -> placing --(prefill scheduler)--> prefilling --one token, handed over--> placing --(decode)--> decoding ->
//   end
//                ^                                  |                                                          |
//                +---- the scheduler, its rank or its node is lost: again with what was emitted ---------------+
//
// Placing is asking the active balancer of the role (front_placer.hpp), with what is refused waiting for its next turn;
// while the prompt's last chunk runs, a place to decode is found and room kept there. Without prefill schedulers a
// request goes to a decode scheduler at once. Whatever happens, the sink gets tokens in order of position, each once,
// and one event with `done`: finish, cancelled, or a failure with a reason.
#pragma once

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/front.hpp"
#include "actors/serving/prefix_store.hpp"

namespace troupe::actors {

/// What an entrypoint is told at its start; times are on the actor clock.
struct entrypoint_options {
  role_assignment assignment;
  node_identity identity;
  node_agent_actor agent;
  directory_actor directory;
  std::string http;              // HOST:PORT of the gateway, for the cluster view
  prefix_options prefix;         // without a store nothing is matched
  uint32_t max_requests = 1024;  // running; a further one is refused (exhausted) with a time to try again
  uint32_t max_resumes = 4;      // placements after a failure; then the request fails
  nanoseconds ask_timeout{std::chrono::seconds(2)};
  nanoseconds place_patience{std::chrono::seconds(10)};    // how long an admitted request waits for somebody to take it
  nanoseconds place_retry{std::chrono::milliseconds(50)};  // at least so long after a refusal, at most ten times
  uint32_t max_searches = 32;                              // requests that look for a place at once
  nanoseconds place_timeout{std::chrono::milliseconds(500)};  // for a balancer; then this front places by itself
  nanoseconds renew_every{std::chrono::milliseconds(2500)};   // what it holds is told to the balancers
  nanoseconds attach_retry{std::chrono::milliseconds(250)};
};

/// Spawns it as a child of `parent`.
entrypoint_actor spawn_entrypoint(caf::local_actor* parent, entrypoint_options options);

}  // namespace troupe::actors
