// Prefill on one engine, decode on another: pages and state pulled over the loopback transport, and the same tokens and
// log probabilities, to the bit, as from one engine that does everything.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "kernels/engine/handoff_pull.hpp"
#include "kernels/ep/thread_group.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/transport/loopback.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/identity_workload.hpp"
#include "tests/support/sanitized.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;
using tests::sanitized;

constexpr uint32_t places = 3;

engine_limits limits(uint32_t slots, uint32_t max_chunk, uint32_t pages) {
  return {.slots = slots, .max_chunk = max_chunk, .max_context = 384, .pages = pages};
}

/// An engine whose pages and states lie in memory that peers can reach.
struct node {
  node(transport::loopback_network& network, cpu_engine_config config) {
    weights = config.weights;
    config.limits.handoffs = places;
    const model& m = *weights;
    page_bytes = m.plan.page_bytes;
    state_bytes = handoff_bytes(m);
    wire = *network.make({});
    pages = *wire->allocate(size_t{config.limits.pages} * page_bytes);
    states = *wire->allocate(size_t{places} * state_bytes);
    // What earlier lives left behind must not matter.
    std::fill(states->bytes().begin(), states->bytes().end(), std::byte{0xa5});
    std::fill(pages->bytes().begin(), pages->bytes().end(), std::byte{0x5a});
    config.pages = pages->bytes();
    config.handoff = states->bytes();
    driver = std::make_unique<engine_driver>(std::move(config));
  }
  std::shared_ptr<const model> weights;
  uint32_t page_bytes = 0, state_bytes = 0;
  std::unique_ptr<transport::transport> wire;
  transport::region_ptr pages, states;
  std::unique_ptr<engine_driver> driver;
};

/// A prefilled prompt, as a peer needs it.
struct prefilled {
  std::vector<token_id> tokens;  // of the first step that sampled
  sequence_result last;
  std::vector<page_id> pages;
  uint32_t place = 0;
};

prefilled prefill(node& n, const prompt& p, uint32_t chunk, slot_id slot, uint32_t place) {
  prefilled out;
  out.place = place;
  const uint32_t length = static_cast<uint32_t>(p.tokens.size()), window = n.driver->get().facts().window;
  for (uint32_t done = 0; done < length;) {
    step_plan plan;
    if (done == 0) plan.open.push_back({slot, p.tokens, length, p.sampling, p.stop, p.speculate});
    sequence_step s{.slot = slot, .position = done, .rows = std::min(chunk, length - done)};
    s.decoder_from = s.decoder_floor = length > window ? length - window : 0;
    done += s.rows;
    const uint32_t wanted = (done + window - 1) / window, have = static_cast<uint32_t>(n.driver->held(slot).size());
    if (wanted > have) s.pages = n.driver->pages(slot, wanted - have);
    s.sample = done == length;
    if (s.sample) s.export_to = place;
    plan.sequences.push_back(s);
    for (const step_result& r : n.driver->run(plan)) {
      EXPECT_EQ(r.failure, errc{}) << r.failure_text;
      if (!r.sequences.empty()) out.last = r.sequences[0];
    }
  }
  out.tokens = p.tokens;
  out.tokens.push_back(out.last.tokens.at(0));
  out.pages = n.driver->held(slot);
  return out;
}

void close(node& n, slot_id slot) {
  step_plan plan;
  plan.close = {slot};
  for (const step_result& r : n.driver->run(plan))
    for (slot_id s : r.closed) n.driver->give_back(s);
}

/// Pulls what `from` has prefilled into pages and a place of `to`.
result<sequence_import> pull(transport::loopback_network& network, node& from, node& to, const prefilled& what,
                             uint32_t place) {
  sequence_import in;
  in.rows = what.last.exported.rows;
  in.state = place;
  in.pages = *to.driver->pool().take(static_cast<uint32_t>(what.pages.size()));
  handoff_route r;
  TROUPE_TRY(r.peer, to.wire->add_peer(from.wire->address()));
  r.from_pages = from.pages->descriptor();
  r.from_states = from.states->descriptor();
  r.from_state = uint64_t{what.place} * from.state_bytes;
  r.to_pages = to.pages;
  r.to_states = to.states;
  r.to_state = uint64_t{place} * to.state_bytes;
  r.from = what.pages;
  r.to = in.pages;
  std::deque<std::function<void()>> tasks;
  std::optional<result<uint64_t>> done;
  pull_handoff(
      *to.wire, to.weights->plan, r, what.last.exported,
      [&](std::function<void()> t) { tasks.push_back(std::move(t)); },
      [&](result<uint64_t> x) { done = std::move(x); });
  while (network.step() || !tasks.empty()) {
    if (tasks.empty()) continue;
    tasks.front()();
    tasks.pop_front();
  }
  if (!done) return fail(errc::internal, "the pull did not end");
  if (!*done) return fail(done->error());
  EXPECT_EQ(**done, in.pages.size() * uint64_t{to.page_bytes} + what.last.exported.state_bytes);
  return in;
}

cpu_engine_config config(uint32_t slots, uint32_t max_chunk, uint32_t pages) {
  cpu_engine_config c;
  c.weights = identity_model();
  c.limits = limits(slots, max_chunk, pages);
  return c;
}

/// Odd and even lengths below, at and beyond one and several windows.
std::vector<prompt> prompts() {
  std::vector<prompt> out;
  for (uint32_t length : {1u, 2u, 15u, 16u, 17u, 31u, 33u, 80u, 129u}) {
    prompt p;
    p.tokens = random_tokens(length + 7, length, 512);
    p.sampling = {.temperature = length % 2 ? 0.8f : 0.0f, .seed = length, .logprobs = 20};
    p.stop = {.max_tokens = 12, .ignore_eos = true};
    out.push_back(p);
  }
  return out;
}

std::vector<completion> reference(const std::vector<prompt>& all) {
  engine_driver d(config(1, 160, 24));
  std::vector<completion> out;
  for (const prompt& p : all) out.push_back(d.complete({p}, 0)[0]);
  return out;
}

void expect_same(const prefilled& first, const completion& rest, const completion& want, const std::string& what) {
  completion whole = rest;
  whole.tokens.insert(whole.tokens.begin(), first.last.tokens[0]);
  whole.logprobs.insert(whole.logprobs.begin(), first.last.logprobs[0]);
  whole.top.insert(whole.top.begin(), first.last.top[0]);
  EXPECT_EQ(whole.tokens, want.tokens) << what;
  EXPECT_TRUE(whole.same_output(want)) << what;
}

prompt continued(const prompt& p, const prefilled& first, sequence_import in) {
  prompt rest = p;
  rest.tokens = first.tokens;
  rest.prompt_length = static_cast<uint32_t>(p.tokens.size());
  rest.imported = std::move(in);
  return rest;
}

TEST(handoff, any_length_chunk_and_speculation_gives_the_same_bytes) {
  const auto all = prompts();
  const auto want = reference(all);
  auto network = transport::make_loopback_network(steady_clock(), 1);
  node p(*network, config(2, 160, 40)), d(*network, config(4, 32, 64));
  uint32_t drafted = 0;
  for (uint32_t chunk : {160u, 16u, 7u}) {
    for (uint32_t budget : {0u, 20u}) {
      for (size_t i = 0; i < all.size(); ++i) {
        if (sanitized && (chunk == 16 || i % 2 == 0)) continue;  // what it looks for is in the copying
        const std::string what = fmt::format("{} tokens, chunks of {}, budget {}", all[i].tokens.size(), chunk, budget);
        const auto first = prefill(p, all[i], chunk, slot_id{static_cast<uint32_t>(i % 2)}, i % places);
        ASSERT_EQ(first.last.exported.rows, all[i].tokens.size()) << what;
        auto in = pull(*network, p, d, first, (i + 1) % places);
        ASSERT_TRUE(in) << what << ": " << in.error().message;
        close(p, slot_id{static_cast<uint32_t>(i % 2)});
        const auto rest = d.driver->complete({continued(all[i], first, *in)}, budget)[0];
        expect_same(first, rest, want[i], what);
        drafted += rest.drafted;
      }
    }
  }
  EXPECT_GT(drafted, 0u);
  EXPECT_EQ(p.driver->pool().counts().free, 40u);
  EXPECT_EQ(d.driver->pool().counts().free, 64u);
}

// The context of the drafter travels too: drafts are the same, so just as many are accepted.
TEST(handoff, drafts_are_those_of_one_engine) {
  std::vector<token_id> banned;  // three tokens are left, so that a random drafter is often right
  for (token_id t = 0; t < 512; ++t)
    if (t != 9 && t != 100 && t != 300) banned.push_back(t);
  prompt p;
  p.tokens = random_tokens(3, 77, 512);
  p.sampling = {.temperature = 0.8f, .seed = 4, .logprobs = 3};
  p.stop = {.max_tokens = 40, .min_tokens = 40, .stop_ids = banned};
  auto network = transport::make_loopback_network(steady_clock(), 2);
  node a(*network, config(1, 160, 24)), b(*network, config(2, 32, 40));
  const auto first = prefill(a, p, 33, slot_id{0}, 1);
  auto in = pull(*network, a, b, first, 0);
  ASSERT_TRUE(in) << in.error().message;
  const auto rest = b.driver->complete({continued(p, first, *in)}, 20)[0];
  engine_driver alone(config(1, 160, 24));
  const auto want = alone.complete({p}, 20)[0];
  expect_same(first, rest, want, "drafts");
  EXPECT_GT(rest.accepted, 4u);
  // The one engine drafts once more: in the step that samples the first token, which belongs to the prefill engine.
  EXPECT_LE(want.accepted - rest.accepted, 5u);
}

TEST(handoff, from_one_engine_to_groups_of_2_and_4) {
  const auto all = prompts();
  const auto want = reference(all);
  for (uint32_t ranks : {2u, 4u}) {
    auto network = transport::make_loopback_network(steady_clock(), ranks);
    node p(*network, config(2, 64, 30));
    cpu_engine_config shape = config(3, 32, 40);
    auto group = ep::make_thread_group(engine_group_shape(*shape.weights, shape.limits, ranks), {});
    ASSERT_TRUE(group) << group.error().message;
    const auto placement = permuted_placement(*shape.weights, ranks, 1, 50 + ranks);
    std::vector<std::unique_ptr<node>> nodes;
    std::vector<std::vector<prompt>> work(ranks);
    std::vector<std::vector<size_t>> which(ranks);
    std::vector<prefilled> firsts;
    for (uint32_t r = 0; r < ranks; ++r) {
      cpu_engine_config c = config(3, 32, 30 + 10 * r);
      c.group = std::move(group->ranks[r]);
      c.placement = placement;
      nodes.push_back(std::make_unique<node>(*network, std::move(c)));
    }
    std::vector<uint32_t> used(ranks, 0);
    for (size_t i = 0; i < all.size() && i < ranks * places; ++i) {
      const uint32_t r = i % ranks;
      firsts.push_back(prefill(p, all[i], 40, slot_id{0}, 0));
      auto in = pull(*network, p, *nodes[r], firsts.back(), used[r]++);
      ASSERT_TRUE(in) << in.error().message;
      close(p, slot_id{0});
      work[r].push_back(continued(all[i], firsts.back(), *in));
      which[r].push_back(i);
    }
    std::vector<std::vector<completion>> got(ranks);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] { got[r] = nodes[r]->driver->complete(work[r], r % 2 ? 0 : 15); });
    for (auto& t : threads) t.join();
    for (uint32_t r = 0; r < ranks; ++r)
      for (size_t k = 0; k < which[r].size(); ++k)
        expect_same(firsts[which[r][k]], got[r][k], want[which[r][k]], fmt::format("{} ranks, rank {}", ranks, r));
    std::vector<std::thread> stops;
    for (auto& n : nodes) stops.emplace_back([&] { n->driver->get().stop(); });
    for (auto& t : stops) t.join();
  }
}

TEST(handoff, mini) {
  if (sanitized) GTEST_SKIP() << "the same code with another model";
  const auto mini = load_model(TROUPE_SOURCE_DIR "/configs/models/mini");
  ASSERT_TRUE(mini) << mini.error().message;
  auto network = transport::make_loopback_network(steady_clock(), 5);
  const auto of_mini = [&](uint32_t chunk, uint32_t pages) {
    cpu_engine_config c;
    c.weights = *mini;
    c.limits = limits(1, chunk, pages);
    return c;
  };
  node p(*network, of_mini(64, 24)), d(*network, of_mini(48, 30));
  engine_driver alone(of_mini(300, 24));
  for (uint32_t length : {5u, 193u}) {
    prompt x;
    x.tokens = random_tokens(length, length, 400);
    x.sampling = {.temperature = 0.7f, .seed = length, .logprobs = 20};
    x.stop = {.max_tokens = 20, .ignore_eos = true};
    const auto first = prefill(p, x, 61, slot_id{0}, 0);
    auto in = pull(*network, p, d, first, 2);
    ASSERT_TRUE(in) << in.error().message;
    close(p, slot_id{0});
    expect_same(first, d.driver->complete({continued(x, first, *in)}, length % 3 ? 10 : 0)[0],
                alone.complete({x}, 0)[0], fmt::format("mini, {} tokens", length));
  }
}

TEST(handoff, a_pull_that_fails_says_why_once_nothing_is_under_way) {
  auto network = transport::make_loopback_network(steady_clock(), 9);
  node p(*network, config(1, 64, 24)), d(*network, config(2, 32, 120));
  prompt x;
  x.tokens = random_tokens(1, 300, 512);  // 19 pages, two parts
  auto first = prefill(p, x, 64, slot_id{0}, 2);
  first.last.exported.page_checksums[18] ^= 1;
  auto wrong = pull(*network, p, d, first, 0);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, errc::corrupt);
  EXPECT_NE(wrong.error().message.find("block 18 of 19"), std::string::npos) << wrong.error().message;
  first.last.exported.page_checksums[18] ^= 1;
  first.last.exported.state_checksum ^= 1;
  EXPECT_EQ(pull(*network, p, d, first, 0).error().code, errc::corrupt);
  first.last.exported.state_checksum ^= 1;
  auto short_table = first;
  short_table.pages.pop_back();
  EXPECT_EQ(pull(*network, p, d, short_table, 0).error().code, errc::invalid_argument);
  network->kill(p.wire->address());
  EXPECT_EQ(pull(*network, p, d, first, 0).error().code, errc::peer_lost);
}

TEST(handoff, damage_and_strangers_are_refused) {
  auto network = transport::make_loopback_network(steady_clock(), 3);
  node p(*network, config(1, 64, 24)), d(*network, config(2, 32, 40));
  prompt x;
  x.tokens = random_tokens(1, 37, 512);
  const auto first = prefill(p, x, 37, slot_id{0}, 2);
  auto in = pull(*network, p, d, first, 1);
  ASSERT_TRUE(in) << in.error().message;
  const auto& plan = identity_model()->plan;
  const auto pool = d.pages->bytes();
  const auto state = d.states->bytes().subspan(d.state_bytes, d.state_bytes);
  const auto check = [&] { return check_handoff(plan, first.last.exported, pool, in->pages, state); };
  const uint64_t seed = entropy_seed();
  std::printf("seed=%llu\n", static_cast<unsigned long long>(seed));
  rng random(seed);
  for (int i = 0; i < 200; ++i) {
    // A flipped bit anywhere in what is valid: 37 tokens are 2 pages and 5 rows.
    const size_t page = random.below(3), rows = page < 2 ? 16 : 5;
    const auto& s = plan.sources[random.below(plan.sources.size())];
    const size_t bytes = rows / s.ratio * s.main_bytes;
    auto& at = random.below(2)
                   ? pool[in->pages[page].value * size_t{plan.page_bytes} + s.main_offset + random.below(bytes)]
                   : state[random.below(first.last.exported.state_bytes)];
    const std::byte bit{static_cast<uint8_t>(1u << random.below(8))};
    at ^= bit;
    const auto r = check();
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, errc::corrupt);
    at ^= bit;
  }
  ASSERT_TRUE(check());

  const auto refused = [&](const char* text, auto change) {
    step_plan q;
    q.id = d.driver->next_plan();
    q.open.push_back({slot_id{0}, first.tokens, 37, x.sampling, x.stop, true, *in});
    q.sequences.push_back({.slot = slot_id{0}, .sample = true});
    change(q);
    const auto r = d.driver->get().submit(q);
    ASSERT_FALSE(r) << text;
    EXPECT_NE(r.error().message.find(text), std::string::npos) << r.error().message;
  };
  refused("other tokens", [](auto& q) { q.open[0].tokens[5] ^= 1; });
  refused("imported.rows: is 36", [](auto& q) { q.open[0].imported.rows = 36; });
  refused("imported.pages: 2 pages", [](auto& q) { q.open[0].imported.pages.pop_back(); });
  refused("page 40 is out of range", [](auto& q) { q.open[0].imported.pages[0] = page_id{40}; });
  refused("imported.state: is 3", [](auto& q) { q.open[0].imported.state = 3; });
  refused("no state", [](auto& q) { q.open[0].imported.state = 0; });
  refused("export_to: is 3", [](auto& q) { q.sequences[0].export_to = 3; });
  refused("rows replayed", [](auto& q) { q.sequences[0].position = 5, q.sequences[0].rows = 1; });
  state[8] ^= std::byte{1};
  refused("another model", [](auto&) {});
  state[8] ^= std::byte{1};
  const auto rest = d.driver->complete({continued(x, first, *in)}, 0)[0];
  EXPECT_EQ(rest.tokens.size(), 15u) << "what was refused has changed nothing";
}

}  // namespace
}  // namespace troupe::kernels
