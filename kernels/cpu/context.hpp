// What the CPU operators share: threads, kernels, and scratch memory that grows to the largest shapes seen and then
// stays.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/thread_pool.hpp"

namespace troupe::kernels::cpu {

/// Memory aligned to 64 bytes that only grows; its contents do not survive growth.
class scratch {
 public:
  /// At least `count` values of T.
  template <class T>
  T* get(size_t count) {
    return static_cast<T*>(grow(count * sizeof(T)));
  }

 private:
  struct deleter {
    void operator()(std::byte* p) const;
  };
  void* grow(size_t bytes);
  std::unique_ptr<std::byte, deleter> data_;
  size_t bytes_ = 0;
};

/// Thread rules: one caller at a time, as for thread_pool.
struct context {
  context(uint32_t threads, isa which);

  thread_pool pool;
  const kernel_table& kernels;
  std::vector<scratch> per_thread;  // for the tasks of one operator; reused by the next
  scratch shared[8];                // for the caller: intermediate results of one operator
};

/// Tasks per dimension for `count` items in units of `unit`, aiming at a few tasks per thread: returns the items per
/// task.
uint32_t task_size(const context& c, uint32_t count, uint32_t unit);

/// Calls f(i) for i in [0, n), split over the threads in runs of rows.
template <class F>
void each_row(context& c, uint32_t n, F&& f) {
  if (n == 0) return;
  const uint32_t run = task_size(c, n, 1);
  c.pool.run((n + run - 1) / run, [&](uint32_t task, uint32_t) {
    for (uint32_t i = task * run; i < n && i < (task + 1) * run; ++i) f(i);
  });
}

}  // namespace troupe::kernels::cpu
