#include "kv/store/executor.hpp"

#include <chrono>

#include "runtime/base/check.hpp"

namespace troupe::kv {

thread_executor::thread_executor(size_t capacity, const clock_source& clock) : clock_(clock), capacity_(capacity) {
  TROUPE_CHECK(capacity > 0, "an executor without room for a task");
  thread_ = std::thread([this] { run(); });
}

thread_executor::~thread_executor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void thread_executor::post(task t) {
  {
    std::unique_lock lock(mutex_);
    if (std::this_thread::get_id() != thread_.get_id())
      room_.wait(lock, [this] { return queue_.size() < capacity_ || stop_; });
    queue_.push_back(std::move(t));
  }
  wake_.notify_one();
}

void thread_executor::post_after(nanoseconds delay, task t) {
  if (delay <= nanoseconds{0}) return post(std::move(t));
  {
    std::lock_guard lock(mutex_);
    timers_.emplace(clock_.now() + delay, std::move(t));
  }
  wake_.notify_one();
}

void thread_executor::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!timers_.empty() && timers_.begin()->first <= clock_.now()) {
      task t = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      lock.unlock();
      t();
      t = nullptr;  // what it holds is released outside the lock
      lock.lock();
      // One timer, then one task: neither can keep the other from running.
    }
    if (!queue_.empty()) {
      task t = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      room_.notify_one();
      t();
      t = nullptr;
      lock.lock();
      continue;
    }
    if (stop_) {
      auto dropped = std::move(timers_);
      lock.unlock();
      return;
    }
    if (timers_.empty()) {
      wake_.wait(lock);
    } else if (auto left = timers_.begin()->first - clock_.now(); left > nanoseconds{0}) {
      wake_.wait_for(lock, left);
    }
  }
}

void manual_executor::post_after(nanoseconds delay, task t) {
  if (delay <= nanoseconds{0}) return post(std::move(t));
  timers_.emplace(now_ + delay, std::move(t));
}

bool manual_executor::step() {
  if (queue_.empty()) return false;
  task t = std::move(queue_.front());
  queue_.pop_front();
  t();
  return true;
}

bool manual_executor::advance_to_next() {
  if (timers_.empty()) return false;
  now_ = timers_.begin()->first;
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    queue_.push_back(std::move(timers_.begin()->second));
    timers_.erase(timers_.begin());
  }
  return true;
}

bool manual_executor::run_until(const std::function<bool()>& done) {
  while (!done()) {
    if (!step() && !advance_to_next()) return false;
  }
  return true;
}

void manual_executor::run_ready() {
  while (step()) {
  }
}

io_pool::io_pool(size_t threads, size_t capacity) : capacity_(capacity) {
  TROUPE_CHECK(threads > 0 && capacity > 0, "an I/O pool of {} threads and {} places", threads, capacity);
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

io_pool::~io_pool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

bool io_pool::submit(task t) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(t));
  }
  wake_.notify_one();
  return true;
}

void io_pool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    task t = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    t();
    t = nullptr;
    lock.lock();
  }
}

bool executor_worker::submit(task t) {
  where_.post_after(delay_, std::move(t));
  return true;
}

}  // namespace troupe::kv
