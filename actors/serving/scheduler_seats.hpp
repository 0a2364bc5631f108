// The schedulers of a cluster view.
#pragma once

#include <map>
#include <string>

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// A seat of a view that has a scheduler.
struct scheduler_seat {
  role what = role::none;
  std::string group;
  bool ready = false;
};

/// All of a view, by the key of the scheduler.
inline std::map<actor_key, scheduler_seat> scheduler_seats(const cluster_view& view) {
  std::map<actor_key, scheduler_seat> out;
  for (const auto& node : view.nodes)
    for (const auto& r : node.roles)
      if (r.assignment.what == role::prefill || r.assignment.what == role::decode)
        out[{node.node, node.inc, r.assignment.seat() + "/scheduler"}] = {
            r.assignment.what, r.assignment.group, r.state == role_state::ready && !node.draining};
  return out;
}

}  // namespace troupe::actors
