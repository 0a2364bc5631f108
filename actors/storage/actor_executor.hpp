// An executor of the block store that lives in an actor: its tasks run in the actor's handlers, one at a time, so the
// state machines of kv/store run in an actor as they do on a thread.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "actors/protocol/common.hpp"
#include "kv/store/executor.hpp"

namespace troupe::actors {

/// Tasks wait here and ticks of `kind` make the actor run them: it hands every tick to `run`. Time is the actor clock.
/// Any thread may post at any time, also after the actor has ended (such a task is dropped unrun), so it is shared with
/// whatever may still answer. What waits is bounded by whoever asks: each task is the answer to something bounded.
class actor_executor final : public kv::executor {
 public:
  actor_executor(caf::local_actor* self, uint8_t kind);
  void post(kv::task t) override;
  void post_after(nanoseconds delay, kv::task t) override;
  nanoseconds now() const override;

  /// From the actor's handler of ticks: runs what is due; false if the tick is not of this executor.
  bool run(const tick& t);
  /// From the destructor of the actor's state: drops all tasks and every later one.
  void close();

 private:
  void wake();

  const uint8_t kind_;
  caf::actor_clock& clock_;
  std::mutex mutex_;
  any_handle self_;                      // protected by mutex_; null once closed
  std::deque<kv::task> queue_;           // protected by mutex_
  std::map<uint64_t, kv::task> timers_;  // protected by mutex_
  uint64_t next_timer_ = 1;              // protected by mutex_; ticket 0 runs the queue
  bool woken_ = false;                   // protected by mutex_: a tick 0 is under way
};

/// Blocking work whose answer outlives the actor that asked: `keep` is held until the task has run.
class kept_worker final : public kv::worker {
 public:
  explicit kept_worker(kv::worker& inner) : inner_(inner) {}
  /// Call once, before the first submit, with what tasks use: it must stay until the last of them has run.
  void keep(std::weak_ptr<void> what) { what_ = std::move(what); }
  bool submit(kv::task t) override;

 private:
  kv::worker& inner_;
  std::weak_ptr<void> what_;
};

}  // namespace troupe::actors
