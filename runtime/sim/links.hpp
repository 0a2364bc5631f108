// How long what leaves a virtual node takes to another one, and what is in its way. The actor network and the data
// plane share what is broken; each has capacity of its own, as small messages do not wait behind bulk in a real fleet.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/sim/agenda.hpp"

namespace troupe::sim {

/// How messages between two virtual nodes travel. Rates are bytes per nanosecond.
struct link_options {
  nanoseconds latency{std::chrono::microseconds(50)};
  nanoseconds jitter{std::chrono::microseconds(20)};
  double bytes_per_ns = 1.0;                         // that a node sends at most
  double ingress_per_ns = 0;                         // that it takes in at most; 0: as much as comes
  double link_per_ns = 0;                            // between two nodes; 0: as much as they can
  double loss = 0, duplication = 0, reordering = 0;  // of single messages: the hostile profile
};

/// What is broken between nodes. Not thread safe.
class link_faults {
 public:
  /// Bytes from one to the other are swallowed silently; one way.
  void cut(size_t from, size_t to, bool on);
  bool is_cut(size_t from, size_t to) const { return cuts_.contains({from, to}); }
  /// They wait, and come in order when it is over; one way. `who` released them.
  void stall(size_t from, size_t to, bool on);
  /// Everything to a node waits: it is frozen.
  void freeze(size_t node, bool on);
  bool is_frozen(size_t node) const { return frozen_.contains(node); }
  /// Everything to and from the node takes `factor` times as long.
  void slow(size_t node, double factor);
  double slowness(size_t from, size_t to) const;
  /// What has arrived: runs it now, or when the stall is over. Not for what is cut.
  void let_through(size_t from, size_t to, std::function<void()> what);
  /// Counters of what faults did to bytes of a pair since the start: the proof that they took effect.
  void swallowed(size_t from, size_t to) { ++swallowed_[{from, to}]; }
  uint64_t swallowed_between(size_t from, size_t to) const;
  uint64_t held_for(size_t node) const;
  uint64_t slowed(size_t node) const;

 private:
  void release();
  std::set<std::pair<size_t, size_t>> cuts_, stalls_;
  std::set<size_t> frozen_;
  std::map<size_t, double> slow_;
  std::map<std::pair<size_t, size_t>, std::deque<std::function<void()>>> held_;
  std::map<std::pair<size_t, size_t>, uint64_t> swallowed_;
  std::map<size_t, uint64_t> held_count_;
  mutable std::map<size_t, uint64_t> slowed_;
};

/// Times of one kind of traffic. Not thread safe.
class link_times {
 public:
  link_times(agenda& a, uint64_t seed, uint64_t stream, link_options o, const link_faults& faults)
      : agenda_(a), random_(seed, stream), options_(o), faults_(faults) {}
  /// When `bytes` that leave now are there, after everything of the same pair that left before. `overtake`: it may come
  /// before those.
  nanoseconds arrival(size_t from, size_t to, uint64_t bytes, bool overtake = false);
  /// Of an empty message.
  nanoseconds delay(size_t from, size_t to);
  /// The connections of a node are new.
  void forget(size_t node);
  link_options& options() { return options_; }
  rng& random() { return random_; }

 private:
  struct node {
    nanoseconds egress_free{0}, ingress_free{0};
  };
  struct pair {
    nanoseconds last{0}, free{0};
  };
  node& of(size_t n) {
    if (n >= nodes_.size()) nodes_.resize(n + 1);
    return nodes_[n];
  }
  agenda& agenda_;
  rng random_;
  link_options options_;
  const link_faults& faults_;
  std::vector<node> nodes_;
  std::map<std::pair<size_t, size_t>, pair> pairs_;
};

}  // namespace troupe::sim
