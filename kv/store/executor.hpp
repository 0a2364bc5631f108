// Where the store's state machines run: one thread at a time, no locks. Real (a thread) or by hand (tests, simulator).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.hpp"

namespace troupe::kv {

using task = std::function<void()>;

/// Runs tasks one after the other, in the order in which they were posted. What belongs to an executor is touched by
/// its tasks only and needs no lock.
class executor {
 public:
  virtual ~executor() = default;
  /// Any thread. The task runs later, never inside this call.
  virtual void post(task t) = 0;
  /// Any thread. The task runs once `delay` has passed (at once for 0 or less). It cannot be cancelled: a task that may
  /// come too late checks for itself.
  virtual void post_after(nanoseconds delay, task t) = 0;
  /// Time of this executor, monotonic.
  virtual nanoseconds now() const = 0;
};

/// One thread with a bounded queue. A post from another thread waits while `capacity` tasks are queued; one from the
/// executor's own thread never waits, because only that thread makes room. Timers do not count. The destructor runs
/// what is queued, drops timers that are not due, and joins; nothing may be posted from outside any more by then.
class thread_executor final : public executor {
 public:
  explicit thread_executor(size_t capacity = 65536, const clock_source& clock = steady_clock());
  ~thread_executor() override;
  void post(task t) override;
  void post_after(nanoseconds delay, task t) override;
  nanoseconds now() const override { return clock_.now(); }

 private:
  void run();

  const clock_source& clock_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable wake_, room_;
  std::deque<task> queue_;                   // by mutex_
  std::multimap<nanoseconds, task> timers_;  // by mutex_; equal times keep their order
  bool stop_ = false;                        // by mutex_
  std::thread thread_;
};

/// Runs nothing by itself: a test or the simulator steps it. Time stands still but for `advance_to_next`. One thread.
class manual_executor final : public executor {
 public:
  void post(task t) override { queue_.push_back(std::move(t)); }
  void post_after(nanoseconds delay, task t) override;
  nanoseconds now() const override { return now_; }

  /// Runs the oldest task; false when there is none that is due.
  bool step();
  /// Moves time to the next timer, which becomes due; false when there is none.
  bool advance_to_next();
  /// Steps, and moves time where nothing else is left, until `done` holds; false when everything has run before that.
  bool run_until(const std::function<bool()>& done);
  /// Steps until nothing is due; time does not move.
  void run_ready();
  size_t queued() const { return queue_.size(); }
  size_t timers() const { return timers_.size(); }

 private:
  std::deque<task> queue_;
  std::multimap<nanoseconds, task> timers_;
  nanoseconds now_{0};
};

/// Where blocking work goes, such as a disk read.
class worker {
 public:
  virtual ~worker() = default;
  /// Any thread. Runs `t` later on a thread of its own choice; false: the queue is full, and `t` will not run.
  virtual bool submit(task t) = 0;
};

/// A few threads with one bounded queue. The destructor runs what is queued, then joins.
class io_pool final : public worker {
 public:
  io_pool(size_t threads, size_t capacity);
  ~io_pool() override;
  bool submit(task t) override;

 private:
  void run();

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<task> queue_;  // by mutex_
  bool stop_ = false;       // by mutex_
  std::vector<std::thread> threads_;
};

/// Blocking work on an executor, a stated time later: for the memory twins, which do not block.
class executor_worker final : public worker {
 public:
  explicit executor_worker(executor& where, nanoseconds delay = nanoseconds{0}) : where_(where), delay_(delay) {}
  bool submit(task t) override;
  /// Time that work posted from now on takes.
  void set_delay(nanoseconds d) { delay_ = d; }

 private:
  executor& where_;
  nanoseconds delay_;
};

}  // namespace troupe::kv
