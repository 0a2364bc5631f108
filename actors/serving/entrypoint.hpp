// The entrypoint: one per front process. Owns every request of the front from submit to its one end.
//
//   submit -> placing --(prefill scheduler)--> prefilling --one token, handed over--> placing --(decode)--> decoding ->
//   end
//                ^                                  |                                                          |
//                +---- the scheduler, its rank or its node is lost: again with what was emitted ---------------+
//
// Without prefill schedulers a request goes to a decode scheduler at once. Whatever happens, the sink gets tokens in
// order of position, each once, and one event with `done`: finish, cancelled, or a failure with a reason.
#pragma once

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/front.hpp"

namespace troupe::actors {

/// What an entrypoint is told at its start; times are on the actor clock.
struct entrypoint_options {
  role_assignment assignment;
  node_identity identity;
  node_agent_actor agent;
  directory_actor directory;
  uint32_t max_requests = 1024;  // running; a further one is refused (exhausted) with a time to try again
  uint32_t max_resumes = 4;      // placements after a failure; then the request fails
  nanoseconds ask_timeout{std::chrono::seconds(2)};
  nanoseconds place_patience{std::chrono::seconds(10)};  // how long an admitted request waits for somebody to take it
  nanoseconds place_retry{std::chrono::milliseconds(50)};
  nanoseconds attach_retry{std::chrono::milliseconds(250)};
};

/// Spawns it as a child of `parent`.
entrypoint_actor spawn_entrypoint(caf::local_actor* parent, entrypoint_options options);

}  // namespace troupe::actors
