// One process of a cluster from its start to its end: actor system, director or membership, roles, signals, drain.
#pragma once

#include <string>

#include "runtime/base/result.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// Which process this is to be.
struct node_request {
  config::settings settings;
  std::string seat;      // "director", "front/0", "decode-0/1", a group ("decode-0"), or "" for any free seat
  config::address join;  // of the director; unused by the director itself
  int report_fd = -1;    // pipe to a supervisor, or -1
};

/// Runs until SIGINT, SIGTERM or SIGHUP, then drains (unready, no new requests, running ones finish for at most
/// cluster.drain_timeout, leave) and returns; a second signal ends the process at once. SIGUSR1 drains too,
/// for at most a second: something has failed, and clients had better ask elsewhere. Errors: unavailable when the
/// director cannot be reached within cluster.join_timeout, and whatever kept the process from starting. Call it once,
/// from the main thread, before any other thread is made.
///
/// Report lines (JSON) to the supervisor: {"actor": "HOST:PORT"} where this process is reached, {"http": "HOST:PORT",
/// "model": NAME} of a front, {"joined": NODE} once, {"stores": true} once of a storage node that has opened, {"ready":
/// BOOL} of a front whenever it changes, {"failed": TEXT} once when a role cannot start, {"waits": N} of a front that
/// drains N running requests.
result<void> run_node(const node_request& request);

/// The name of the process with this seat: the seat with '.' for '/'.
std::string process_name(const std::string& seat);

}  // namespace troupe::node
