#include "runtime/base/clock.hpp"

#include <thread>

#include "runtime/base/wall.hpp"

namespace troupe {
namespace {

class machine_clock final : public clock_source {
 public:
  nanoseconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

}  // namespace

const clock_source& steady_clock() {
  static const machine_clock instance;
  return instance;
}

int64_t wall_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t wall_tenths() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count() / 100;
}

void sleep_for(nanoseconds d) { std::this_thread::sleep_for(d); }

}  // namespace troupe
