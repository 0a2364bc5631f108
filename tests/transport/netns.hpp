// Two network namespaces with a cable between them, for tests that cut it. Needs root.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::testing_support {

/// Namespaces `a` and `b` with addresses 10.211.0.1 and .2 on their devices `device()`. A process of its own deletes
/// them when this object goes, and also when the test is killed.
class netns_pair {
 public:
  netns_pair() {
    const std::string id = fmt::format("{}-{:08x}", getpid(), static_cast<uint32_t>(entropy_seed()));
    names_[0] = "troupe-" + id + "a";
    names_[1] = "troupe-" + id + "b";
    if (geteuid() != 0) {
      why_ = "network namespaces need root";
      return;
    }
    // Deletes at the end of its input, which comes when the pipe closes, however this process ends.
    cleaner_ = popen(fmt::format("trap '' INT TERM HUP; cat >/dev/null; ip netns del {} 2>/dev/null; ip netns del {} "
                                 "2>/dev/null",
                                 names_[0], names_[1])
                         .c_str(),
                     "we");
    for (const auto& n : names_)
      if (!run("ip netns add " + n)) return;
    if (!run(fmt::format("ip -n {} link add {} type veth peer name {} netns {}", names_[0], device(), device(),
                         names_[1])))
      return;
    for (int i = 0; i < 2; ++i)
      for (const std::string& c : {fmt::format("addr add 10.211.0.{}/24 dev {}", i + 1, device()),
                                   fmt::format("link set {} up", device()), std::string("link set lo up")})
        if (!run(fmt::format("ip -n {} {}", names_[i], c))) return;
    // The kernel tells of the carrier some time later, and UCX takes no device without.
    const nanoseconds until = steady_clock().now() + std::chrono::seconds(10);
    for (int i = 0; i < 2; ++i)
      while (!run(fmt::format("ip -n {} link show {} | grep -q LOWER_UP.*state.UP", names_[i], device()))) {
        if (steady_clock().now() > until) return;
        why_.clear();
      }
  }
  ~netns_pair() {
    if (cleaner_) pclose(cleaner_);
  }
  netns_pair(const netns_pair&) = delete;
  netns_pair& operator=(const netns_pair&) = delete;

  /// Empty: they are there. Otherwise why not.
  const std::string& why() const { return why_; }
  static std::string device() { return "veth0"; }
  /// `ip` runs the rest of a command line in namespace `side` (0 or 1).
  std::string inside(int side) const { return "ip netns exec " + names_[side] + " "; }

  /// Takes the cable out, or puts it in again.
  bool cut() { return run(fmt::format("ip -n {} link set {} down", names_[0], device())); }
  bool heal() { return run(fmt::format("ip -n {} link set {} up", names_[0], device())); }
  /// Loses all that `side` sends, silently: it addresses the other as a machine that is not there. What the other sends
  /// still arrives.
  bool cut_from(int side) {
    return run(fmt::format("ip -n {} neigh replace 10.211.0.{} lladdr 02:00:00:00:00:99 nud permanent dev {}",
                           names_[side], 2 - side, device()));
  }
  bool heal_from(int side) {
    return run(fmt::format("ip -n {} neigh del 10.211.0.{} dev {}", names_[side], 2 - side, device()));
  }

 private:
  bool run(const std::string& command) {
    const int status = std::system((command + " 2>/dev/null").c_str());
    if (status != 0 && why_.empty()) why_ = fmt::format("'{}' failed with {}", command, status);
    return status == 0;
  }
  std::string names_[2], why_;
  FILE* cleaner_ = nullptr;
};

}  // namespace troupe::testing_support
