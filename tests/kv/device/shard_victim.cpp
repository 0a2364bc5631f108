// shard_victim DIRECTORY SEED PASS: works on a shard store and kills itself at crash point number PASS. Prints a line
// for each operation that was acknowledged.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/kv/device/kill_workload.hpp"

namespace {

class killer final : public troupe::kv::crash_hook {
 public:
  explicit killer(uint64_t at) : left_(at) {}
  void reach(std::string_view) override {
    if (left_-- == 0) ::kill(::getpid(), SIGKILL);
  }

 private:
  uint64_t left_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace troupe::kv;
  using namespace troupe::kv::testing_support;
  if (argc != 4) return 2;
  killer hook(std::strtoull(argv[3], nullptr, 10));
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  auto s = open_real(argv[1], &hook);
  if (!s) {
    std::fprintf(stderr, "%s\n", s.error().message.c_str());
    return 1;
  }
  for (uint64_t n = 0; n < kill_operations; ++n) {
    crash_world::apply(*s->store, kill_operation(seed, n));
    std::printf("%llu\n", static_cast<unsigned long long>(n));
    std::fflush(stdout);
  }
  return 0;
}
