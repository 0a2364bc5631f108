// The wire over TCP against peers of every kind: honest, slow, gone, and those that are no peers at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "runtime/base/rng.hpp"
#include "runtime/transport/tcp_parts.hpp"
#include "tests/transport/pattern.hpp"

namespace troupe::transport {
namespace {

struct received {
  std::vector<std::byte> header, payload;
};

class tcp_wires : public testing::Test {
 protected:
  std::unique_ptr<wire> open(tcp_wire_options o = {}) {
    auto made = open_tcp_wire(o);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  void SetUp() override {
    to = open();
    from = open();
    to->on_frame([this](auto h, auto p) { got.push_back({{h.begin(), h.end()}, {p.begin(), p.end()}}); });
  }
  template <class F>
  bool eventually(F f) {
    const nanoseconds until = steady_clock().now() + std::chrono::seconds(20);
    while (!f()) {
      if (steady_clock().now() > until) return false;
      if (to->progress() + from->progress() == 0) sched_yield();
    }
    return true;
  }
  /// A plain socket, connected to `to`.
  descriptor stranger() {
    const auto where = *tcp_address::decode(to->address());
    sockaddr_storage a{};
    std::memcpy(&a, where.sockets[0].data(), where.sockets[0].size());
    descriptor fd(socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(where.sockets[0].size());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), length), 0) << std::strerror(errno);
    return fd;
  }
  tcp_greeting greeting() {
    tcp_greeting g;
    g.wire = tcp_address::decode(to->address())->wire;
    return g;
  }
  template <class T>
  static void say(const descriptor& fd, const T& what) {
    EXPECT_EQ(send(fd.get(), &what, sizeof what, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof what));
  }
  /// The wire has closed the other end.
  bool closed(const descriptor& fd) {
    return eventually([&] {
      char c;
      const ssize_t n = recv(fd.get(), &c, 1, MSG_DONTWAIT);
      return n == 0 || (n < 0 && errno != EAGAIN);
    });
  }
  static std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
    std::vector<std::byte> out(bytes);
    fill_pattern(out, seed);
    return out;
  }

  std::vector<received> got;
  std::unique_ptr<wire> to, from;  // after what the handler uses
};

TEST_F(tcp_wires, frames_of_all_sizes_arrive_whole_and_in_order) {
  const uint64_t seed = entropy_seed();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  rng random(seed);
  auto out = *from->connect(to->address());
  std::vector<std::vector<std::byte>> headers, payloads;
  uint64_t last = 0;
  for (int i = 0; i < 400; ++i) {
    const size_t most = i % 50 == 0 ? 6'000'000 : i % 5 == 0 ? 200'000 : 300;
    headers.push_back(pattern(random.below(max_frame_header + 1), i));
    auto payload = std::make_shared<std::vector<std::byte>>(pattern(random.below(most), i + 1000));
    payloads.push_back(*payload);
    last = out->post(headers.back(), *payload, payload);
    EXPECT_EQ(last, static_cast<uint64_t>(i + 1));
    if (random.below(4) == 0) from->progress();
    if (random.below(4) == 0) to->progress();
  }
  ASSERT_TRUE(eventually([&] { return got.size() == 400; })) << got.size();
  EXPECT_EQ(out->sent(), last);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].header, headers[i]) << i;
    EXPECT_TRUE(got[i].payload == payloads[i]) << i;
  }
}

TEST_F(tcp_wires, a_payload_is_kept_until_it_has_left_and_no_longer) {
  auto out = *from->connect(to->address());
  auto payload = std::make_shared<std::vector<std::byte>>(pattern(32 << 20, 1));
  std::weak_ptr<const void> kept = payload;
  const std::span<const std::byte> bytes(payload->data(), 16 << 20);
  const uint64_t number = out->post({}, bytes, std::move(payload));
  for (int i = 0; i < 1000; ++i) from->progress();  // the system cannot hold so much while nobody reads
  EXPECT_LT(out->sent(), number);
  EXPECT_FALSE(kept.expired());
  ASSERT_TRUE(eventually([&] { return out->sent() == number; }));
  EXPECT_TRUE(kept.expired());
  ASSERT_TRUE(eventually([&] { return got.size() == 1; }));
  EXPECT_EQ(check_pattern(got[0].payload, 1), -1);
  auto next = std::make_shared<int>(0);
  kept = next;
  out->post({}, std::span<const std::byte>(got[0].payload), next);
  out->post({}, {}, std::move(next));
  out.reset();
  EXPECT_TRUE(kept.expired()) << "a link that has gone holds nothing";
}

TEST_F(tcp_wires, a_link_to_a_wire_that_has_gone_is_lost) {
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  ASSERT_TRUE(eventually([&] { return got.size() == 1; }));
  const std::string address = to->address();
  to = open();
  ASSERT_TRUE(eventually([&] { return out->lost(); }));
  const uint64_t before = out->sent();
  EXPECT_EQ(out->post({}, {}, nullptr), 2u);
  EXPECT_EQ(out->sent(), before);
  auto late = *from->connect(address);
  EXPECT_TRUE(eventually([&] { return late->lost(); }));
}

TEST_F(tcp_wires, a_port_that_another_wire_has_now_refuses) {
  tcp_address wrong = *tcp_address::decode(to->address());
  wrong.wire ^= 1;
  auto out = *from->connect(wrong.encode());
  out->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return out->lost(); }));
  EXPECT_TRUE(got.empty());
}

TEST_F(tcp_wires, the_next_address_is_tried_when_one_is_refused) {
  tcp_address where = *tcp_address::decode(to->address());
  where.sockets.insert(where.sockets.begin(), tcp_address::decode(open()->address())->sockets[0]);  // gone already
  auto out = *from->connect(where.encode());
  out->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return got.size() == 1; }));
}

TEST_F(tcp_wires, a_link_to_a_port_where_nobody_listens_is_lost_whatever_port_it_has_itself) {
  // The system may choose the very port that is called, and then a socket is connected to itself: 1 in 28,000.
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 200; ++i) {
    descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t length = sizeof own;
    own.sin_port = 0;
    ASSERT_EQ(bind(probe.get(), reinterpret_cast<sockaddr*>(&own), length), 0);
    ASSERT_EQ(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
    probe.reset();
    tcp_address where = *tcp_address::decode(to->address());
    where.sockets = {std::string(reinterpret_cast<const char*>(&own), sizeof own)};
    auto out = *from->connect(where.encode());
    ASSERT_TRUE(eventually([&] { return out->lost(); }));
  }
}

TEST_F(tcp_wires, strangers_are_disconnected) {
  auto noise = stranger();
  say(noise, std::array<char, 64>{"GET / HTTP/1.1\r\nHost: here\r\n\r\n"});
  EXPECT_TRUE(closed(noise));
  auto late = stranger();
  tcp_greeting other = greeting();
  other.wire += 1;
  say(late, other);
  EXPECT_TRUE(closed(late));
  const tcp_lead bad_leads[] = {{max_frame_header + 1, 0}, {0, (17u << 20) + 1}, {UINT32_MAX, UINT32_MAX}};
  for (const tcp_lead& lead : bad_leads) {
    auto liar = stranger();
    say(liar, greeting());
    say(liar, lead);
    EXPECT_TRUE(closed(liar)) << lead.header << " " << lead.payload;
  }
  auto silent = stranger();
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return got.size() == 1; })) << "the others are served meanwhile";
}

TEST_F(tcp_wires, frames_that_come_byte_by_byte_are_put_together_and_parts_are_dropped) {
  auto slow = stranger();
  const auto payload = pattern(1000, 3);
  std::string bytes;
  const auto add = [&](const void* p, size_t n) { bytes.append(static_cast<const char*>(p), n); };
  const tcp_greeting g = greeting();
  const tcp_lead lead{5, 1000};
  add(&g, sizeof g);
  for (int i = 0; i < 2; ++i) {
    add(&lead, sizeof lead);
    add(payload.data(), 5);
    add(payload.data(), payload.size());
  }
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    say(slow, bytes[i]);
    to->progress();
  }
  ASSERT_TRUE(eventually([&] { return got.size() == 1; }));
  EXPECT_EQ(got[0].payload, payload);
  slow.reset();
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  ASSERT_TRUE(eventually([&] { return got.size() == 2; }));
  EXPECT_TRUE(got[1].payload.empty()) << "the frame that lacked a byte must not be delivered";
}

TEST_F(tcp_wires, the_number_of_connections_is_bounded) {
  tcp_wire_options four;
  four.max_incoming = 4;
  to = open(four);
  std::vector<descriptor> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(stranger());
    say(all.back(), greeting());
  }
  for (int i = 0; i < 100; ++i) to->progress();
  auto more = stranger();
  EXPECT_TRUE(closed(more));
  all.pop_back();
  for (bool in = false; !in;) {
    auto again = stranger();
    say(again, greeting());
    say(again, tcp_lead{0, 0});
    to->on_frame([&](auto, auto) { in = true; });
    ASSERT_TRUE(eventually([&, n = 0]() mutable { return in || ++n > 100; }));
  }
}

TEST_F(tcp_wires, a_process_without_free_descriptors_keeps_its_connections) {
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  ASSERT_TRUE(eventually([&] { return got.size() == 1; }));
  auto caller = stranger();  // in the queue of the system, not accepted yet
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<descriptor> all;
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(before.rlim_cur, 256);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (;;) {
    descriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    all.push_back(std::move(fd));
  }
  EXPECT_TRUE(closed(caller)) << "it would keep the wire awake";
  EXPECT_EQ(to->progress(), 0u);
  out->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return got.size() == 2; }));
  auto none = from->connect(to->address());
  ASSERT_TRUE(none);
  EXPECT_TRUE((*none)->lost()) << "a link without a descriptor is lost at once";
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  auto again = *from->connect(to->address());
  again->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return got.size() == 3; }));
}

TEST_F(tcp_wires, damaged_addresses_are_refused) {
  const std::string good = to->address();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(from->connect(good.substr(0, n)).error().code, errc::corrupt) << n;
    std::string wrong = good;
    wrong[n] ^= 1;
    EXPECT_EQ(from->connect(wrong).error().code, errc::corrupt) << n;
  }
  tcp_address odd = *tcp_address::decode(good);
  odd.sockets[0].resize(4);
  EXPECT_EQ(from->connect(odd.encode()).error().code, errc::corrupt);
  odd.sockets = {};
  EXPECT_EQ(from->connect(odd.encode()).error().code, errc::corrupt);
}

TEST_F(tcp_wires, every_device_has_its_addresses) {
  tcp_wire_options any;
  any.interface = "";
  to = open(any);
  to->on_frame([this](auto, auto) { got.emplace_back(); });
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  EXPECT_TRUE(eventually([&] { return got.size() == 1; }));
  tcp_wire_options none;
  none.interface = "no-such-device";
  EXPECT_EQ(open_tcp_wire(none).error().code, errc::unavailable);
}

TEST_F(tcp_wires, a_signal_ends_the_next_sleep_and_so_does_a_frame) {
  to->signal();
  const nanoseconds start = steady_clock().now();
  to->sleep(std::chrono::seconds(60));
  auto out = *from->connect(to->address());
  out->post({}, {}, nullptr);
  while (!out->sent()) from->progress();
  while (got.empty()) {
    to->sleep(std::chrono::seconds(60));
    to->progress();
  }
  EXPECT_LT(steady_clock().now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace troupe::transport
