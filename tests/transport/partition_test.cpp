// The UCX transport over a network that is cut: between two network namespaces, both ways or one way only.
#include <gtest/gtest.h>

#include "runtime/transport/transport.hpp"
#include "tests/support/child_process.hpp"
#include "tests/transport/netns.hpp"

namespace troupe::transport {
namespace {

using testing_support::child_process;
using testing_support::netns_pair;

constexpr int deadline_ms = 400, slack_ms = 1500;  // the machine may be busy

/// Second word of an answer.
std::string word(const std::string& line) {
  const auto from = line.find(' ') + 1;
  return line.substr(from, line.find(' ', from) - from);
}
int64_t milliseconds_of(const std::string& line) { return std::stoll(line.substr(line.rfind(' ') + 1)); }

enum class way { both, from_the_reader, from_the_owner };

class partition : public testing::TestWithParam<way> {};
INSTANTIATE_TEST_SUITE_P(ucx, partition, testing::Values(way::both, way::from_the_reader, way::from_the_owner),
                         [](const auto& i) {
                           return std::string(i.param == way::both              ? "both_ways"
                                              : i.param == way::from_the_reader ? "from_the_reader"
                                                                                : "from_the_owner");
                         });

TEST_P(partition, a_cut_link_ends_the_connection_in_time_and_heals_without_late_writes) {
  netns_pair net;
  if (!net.why().empty()) GTEST_SKIP() << net.why();
  const auto start = [&](int side) {
    return child_process({"/bin/sh", "-c",
                          "exec " + net.inside(side) + TROUPE_TRANSPORT_PEER + " tcp " + std::to_string(deadline_ms) +
                              " " + netns_pair::device()});
  };
  auto reader = start(0), owner = start(1);
  const std::string reader_line = reader.line(), owner_line = owner.line();
  ASSERT_EQ(reader_line.rfind("address ", 0), 0u) << reader_line;
  ASSERT_EQ(owner_line.rfind("address ", 0), 0u) << owner_line;
  const std::string reader_address = word(reader_line), owner_address = word(owner_line);
  const std::string remote = word(owner.ask("region 8388608 17"));
  reader.ask("region 8388608 1");
  ASSERT_EQ(word(reader.ask("send " + owner_address)), "ok");
  ASSERT_EQ(word(owner.ask("send " + reader_address)), "ok");

  ASSERT_EQ(reader.ask("stream " + owner_address + " " + remote), "streaming");
  const nanoseconds until = steady_clock().now() + std::chrono::seconds(20);
  while (std::stoull(word(reader.ask("moved"))) < 3 * 8388608u) ASSERT_LT(steady_clock().now(), until);
  const int side = GetParam() == way::from_the_owner ? 1 : 0;
  const bool both = GetParam() == way::both;
  ASSERT_TRUE(both ? net.cut() : net.cut_from(side)) << net.why();
  const std::string ended = reader.ask("ended");
  EXPECT_EQ(word(ended), "peer_lost");
  const std::string lost = owner.ask("send " + reader_address);
  EXPECT_EQ(word(lost), "peer_lost");
  printf("%s, %s; deadline %d ms\n", ended.c_str(), lost.c_str(), deadline_ms);
  EXPECT_LE(milliseconds_of(ended), deadline_ms + slack_ms);
  EXPECT_LE(milliseconds_of(lost), deadline_ms + slack_ms);

  // The bytes that the kernels still hold for the old connection come now, and must not land.
  ASSERT_EQ(reader.ask("refill 99"), "filled");
  ASSERT_TRUE(both ? net.heal() : net.heal_from(side)) << net.why();
  const nanoseconds healed = steady_clock().now();
  while (word(reader.ask("send " + owner_address)) != "ok")
    ASSERT_LT(steady_clock().now(), healed + std::chrono::seconds(30)) << "no connection after the link has healed";
  while (word(owner.ask("send " + reader_address)) != "ok")
    ASSERT_LT(steady_clock().now(), healed + std::chrono::seconds(30));
  EXPECT_EQ(reader.ask("check 99"), "check -1") << "a late reply landed";
  ASSERT_EQ(reader.ask("stream " + owner_address + " " + remote), "streaming");
  const uint64_t before = std::stoull(word(reader.ask("moved")));
  while (std::stoull(word(reader.ask("moved"))) < before + 2 * 8388608u)
    ASSERT_LT(steady_clock().now(), healed + std::chrono::seconds(60));
  owner.kill();
  EXPECT_EQ(word(reader.ask("ended")), "peer_lost");
  EXPECT_EQ(reader.ask("check 17"), "check -1") << "the bytes of the last good get";
}

}  // namespace
}  // namespace troupe::transport
