// A process with a transport, for tests and benches: commands by lines, one line of answer each.
//   region BYTES SEED      allocates, fills with the pattern of SEED; answers the descriptor
//   free                   frees the newest region
//   sum                    hash of the newest region
//   send ADDRESS           sends 64 B on channel 3; answers "sent ok MS" or "sent ERROR MS" with the milliseconds it
//   took stream ADDRESS DESC    gets the region of another into the newest region, over and over until one fails moved
//   bytes that the transport has moved in ended                  waits until the stream has failed; answers as send
//   does, MS since the last that was good refill SEED            fills the newest region again check SEED first byte of
//   the newest region that differs, or -1 flood ADDRESS DESC N   pulls N times 1 MiB from the region of another,
//   without end of its own
// Channel 1 echoes a message back on channel 2; channel 3 swallows.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "runtime/base/log.hpp"
#include "runtime/transport/codec.hpp"
#include "runtime/transport/process_transport.hpp"
#include "tests/support/hex.hpp"
#include "tests/transport/pattern.hpp"

namespace {

using namespace troupe;

std::string told(const char* what, const result<void>& r, nanoseconds took) {
  return fmt::format("{} {} {}", what, r ? "ok" : to_string(r.error().code), took.count() / 1'000'000);
}

/// Gets that follow each other until one fails.
struct endless_get {
  transport::transport* t = nullptr;
  transport::peer_id peer;
  transport::region_ptr local;
  transport::remote_region remote;
  nanoseconds good{};  // when the last ended well
  transport::pending end{};

  void next() {
    auto posted = t->get(peer, local, 0, remote, 0, remote.length, [this](result<void> r) {
      if (!r) return end.callback()(std::move(r));
      good = steady_clock().now();
      next();
    });
    if (!posted) end.callback()(std::move(posted));
  }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace troupe::transport;
  using testing_support::from_hex;
  using testing_support::to_hex;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(300);
  log::init("transport_peer", getenv("TROUPE_TEST_LOG") ? getenv("TROUPE_TEST_LOG") : "warning");
  options o;
  const std::string mode = argc > 1 ? argv[1] : "shm";  // shm, tcp, or ucx: messages by UCX, no shared memory
  o.shared_memory = mode == "shm";
  if (mode == "ucx") o.messages = message_path::ucx;
  if (argc > 2) o.deadline = std::chrono::milliseconds(std::atoi(argv[2]));
  if (argc > 3) o.interface = argv[3];
  auto made = make_process_transport(o);
  if (!made) {
    std::cout << "error " << made.error().message << std::endl;
    return 1;
  }
  std::vector<region_ptr> regions;
  std::vector<std::unique_ptr<endless_get>> streams;
  const std::unique_ptr<transport::transport> owner = std::move(*made);  // after what its callbacks use
  auto& t = *owner;
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
    } else if (command == "send") {
      std::string address;
      in >> address;
      const nanoseconds start = steady_clock().now();
      auto peer = t.add_peer(from_hex(address));
      pending p;
      result<void> r = fail(errc::invalid_argument, "no such peer");
      if (peer) r = t.send(*peer, channel_id{3}, std::vector<std::byte>(64), p.callback());
      if (r) r = p.wait(std::chrono::seconds(60)) ? p.value() : fail(errc::timeout, "no completion");
      std::cout << told("sent", r, steady_clock().now() - start) << std::endl;
    } else if (command == "stream") {
      std::string address, descriptor;
      in >> address >> descriptor;
      auto peer = t.add_peer(from_hex(address));
      auto remote = remote_region::decode(from_hex(descriptor));
      if (!peer || !remote) {
        std::cout << "error" << std::endl;
        continue;
      }
      auto& s = *streams.emplace_back(std::make_unique<endless_get>());
      s.t = &t;
      s.peer = *peer;
      s.local = regions.back();
      s.remote = *remote;
      s.good = steady_clock().now();
      s.next();
      std::cout << "streaming" << std::endl;
    } else if (command == "moved") {
      std::cout << "moved " << t.stats().bytes_in << std::endl;
    } else if (command == "ended") {
      auto& s = *streams.back();
      const bool done = s.end.wait(std::chrono::seconds(60));
      std::cout << told("ended", done ? s.end.value() : fail(errc::timeout, "no end"), steady_clock().now() - s.good)
                << std::endl;
    } else if (command == "refill") {
      uint64_t seed;
      in >> seed;
      fill_pattern(regions.back()->bytes(), seed);
      std::cout << "filled" << std::endl;
    } else if (command == "check") {
      uint64_t seed;
      in >> seed;
      std::cout << "check " << check_pattern(regions.back()->bytes(), seed) << std::endl;
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
