// Places where a crash matters, by name, so that tests can cut at each of them.
#pragma once

#include <string_view>

namespace troupe::kv {

/// Told of every crash point that is passed. A test's hook ends the process, or throws: the code between crash points
/// only has destructors that touch memory, so after a throw nothing more is written; the object that was cut must then
/// be dropped. Called from any thread that uses the store.
class crash_hook {
 public:
  virtual ~crash_hook() = default;
  virtual void reach(std::string_view point) = 0;
};

/// Passes a point. Without a hook (production) it costs one comparison.
inline void crash_point(crash_hook* hook, std::string_view point) {
  if (hook) hook->reach(point);
}

}  // namespace troupe::kv
