// A process with a UCX transport, for tests and benches: commands by lines, one line of answer each.
//   region BYTES SEED      allocates, fills with the pattern of SEED; answers the descriptor
//   free                   frees the newest region
//   sum                    hash of the newest region
//   flood ADDRESS DESC N   pulls N times 1 MiB from the region of another, without end of its own
// Channel 1 echoes a message back on channel 2; channel 3 swallows.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "runtime/base/log.hpp"
#include "runtime/transport/codec.hpp"
#include "runtime/transport/ucx.hpp"
#include "tests/support/hex.hpp"
#include "tests/transport/pattern.hpp"

int main(int argc, char** argv) {
  using namespace troupe;
  using namespace troupe::transport;
  using testing_support::from_hex;
  using testing_support::to_hex;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(300);
  log::init("transport_peer", getenv("TROUPE_TEST_LOG") ? getenv("TROUPE_TEST_LOG") : "warning");
  options o;
  o.shared_memory = argc < 2 || std::string(argv[1]) != "tcp";
  if (argc > 2) o.deadline = std::chrono::milliseconds(std::atoi(argv[2]));
  auto made = make_ucx_transport(o);
  if (!made) {
    std::cout << "error " << made.error().message << std::endl;
    return 1;
  }
  auto& t = **made;
  std::vector<region_ptr> regions;
  t.on_message(channel_id{1}, [&](peer_id from, std::span<const std::byte> bytes) {
    (void)t.send(from, channel_id{2}, {bytes.begin(), bytes.end()}, {});
  });
  t.on_message(channel_id{3}, [](peer_id, std::span<const std::byte>) {});
  std::cout << "address " << to_hex(t.address()) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    if (command == "region") {
      size_t bytes;
      uint64_t seed;
      in >> bytes >> seed;
      auto r = t.allocate(bytes);
      if (!r) {
        std::cout << "error " << r.error().message << std::endl;
        continue;
      }
      fill_pattern((*r)->bytes(), seed);
      regions.push_back(*r);
      std::cout << "region " << to_hex((*r)->descriptor().encode()) << std::endl;
    } else if (command == "free") {
      regions.pop_back();
      std::cout << "freed" << std::endl;
    } else if (command == "sum") {
      const auto b = regions.back()->bytes();
      std::cout << "sum " << blob_hash({reinterpret_cast<const char*>(b.data()), b.size()}) << std::endl;
    } else if (command == "flood") {
      std::string address, descriptor;
      int n;
      in >> address >> descriptor >> n;
      auto peer = t.add_peer(from_hex(address));
      auto remote = remote_region::decode(from_hex(descriptor));
      auto local = t.allocate(1 << 20);
      if (!peer || !remote || !local) {
        std::cout << "error" << std::endl;
        continue;
      }
      for (int i = 0; i < n; ++i) (void)t.get(*peer, *local, 0, *remote, 0, 1 << 20, {});
      std::cout << "flooding" << std::endl;
    } else {
      std::cout << "unknown " << command << std::endl;
    }
  }
  return 0;
}
