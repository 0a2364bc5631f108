// Asks a running cluster how it is, from outside: the director for the members, then every rank and front for its
// queues.
#pragma once

#include <map>
#include <string>

#include "actors/protocol/balance.hpp"
#include "actors/protocol/cluster.hpp"
#include "actors/protocol/eplb.hpp"
#include "actors/protocol/front.hpp"
#include "actors/protocol/rank.hpp"
#include "actors/protocol/storage.hpp"
#include "runtime/node/actor_net.hpp"

namespace troupe::node {

/// A picture of a cluster. What could not be asked is left out of the maps.
struct cluster_picture {
  actors::status_report cluster;
  std::string director;                                        // where it was asked
  std::map<std::string, actors::scheduler_report> schedulers;  // by seat
  std::map<std::string, actors::rank_report> ranks;            // by seat
  std::map<std::string, actors::front_report> fronts;          // by seat
  std::map<std::string, actors::storage_report> stores;        // by seat
  std::map<std::string, actors::balancer_report> balancers;    // by role: the active ones
  std::map<std::string, actors::eplb_report> experts;          // by group: of the rebalancer that works for it
};

/// Asks the director at `director`, then the nodes of its view; each question waits at most `limit`. Errors:
/// unavailable or timeout when the director does not answer. Blocks; not for actors.
result<cluster_picture> take_picture(actor_net& net, const config::address& director, nanoseconds limit);

/// The picture as lines of a table for people: node, seat, state, pid, addresses (of the actor network, and HTTP of
/// fronts), queue, pages; then a line for each storage node: blocks, fill, repair; for each balancer; then, per group
/// whose experts are rebalanced, the balance and the moves.
std::string as_table(const cluster_picture& p);
/// The picture as JSON.
std::string as_json(const cluster_picture& p);

}  // namespace troupe::node
