// The data plane of a simulation: loopback transports whose bytes take time. A completion comes after the latency and
// the bytes over the rates of the link and of both nodes; what a fault swallows ends, after the deadline, with
// peer_lost.
#pragma once

#include <memory>
#include <set>
#include <utility>

#include "runtime/sim/links.hpp"
#include "runtime/transport/loopback.hpp"

namespace troupe::sim {

/// Times of the plane. In simulations with small blocks `scale` says how many bytes one true byte stands for.
struct plane_options {
  link_options link;
  double scale = 1;
  nanoseconds deadline{std::chrono::seconds(5)};  // until a peer that shows no sign of life is given up
};

/// Not thread safe. Outlives its transports; `faults` outlives it.
class plane final : private transport::pacer {
 public:
  plane(agenda& a, uint64_t seed, link_faults& faults, plane_options options);
  ~plane() override;

  /// A new endpoint of a node. `scaled`: its bytes are small blocks.
  result<std::unique_ptr<transport::transport>> make(size_t node, bool scaled);

  /// The node's endpoints are gone; `silent`: its peers learn it by their deadline.
  void kill(size_t node, bool silent);
  /// A killed node starts again.
  void revive(size_t node) { silent_.erase(node); }
  /// They do nothing, or go on; peers find out by their deadline.
  void freeze(size_t node, bool on);
  /// Connections of two nodes end.
  void break_link(size_t a, size_t b);

  /// Payload since the start, as it counts (scaled).
  uint64_t bytes() const { return bytes_; }

 private:
  void carry(transport::endpoint_owner from, transport::endpoint_owner to, uint64_t bytes,
             std::function<void()> arrive) override;
  void look_for_stalled();
  void give_up(size_t from, size_t to);

  // Owners of endpoints: node * 2, and 1 more if its bytes are scaled.
  struct clock final : clock_source {
    explicit clock(agenda& a) : events(a) {}
    nanoseconds now() const override { return events.now(); }
    agenda& events;
  };

  agenda& agenda_;
  link_faults& faults_;
  plane_options options_;
  link_times times_;
  clock clock_;
  std::unique_ptr<transport::loopback_network> wires_;
  std::set<size_t> silent_, frozen_;
  std::set<std::pair<size_t, size_t>> doubted_;  // connections that will be given up
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  uint64_t bytes_ = 0;
  bool looking_ = false;
};

}  // namespace troupe::sim
