// The transport inside one process: for tests and the simulator. Nothing happens by itself: the caller drives every
// event and owns the clock, so a run is a pure function of the calls.
#pragma once

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// Whose endpoint it is, in the eyes of a pacer: the number of a node, say.
using endpoint_owner = uint32_t;

/// Gives a loopback network its time: everything that passes between two endpoints is handed to it and happens when it
/// says so.
class pacer {
 public:
  virtual ~pacer() = default;
  /// `bytes` of payload (0: a small message) leave `from` for `to` now. Call `arrive` when they are there, in order for
  /// every pair; not inside this call. To lose them is to not call it: then sever() the two when that would be noticed.
  virtual void carry(endpoint_owner from, endpoint_owner to, uint64_t bytes, std::function<void()> arrive) = 0;
};

/// The network that loopback transports of one process share. One thread. Outlives its transports.
class loopback_network {
 public:
  virtual ~loopback_network() = default;

  /// A new endpoint. A destroyed one is dead to its peers, as a process that exits.
  virtual result<std::unique_ptr<transport>> make(const options& options, endpoint_owner owner = 0) = 0;

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

  // For networks with a pacer: the same of all endpoints of an owner.
  /// As kill; `silent`: nobody gets notice, the caller severs them when they would find out.
  virtual void kill_all(endpoint_owner owner, bool silent) = 0;
  virtual void stall_all(endpoint_owner owner, bool stalled) = 0;
  /// Connections between endpoints of two owners end, both sides learn at once.
  virtual void sever(endpoint_owner a, endpoint_owner b, const std::string& why) = 0;
};

/// `clock` decides deadlines and must outlive the network; `seed` draws identities and generations. With a pacer (which
/// outlives the network too) things happen when it says so; step() is needed only for deadlines of stalled endpoints.
std::unique_ptr<loopback_network> make_loopback_network(const clock_source& clock, uint64_t seed,
                                                        pacer* paced = nullptr);

}  // namespace troupe::transport
