// The engine's compute threads. Work is split over output elements only, so results never depend on the thread count or
// on who ran which task.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::kernels::cpu {

/// A fixed set of threads, the caller of `run` among them. Workers spin a bounded while for the next job, then sleep.
/// Thread rules: one thread at a time may call `run`; tasks must not call `run` of the same pool and must not throw.
class thread_pool {
 public:
  /// `threads` counts the caller; 0 and 1 both mean no workers.
  explicit thread_pool(uint32_t threads);
  ~thread_pool();
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  uint32_t size() const { return uint32_t(workers_.size()) + 1; }

  /// Calls f(task, thread) once for every task in [0, tasks), thread in [0, size()); returns when all have finished.
  /// Tasks are taken in rising order by whoever is free. Nothing is allocated.
  template <class F>
  void run(uint32_t tasks, F&& f) {
    if (tasks <= 1 || workers_.empty()) {
      for (uint32_t t = 0; t < tasks; ++t) f(t, 0u);
      return;
    }
    using body = std::remove_reference_t<F>;
    run_job([](void* context, uint32_t task, uint32_t thread) { (*static_cast<body*>(context))(task, thread); },
            const_cast<void*>(static_cast<const void*>(&f)), tasks);
  }

 private:
  using job = void (*)(void*, uint32_t, uint32_t);
  void run_job(job fn, void* context, uint32_t tasks);
  /// Runs tasks of the current job until none is left to take.
  void take_tasks(uint32_t thread);
  void work(uint32_t thread);

  // ticket_ = number << 32 | next task, the number another one for every job and while one is set up. A worker that
  // wakes late finds no task to take and touches nothing of the job.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};   // finished tasks of the current job
  std::atomic<uint32_t> epoch_{0};  // grows by one per job; what sleepers wait on
  std::atomic<job> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> tasks_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace troupe::kernels::cpu
