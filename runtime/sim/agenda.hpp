// The one list of everything that will happen in a simulation, in virtual time: timers, messages under way, steps that
// end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::sim {

/// Not thread safe: a simulation has one thread.
class agenda {
 public:
  /// Names an entry. Entries of the same instant come in an order drawn from the seed.
  using handle = std::tuple<int64_t, uint64_t, uint64_t>;  // time ns, tie, sequence

  explicit agenda(uint64_t seed) : random_(seed, 1) {}

  nanoseconds now() const { return now_; }
  bool empty() const { return entries_.empty(); }
  /// When the next entry is due; call only if there is one.
  nanoseconds next() const { return nanoseconds(std::get<0>(entries_.begin()->first)); }

  /// Runs `what` at `when` (now, if that is past).
  handle at(nanoseconds when, std::function<void()> what) {
    handle h{std::max(when, now_).count(), random_.next(), sequence_++};
    entries_.emplace(h, std::move(what));
    return h;
  }
  handle after(nanoseconds delay, std::function<void()> what) { return at(now_ + delay, std::move(what)); }
  /// Takes an entry back; one that has run is ignored.
  void cancel(const handle& h) { entries_.erase(h); }

  /// Moves time to the next entry and runs it.
  void run_next() {
    auto first = entries_.extract(entries_.begin());
    now_ = nanoseconds(std::get<0>(first.key()));
    first.mapped()();
  }
  /// Moves time on to `t`, before which nothing is due.
  void pass(nanoseconds t) { now_ = std::max(now_, t); }
  /// Drops everything.
  void clear() { entries_.clear(); }

 private:
  rng random_;
  nanoseconds now_{std::chrono::seconds(1)};
  uint64_t sequence_ = 0;
  std::map<handle, std::function<void()>> entries_;
};

}  // namespace troupe::sim
