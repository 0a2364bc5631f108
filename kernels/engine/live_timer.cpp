#include <condition_variable>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "kernels/engine/step_timer.hpp"

namespace troupe::kernels {
namespace {

struct entry {
  nanoseconds due;
  uint64_t sequence;
  std::function<void()> what;
  bool operator<(const entry& o) const { return due != o.due ? due > o.due : sequence > o.sequence; }
};

// Shared with the thread: an entry may hold the last reference to the timer.
struct timer_state {
  std::mutex mutex;
  std::condition_variable changed;
  std::priority_queue<entry> entries;  // one or two for each engine and group
  uint64_t sequence = 0;
  bool ending = false;

  void run() {
    std::unique_lock lock(mutex);
    while (!ending) {
      if (entries.empty()) {
        changed.wait(lock);
        continue;
      }
      const nanoseconds wait = entries.top().due - steady_clock().now();
      if (wait > nanoseconds(0)) {
        changed.wait_for(lock, wait);
        continue;
      }
      auto what = std::move(const_cast<entry&>(entries.top()).what);  // what the order depends on stays
      entries.pop();
      lock.unlock();
      what();
      what = nullptr;
      lock.lock();
    }
  }
};

class live_timer final : public step_timer {
 public:
  live_timer() : thread_([s = state_] { s->run(); }) {}
  ~live_timer() override {
    {
      std::lock_guard lock(state_->mutex);
      state_->ending = true;
    }
    state_->changed.notify_all();
    if (thread_.get_id() == std::this_thread::get_id())
      thread_.detach();
    else
      thread_.join();
  }

  nanoseconds now() const override { return steady_clock().now(); }

  void schedule(nanoseconds after, std::function<void()> what) override {
    {
      std::lock_guard lock(state_->mutex);
      state_->entries.push({steady_clock().now() + after, state_->sequence++, std::move(what)});
    }
    state_->changed.notify_all();
  }

 private:
  const std::shared_ptr<timer_state> state_ = std::make_shared<timer_state>();
  std::thread thread_;
};

}  // namespace

std::shared_ptr<step_timer> make_live_timer() { return std::make_shared<live_timer>(); }

}  // namespace troupe::kernels
