// UCX handles with owners, for messages: TCP with failure handling.
//
// Not thread safe: all calls on handles of one worker come from one thread at a time. UCX's own log lines go to the
// house's log (level debug), never to stdout.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::transport::ucx {

/// unavailable with what was tried and what UCX said.
tl::unexpected<error> ucx_failure(std::string_view what, ucs_status_t status);

/// A context and its one worker.
///
/// Who both listens and connects takes two nodes for messages: one whose address is given away, which only receives,
/// and one that nobody knows, which makes the guards and sends. When two workers of UCX 1.13.1 connect to each other at
/// once, it drops one of the two connections and then uses it (freed in uct_tcp_cm_handle_conn_pkt, used by the handler
/// of the same socket event): heap corruption, within seconds where both sides keep ending connections.
///
/// UCX 1.13.1 aborts the process when an endpoint is closed, or its worker destroyed, while a connection to it is still
/// being made (an assertion in ucp_request.c, "got REP message"), and there is no way to ask. A peer that is stopped,
/// or only slow, keeps it in that state. So a guard that has never got a message through is not closed but buried here,
/// with the memory that its requests use, and the worker for messages is left to the end of the process, of which there
/// is one or two per process. Peers learn from the closed guards.
class node {
 public:
  /// TCP with failure handling, active messages, sleeping waits. `interface`: network device, empty = all.
  static result<std::unique_ptr<node>> messages(const std::string& interface);
  ~node();
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  /// The worker's address, to be sent to peers.
  const std::string& address() const { return address_; }
  /// Runs what is due; number of events (0 = idle).
  unsigned progress() { return ucp_worker_progress(worker_); }
  /// Keeps `memory` until the end of the process instead of closing an endpoint.
  void bury(std::shared_ptr<void> memory) { buried_.push_back(std::move(memory)); }

 private:
  node() = default;
  std::vector<std::shared_ptr<void>> buried_;
  static result<std::unique_ptr<node>> make(const std::string& tls, const std::string& interface, uint64_t features);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
};

/// An endpoint with failure handling.
class guard {
 public:
  /// `on_error` is called once, inside progress, when the peer is gone, unless the guard was destroyed before.
  static result<std::unique_ptr<guard>> connect(node& local, const std::string& peer_address,
                                                std::function<void(ucs_status_t)> on_error);
  /// Forced close: every request of it completes (with an error) before this returns; the callbacks run inside. A guard
  /// that is not settled is buried instead (see node), and its requests may complete later or never.
  ///
  /// Its socket is shut down first, so that UCX sees a connection that is lost. A forced close of a whole one makes UCX
  /// 1.13.1 say goodbye to the peer, which waits behind a frame that the peer has read in part only, while the socket
  /// stays watched for writing; the peer's own goodbye then frees the connection in the middle of a socket event that
  /// goes on to use it (uct_tcp_iface_handle_events), which is a jump to any address.
  ~guard();
  guard(const guard&) = delete;
  guard& operator=(const guard&) = delete;
  ucp_ep_h endpoint() const { return endpoint_; }
  /// A message has got through: the connection is made. Say so when the first send completes with success.
  void settle() { settled_ = true; }
  /// What the requests read, to be kept if the guard is buried.
  void keep(std::shared_ptr<void> memory) { memory_ = std::move(memory); }

 private:
  struct listener {
    std::function<void(ucs_status_t)> on_error;
    bool failed = false;
    std::shared_ptr<void> memory;
  };
  guard() = default;
  void lose_sockets();
  static void error_callback(void* arg, ucp_ep_h ep, ucs_status_t status);
  node* local_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::shared_ptr<listener> listener_ = std::make_shared<listener>();
  std::shared_ptr<void> memory_;
  bool settled_ = false;
  std::vector<std::string> where_;                    // the peer's listeners
  std::vector<std::pair<int, std::string>> sockets_;  // connected to one of them: descriptor, own address
};

/// Sleeps in epoll until one of two workers has an event, `signal` is called, or `limit` or 20 ms have passed.
class sleeper {
 public:
  static result<std::unique_ptr<sleeper>> make(node& first, node& second);
  ~sleeper();
  sleeper(const sleeper&) = delete;
  sleeper& operator=(const sleeper&) = delete;
  /// Returns at once if the worker has events or a signal came since the last sleep. Progress until idle before, and
  /// look at your condition after that progress.
  void sleep(nanoseconds limit);
  /// Any thread, async-signal safe.
  void signal();

 private:
  sleeper() = default;
  node *first_ = nullptr, *second_ = nullptr;
  int epoll_ = -1, event_ = -1;
};

}  // namespace troupe::transport::ucx
