#include "runtime/base/clock.hpp"

#include <ctime>
#include <thread>

#include "runtime/base/process_clock.hpp"

namespace troupe {
namespace {

class machine_clock final : public clock_source {
 public:
  nanoseconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

class processor_clock final : public clock_source {
 public:
  nanoseconds now() const override {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
  }
};

}  // namespace

const clock_source& process_clock() {
  static const processor_clock instance;
  return instance;
}

const clock_source& steady_clock() {
  static const machine_clock instance;
  return instance;
}

int64_t wall_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void sleep_for(nanoseconds d) { std::this_thread::sleep_for(d); }

}  // namespace troupe
