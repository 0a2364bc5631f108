// ttl, evict, shard_place, repair_plan: rows, and validators that share no code with the planners.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "policies/evict.hpp"
#include "policies/repair_plan.hpp"
#include "policies/shard_place.hpp"
#include "policies/ttl.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies {
namespace {

TEST(ttl, table) {
  constexpr int64_t day = 86'400, now = 100 * day + 1;
  const int64_t agent = 103 * day + 3600, chat = 107 * day + 3600;  // rounded up to the next hour
  struct row {
    const char* rule;
    traffic_class traffic;
    ttl_touch touch;
    std::vector<int64_t> expiry;
    size_t visible;
    std::vector<int64_t> after;  // expiries when the changes are made
  };
  using enum ttl_touch;
  constexpr auto agent_ = traffic_class::agent, chatbot = traffic_class::chatbot;
  const row table[] = {
      {"nothing there", agent_, read, {}, 0, {}},
      {"a new root of agent traffic lives three days", agent_, write, {0}, 0, {agent}},
      {"a new root of chatbot traffic lives seven", chatbot, write, {0}, 0, {chat}},
      {"a new child raises its ancestors", agent_, write, {now + 5, now + 5, 0}, 2, {agent, agent, agent}},
      {"across classes too", chatbot, write, {agent, 0}, 1, {chat, chat}},
      {"but never lowers them", agent_, write, {chat, 0}, 1, {chat, agent}},
      {"a read extends", agent_, read, {now, now}, 2, {agent, agent}},
      {"a probe does not", agent_, probe, {now, now}, 2, {now, now}},
      {"expired means before now", agent_, read, {now - 1}, 0, {now - 1}},
      {"expiring now is not expired", agent_, read, {now}, 1, {agent}},
      {"a hole hides what is below, and a read does not revive it",
       agent_,
       read,
       {now, now - 1, chat},
       1,
       {agent, now - 1, chat}},
      {"an expired block is written anew", agent_, write, {now, now - 1}, 1, {agent, agent}},
      {"within the hour nothing is written", agent_, read, {agent, agent}, 2, {agent, agent}},
  };
  for (const auto& r : table) {
    auto plan = plan_ttl({now, r.traffic, r.touch, 3 * day, 7 * day, 3600, r.expiry});
    ASSERT_TRUE(plan) << r.rule << ": " << plan.error().message;
    EXPECT_EQ(plan->visible, r.visible) << r.rule;
    auto after = r.expiry;
    for (size_t i = 0; i < plan->changes.size(); ++i) {
      EXPECT_TRUE(i == 0 || plan->changes[i - 1].index < plan->changes[i].index) << r.rule << ": root first";
      EXPECT_GT(plan->changes[i].expiry_s, after[plan->changes[i].index]) << r.rule << ": only raised";
      after[plan->changes[i].index] = plan->changes[i].expiry_s;
    }
    EXPECT_EQ(after, r.after) << r.rule;
  }
  EXPECT_FALSE(plan_ttl({now, agent_, write, 1, 1, 0, {}}));  // no step
  EXPECT_FALSE(plan_ttl({now, agent_, write, 0, 1, 1, {}}));  // no time to live
  EXPECT_FALSE(plan_ttl({-1, agent_, write, 1, 1, 1, {}}));
  EXPECT_FALSE(plan_ttl({now, agent_, write, 1, 1, 1, {now - 1, 0}}));  // an orphan
  EXPECT_FALSE(plan_ttl({now, agent_, write, INT64_MAX, 1, 1, {}}));
}

// Whatever happens to a chain, a crash after any of the writes leaves no visible block that outlives its parent.
TEST(ttl, parents_never_go_before_children) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    rng random{seed};
    std::vector<int64_t> chain(8, 0);
    int64_t now = 1000;
    for (int step = 0; step < 60; ++step) {
      now += static_cast<int64_t>(random.below(60));
      ttl_input in{now, random.below(2) ? traffic_class::agent : traffic_class::chatbot, ttl_touch::read, 90, 210, 30,
                   {}};
      size_t alive = 0;
      while (alive < chain.size() && chain[alive] >= now) ++alive;
      const bool write = random.below(2) == 0 && alive < chain.size();
      in.touch = write ? ttl_touch::write : ttl_touch::read;
      in.expiry_s.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(
                                                            write ? alive + 1 : random.below(chain.size() + 1)));
      auto plan = plan_ttl(in);
      ASSERT_TRUE(plan) << "seed " << seed;
      for (const auto& c : plan->changes) {
        chain[c.index] = c.expiry_s;
        EXPECT_EQ(c.expiry_s % 30, 0) << "seed " << seed;
        for (size_t i = 1; i < chain.size(); ++i)
          EXPECT_TRUE(chain[i] < now || chain[i] <= chain[i - 1]) << "seed " << seed << " step " << step;
      }
    }
  }
}

TEST(evict, table) {
  struct row {
    const char* rule;
    uint64_t need;
    std::vector<evict_entry> entries;
    std::vector<uint64_t> ids;
    uint64_t missing;
  };
  // id, parent, expiry, written, bytes, leased; now = 100
  const row table[] = {
      {"nothing needed, nothing expired", 0, {{1, 0, 200, 0, 10}}, {}, 0},
      {"expired ones go anyway", 0, {{1, 0, 99, 0, 10}, {2, 0, 100, 0, 10}}, {1}, 0},
      {"earliest expiry first", 10, {{1, 0, 300, 0, 10}, {2, 0, 200, 9, 10}}, {2}, 0},
      {"then the oldest", 10, {{1, 0, 200, 5, 10}, {2, 0, 200, 4, 10}}, {2}, 0},
      {"then the lowest id", 10, {{2, 0, 200, 5, 10}, {1, 0, 200, 5, 10}}, {1}, 0},
      {"children before parents", 20, {{1, 0, 150, 0, 10}, {2, 1, 300, 0, 10}}, {2, 1}, 0},
      {"never a leased one, nor what it hangs on",
       30,
       {{1, 0, 99, 0, 10}, {2, 1, 99, 0, 10, true}, {3, 1, 99, 0, 10}},
       {3},
       20},
      {"no more than needed", 15, {{1, 0, 200, 1, 10}, {2, 0, 200, 2, 10}, {3, 0, 200, 3, 10}}, {1, 2}, 0},
      {"all there is", 50, {{1, 0, 200, 1, 10}}, {1}, 40},
      {"an unknown parent is none", 10, {{1, 77, 200, 1, 10}}, {1}, 0},
      {"nothing there", 5, {}, {}, 5},
  };
  for (const auto& r : table) {
    auto plan = plan_evict({100, r.need, true, r.entries});
    ASSERT_TRUE(plan) << r.rule;
    EXPECT_EQ(plan->ids, r.ids) << r.rule;
    EXPECT_EQ(plan->short_bytes, r.missing) << r.rule;
  }
  EXPECT_FALSE(plan_evict({0, 0, true, {{0, 0, 1, 1, 1}}}));
  EXPECT_FALSE(plan_evict({0, 0, true, {{1, 0, 1, 1, 1}, {1, 0, 1, 1, 1}}}));
  EXPECT_FALSE(plan_evict({0, 0, true, {{1, 2, 1, 1, 1}, {2, 1, 1, 1, 1}}}));  // a cycle
  EXPECT_FALSE(plan_evict({0, 0, true, {{1, 1, 1, 1, 1}}}));
}

// Replays a plan on a set: each victim is the least (expiry, written, id) of those unleased ones without a child left.
TEST(evict, every_victim_is_the_least_that_may_go) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    rng random{seed};
    evict_input in;
    in.now_s = 50, in.need_bytes = random.below(200), in.all_expired = random.below(2) == 0;
    const uint64_t n = random.below(30);
    for (uint64_t id = 1; id <= n; ++id)
      in.entries.push_back({id, random.below(id), static_cast<int64_t>(random.below(8) * 20),
                            static_cast<int64_t>(random.below(3)), random.below(20), random.below(6) == 0});
    auto plan = plan_evict(in);
    ASSERT_TRUE(plan);
    std::map<uint64_t, evict_entry> left;
    for (const auto& e : in.entries) left[e.id] = e;
    uint64_t freed = 0;
    const auto least = [&]() -> const evict_entry* {
      const evict_entry* best = nullptr;
      for (const auto& [id, e] : left) {
        const bool parent = std::any_of(left.begin(), left.end(), [&](const auto& o) { return o.second.parent == id; });
        if (e.leased || parent) continue;
        if (!best || std::tuple(e.expiry_s, e.written_s, id) < std::tuple(best->expiry_s, best->written_s, best->id))
          best = &e;
      }
      return best;
    };
    for (uint64_t id : plan->ids) {
      const auto* e = least();
      ASSERT_TRUE(e && e->id == id) << "seed " << seed;
      EXPECT_TRUE(freed < in.need_bytes || (in.all_expired && e->expiry_s < 50))
          << "seed " << seed << ": more than needed";
      freed += e->bytes;
      left.erase(id);
    }
    EXPECT_EQ(freed, plan->freed_bytes);
    const auto* e = least();
    EXPECT_FALSE(e && (freed < in.need_bytes || (in.all_expired && e->expiry_s < 50)))
        << "seed " << seed << ": too early an end";
  }
}

std::vector<shard_node> cluster(uint64_t nodes, uint64_t per_domain) {
  std::vector<shard_node> out;
  for (uint64_t i = 0; i < nodes; ++i) out.push_back({i + 1, i / per_domain, 1});
  return out;
}

TEST(shard_place, edges) {
  shard_place_input in;
  in.data = 2, in.parity = 1, in.nodes = cluster(3, 1);
  auto plan = place_shards(in);
  ASSERT_TRUE(plan);
  EXPECT_EQ(std::set<uint64_t>(plan->nodes.begin(), plan->nodes.end()).size(), 3u);
  EXPECT_TRUE(plan->survives_domain);
  in.nodes = cluster(3, 3);  // one host with three disks: allowed, and said
  EXPECT_FALSE(place_shards(in)->survives_domain);
  EXPECT_EQ(place_shards(in)->per_domain, 3u);
  in.nodes = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 2, 1}};  // domains of different size: 2 + 1
  EXPECT_EQ(place_shards(in)->per_domain, 2u);
  in.nodes = cluster(3, 1), in.nodes[1].weight = 0;
  EXPECT_EQ(place_shards(in).error().code, errc::exhausted);
  in.nodes = cluster(2, 1);
  EXPECT_EQ(place_shards(in).error().code, errc::exhausted);
  in.nodes = cluster(4, 1), in.nodes[3].id = 1;
  EXPECT_FALSE(place_shards(in));
  in.nodes[3].id = 0;
  EXPECT_FALSE(place_shards(in));
  in.nodes = cluster(4, 1), in.nodes[0].weight = (1u << 24) + 1;
  EXPECT_FALSE(place_shards(in));
  in.nodes = cluster(4, 1), in.current = {1, 2};
  EXPECT_FALSE(place_shards(in));
  in.current.clear(), in.data = 0;
  EXPECT_FALSE(place_shards(in));
  in.data = 250, in.parity = 6;
  EXPECT_FALSE(place_shards(in));
}

// 10+2 over 48 nodes in 24 domains: every node gets its part, one shard per domain, order of the nodes does not matter.
TEST(shard_place, spreads_evenly_and_by_weight) {
  auto nodes = cluster(48, 2);
  for (size_t i = 0; i < nodes.size(); i += 2) nodes[i].weight = 3, nodes[i + 1].weight = 1;
  std::map<uint64_t, uint32_t> count;
  constexpr uint32_t keys = 20'000;
  for (uint64_t key = 1; key <= keys; ++key) {
    shard_place_input in;
    in.key_low = key, in.nodes = nodes;
    auto plan = place_shards(in);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->per_domain, 1u);
    for (uint64_t n : plan->nodes) ++count[n];
    if (key > 200) continue;
    std::reverse(in.nodes.begin(), in.nodes.end());
    EXPECT_EQ(place_shards(in)->nodes, plan->nodes);
  }
  double even = 0, odd = 0;
  for (const auto& [id, c] : count) (id % 2 == 1 ? even : odd) += c;
  EXPECT_NEAR(even / odd, 3, 0.25);  // one winner per domain, weighted 3 : 1
  for (const auto& [id, c] : count) EXPECT_NEAR(c / ((id % 2 == 1 ? even : odd) / 24), 1, 0.1) << "node " << id;
}

// A node that leaves moves only its own shards; one that comes takes at most one shard of an extent, and its fair part
// of all.
TEST(shard_place, moves_the_minimum) {
  const auto nodes = cluster(30, 1);
  uint32_t taken = 0;
  for (uint64_t key = 1; key <= 2000; ++key) {
    shard_place_input in;
    in.key_high = 7, in.key_low = key, in.nodes = nodes;
    const auto before = place_shards(in)->nodes;
    in.current = before;
    EXPECT_EQ(place_shards(in)->moved, 0u);
    in.nodes.erase(in.nodes.begin() + static_cast<std::ptrdiff_t>(key % 30));
    const auto gone = place_shards(in)->nodes;
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(gone[i] == before[i], before[i] != key % 30 + 1) << "key " << key;
    in.nodes = nodes, in.nodes.push_back({99, 99, 1});
    const auto plan = place_shards(in);
    EXPECT_LE(plan->moved, 1u) << "key " << key;
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(plan->nodes[i] == before[i] || plan->nodes[i] == 99u) << "key " << key;
    taken += plan->moved;
  }
  EXPECT_NEAR(taken / 2000.0, 12 / 31.0, 0.04);
}

TEST(repair_plan, table) {
  struct row {
    const char* rule;
    std::vector<repair_node> nodes;
    std::vector<repair_extent> extents;
    std::vector<std::pair<uint64_t, std::vector<uint64_t>>> tasks;  // extent, targets
    std::vector<uint64_t> lost, waiting;
  };
  const std::vector<repair_node> four = {{1, 1, 10, 10}, {2, 2, 10, 10}, {3, 3, 10, 10}, {4, 4, 10, 10}};
  const row table[] = {
      {"nothing damaged", four, {}, {}, {}, {}},
      {"nothing missing", four, {{9, 2, 10, {1, 2}, 0}}, {}, {}, {}},
      {"one lost of 2+1", four, {{9, 2, 10, {1, 2}, 1}}, {{9, {3}}}, {}, {}},
      {"two lost of 2+1: gone", four, {{9, 2, 10, {1}, 2}}, {}, {9}, {}},
      {"a holder that is not alive does not count", four, {{9, 2, 10, {1, 77}, 1}}, {}, {9}, {}},
      {"most endangered first, it takes the budget",
       four,
       {{8, 2, 10, {1, 2, 3}, 1}, {9, 2, 10, {2, 3}, 2}},
       {{9, {1, 4}}},
       {},
       {8}},
      {"as many as fit", four, {{9, 2, 10, {1, 2}, 3}}, {{9, {3, 4}}}, {}, {9}},
      {"no budget to read", {{1, 1, 9, 10}, {2, 2, 10, 10}, {3, 3, 10, 10}}, {{9, 2, 10, {1, 2}, 1}}, {}, {}, {9}},
      {"no budget to write", {{1, 1, 10, 10}, {2, 2, 10, 10}, {3, 3, 10, 9}}, {{9, 2, 10, {1, 2}, 1}}, {}, {}, {9}},
      {"a domain without a shard of it first",
       {{1, 1, 10, 10}, {2, 2, 10, 10}, {3, 1, 10, 10}, {4, 3, 10, 10}},
       {{9, 2, 10, {1, 2}, 1}},
       {{9, {4}}},
       {},
       {}},
      {"else any other node",
       {{1, 1, 10, 10}, {2, 2, 10, 10}, {3, 1, 10, 10}},
       {{9, 2, 10, {1, 2}, 1}},
       {{9, {3}}},
       {},
       {}},
  };
  for (const auto& r : table) {
    auto plan = plan_repair({r.nodes, r.extents, 100});
    ASSERT_TRUE(plan) << r.rule;
    std::vector<std::pair<uint64_t, std::vector<uint64_t>>> tasks;
    for (const auto& t : plan->tasks) tasks.emplace_back(t.extent, t.targets);
    EXPECT_EQ(tasks, r.tasks) << r.rule;
    EXPECT_EQ(plan->lost, r.lost) << r.rule;
    EXPECT_EQ(plan->waiting, r.waiting) << r.rule;
  }
  EXPECT_FALSE(plan_repair({{{0, 0, 1, 1}}, {}, 1}));
  EXPECT_FALSE(plan_repair({{{1, 0, 1, 1}, {1, 0, 1, 1}}, {}, 1}));
  EXPECT_FALSE(plan_repair({four, {{9, 0, 10, {1, 2}, 1}}, 1}));
  EXPECT_FALSE(plan_repair({four, {{9, 2, 10, {1, 1}, 1}}, 1}));
}

TEST(repair_plan, keeps_every_budget_and_leaves_out_only_what_does_not_fit) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    rng random{seed};
    repair_input in;
    const uint64_t n = 4 + random.below(12);
    for (uint64_t i = 1; i <= n; ++i) in.nodes.push_back({i, i / 2, random.below(80), random.below(80)});
    for (uint64_t id = 1; id <= 20; ++id) {
      repair_extent e{id,
                      static_cast<uint32_t>(1 + random.below(3)),
                      1 + random.below(20),
                      {},
                      static_cast<uint32_t>(random.below(3))};
      for (uint64_t i = 1; i <= n + 2; ++i)
        if (random.below(3) == 0) e.holders.push_back(i);
      in.extents.push_back(e);
    }
    auto plan = plan_repair(in);
    ASSERT_TRUE(plan);
    std::map<uint64_t, uint64_t> read, write;
    std::map<uint64_t, const repair_task*> done;
    size_t last = 0;
    for (const auto& t : plan->tasks) {
      const auto& e = in.extents[t.extent - 1];
      done[t.extent] = &t;
      const std::set<uint64_t> holders(e.holders.begin(), e.holders.end()), from(t.sources.begin(), t.sources.end()),
          to(t.targets.begin(), t.targets.end());
      EXPECT_EQ(from.size(), e.data) << "seed " << seed;
      for (uint64_t s : from) EXPECT_TRUE(holders.contains(s) && s <= n) << "seed " << seed;
      EXPECT_TRUE(!to.empty() && to.size() == t.targets.size() && to.size() <= e.missing) << "seed " << seed;
      for (uint64_t s : to) EXPECT_FALSE(holders.contains(s)) << "seed " << seed;
      for (uint64_t s : t.sources) read[s] += e.shard_bytes;
      for (uint64_t s : t.targets) write[s] += e.shard_bytes;
      const size_t alive =
          static_cast<size_t>(std::count_if(e.holders.begin(), e.holders.end(), [&](uint64_t h) { return h <= n; }));
      EXPECT_GE(alive - e.data, last) << "seed " << seed << ": most endangered first";
      last = alive - e.data;
    }
    for (const auto& node : in.nodes) {
      EXPECT_LE(read[node.id], node.read_bytes) << "seed " << seed;
      EXPECT_LE(write[node.id], node.write_bytes) << "seed " << seed;
    }
    const std::set<uint64_t> lost(plan->lost.begin(), plan->lost.end()),
        waiting(plan->waiting.begin(), plan->waiting.end());
    for (const auto& e : in.extents) {
      size_t alive = 0, readable = 0, writable = 0;
      for (const auto& node : in.nodes) {
        const bool holds = std::find(e.holders.begin(), e.holders.end(), node.id) != e.holders.end();
        alive += holds;
        readable += holds && node.read_bytes - read[node.id] >= e.shard_bytes;
        writable += !holds && node.write_bytes - write[node.id] >= e.shard_bytes;
      }
      EXPECT_EQ(lost.contains(e.id), alive < e.data) << "seed " << seed;
      if (!done.contains(e.id) && alive >= e.data && e.missing > 0) {
        EXPECT_TRUE(waiting.contains(e.id)) << "seed " << seed;
        EXPECT_TRUE(readable < e.data || writable == 0)
            << "seed " << seed << ": extent " << e.id << " would have fitted";
      }
    }
  }
}

// A node of 24 dies: its 500 extents of 10+2 are read from and written to all 23 others, evenly.
TEST(repair_plan, spreads_over_all_peers) {
  rng random{5};
  repair_input in;
  for (uint64_t i = 1; i <= 23; ++i) in.nodes.push_back({i, i, 1'000'000, 1'000'000});
  for (uint64_t id = 1; id <= 500; ++id) {
    shard_place_input where;
    where.key_low = random.next();
    for (uint64_t i = 1; i <= 23; ++i) where.nodes.push_back({i, i, 1});
    where.data = 9;
    repair_extent e{id, 10, 100, place_shards(where)->nodes, 1};
    in.extents.push_back(e);
  }
  auto plan = plan_repair(in);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->tasks.size(), 500u);
  std::map<uint64_t, uint32_t> read, write;
  for (const auto& t : plan->tasks) {
    for (uint64_t s : t.sources) ++read[s];
    for (uint64_t s : t.targets) ++write[s];
  }
  for (uint64_t i = 1; i <= 23; ++i) {
    EXPECT_NEAR(read[i], 5000 / 23.0, 0.1 * 5000 / 23) << "node " << i << ", seed 5";
    EXPECT_NEAR(write[i], 500 / 23.0, 3) << "node " << i << ", seed 5";
  }
}

}  // namespace
}  // namespace troupe::policies
