// The transport inside one process: for tests and the simulator. Nothing happens by itself: the caller drives every
// event and owns the clock, so a run is a pure function of the calls.
#pragma once

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// The network that loopback transports of one process share. One thread. Outlives its transports.
class loopback_network {
 public:
  virtual ~loopback_network() = default;

  /// A new endpoint. A destroyed one is dead to its peers, as a process that exits.
  virtual result<std::unique_ptr<transport>> make(const options& options) = 0;

  /// Runs the next event (a delivery, a completion, an expired deadline); false when there is none. Events run in the
  /// order in which they were caused.
  virtual bool step() = 0;
  /// Steps until nothing is left.
  void drain() {
    while (step()) {
    }
  }

  /// The endpoint with this address is gone, as by SIGKILL: its peers get notice, its operations never run.
  virtual void kill(const std::string& address) = 0;
  /// The endpoint does nothing (as by SIGSTOP) until resumed; peers find out by deadline.
  virtual void stall(const std::string& address, bool stalled) = 0;
};

/// `clock` decides deadlines and must outlive the network; `seed` draws identities and generations.
std::unique_ptr<loopback_network> make_loopback_network(const clock_source& clock, uint64_t seed);

}  // namespace troupe::transport
