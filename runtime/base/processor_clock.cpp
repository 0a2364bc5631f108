#include "runtime/base/processor_clock.hpp"

#include <ctime>

namespace troupe {
namespace {

class processor_time final : public clock_source {
 public:
  explicit processor_time(clockid_t which) : which_(which) {}
  nanoseconds now() const override {
    timespec t{};
    ::clock_gettime(which_, &t);
    return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
  }

 private:
  const clockid_t which_;
};

}  // namespace

const clock_source& process_clock() {
  static const processor_time instance(CLOCK_PROCESS_CPUTIME_ID);
  return instance;
}

const clock_source& thread_clock() {
  static const processor_time instance(CLOCK_THREAD_CPUTIME_ID);
  return instance;
}

}  // namespace troupe
