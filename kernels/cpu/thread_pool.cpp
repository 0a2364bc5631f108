#include "kernels/cpu/thread_pool.hpp"

namespace troupe::kernels::cpu {
namespace {

// About 20 to 50 us: longer than the gap between two operators of a step, shorter than a scheduler's time slice.
constexpr int spin_limit = 1000;

constexpr uint32_t no_task = UINT32_MAX;  // in a ticket: nothing to take

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

thread_pool::thread_pool(uint32_t threads) {
  for (uint32_t t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

thread_pool::~thread_pool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& w : workers_) w.join();
}

void thread_pool::run_job(job fn, void* context, uint32_t tasks) {
  // First the old ticket goes: a worker that is still looking at it, and already sees what follows, would take a task
  // of this job under the number of the last one.
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(number << 32 | no_task, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  tasks_.store(tasks, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store((number + 1) << 32, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_tasks(0);
  for (int spins = 0;;) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == tasks) return;
    if (++spins < spin_limit) {
      relax();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void thread_pool::take_tasks(uint32_t thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    // Acquired: if one of these belongs to a later job than the ticket, the exchange below fails.
    const job fn = fn_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const uint32_t tasks = tasks_.load(std::memory_order_acquire), task = uint32_t(ticket);
    if (task >= tasks) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    fn(context, task, thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void thread_pool::work(uint32_t thread) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = epoch_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen && spins < spin_limit; ++spins) {
      relax();
      now = epoch_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      epoch_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    take_tasks(thread);
  }
}

}  // namespace troupe::kernels::cpu
