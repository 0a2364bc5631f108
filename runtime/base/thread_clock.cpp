#include "runtime/base/thread_clock.hpp"

#include <ctime>

namespace troupe {
namespace {

class processor_time final : public clock_source {
 public:
  nanoseconds now() const override {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
  }
};

}  // namespace

const clock_source& thread_clock() {
  static const processor_time instance;
  return instance;
}

}  // namespace troupe
