// prefill_balancer and decode_balancer are the same actor around the same book (balance_book.hpp) with another role and
// another policy. Every front process has a pair; those of the front that the cluster view names are active, the others
// answer `stale`.
#pragma once

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/balance.hpp"

namespace troupe::actors {

/// What a balancer is told at its start; times are on the actor clock.
struct balancer_options {
  role what = role::none;  // prefill or decode
  node_identity identity;
  directory_actor directory;
  node_agent_actor agent;                            // told the load of all ranks while active
  uint32_t max_fronts = 64;                          // a further one is refused (exhausted)
  nanoseconds lease_life{std::chrono::seconds(10)};  // a front that was not heard for so long loses its leases
  nanoseconds load_every{std::chrono::milliseconds(250)};
  nanoseconds report_every{std::chrono::seconds(1)};
  nanoseconds ask_timeout{std::chrono::seconds(1)};
};

/// Spawns it as a child of `parent`. Name of its actor: "<seat of the front>/prefill_balancer" or
/// ".../decode_balancer".
balancer_actor spawn_balancer(caf::local_actor* parent, balancer_options options);

/// "<seat>/prefill_balancer" or "<seat>/decode_balancer".
inline std::string balancer_name(const std::string& seat, role what) {
  return seat + "/" + to_string(what) + "_balancer";
}

}  // namespace troupe::actors
