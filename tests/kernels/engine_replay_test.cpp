// Replay, window snapshots and resume: what a hit, a crash or a preemption may change, and what not.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "tests/kernels/engine_fixture.hpp"
#include "tests/support/tiny_model.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

constexpr uint32_t window = 16, exact_rows = 80;  // (E + 1) * W of tiny-v41
constexpr uint32_t snapshot_places = 16;          // of the snapshot memory

cpu_engine_config config() {
  cpu_engine_config c;
  c.weights = tiny();
  c.limits = {.slots = 4, .max_chunk = 300, .max_context = 400, .pages = 100, .max_draft = 5, .threads = 1};
  return c;
}

cpu_engine_config with_snapshots(std::vector<std::byte>& memory) {
  auto c = config();
  memory.resize(snapshot_places * tiny()->plan.snapshot_bytes(), std::byte{0xa5});
  c.limits.snapshots = snapshot_places;
  c.snapshots = memory;
  return c;
}

sequence_open open_of(uint32_t slot, const prompt& p) {
  const uint32_t length = p.prompt_length ? p.prompt_length : static_cast<uint32_t>(p.tokens.size());
  return {slot_id{slot}, p.tokens, length, p.sampling, p.stop, p.speculate};
}

prompt long_prompt(uint32_t length) {
  prompt p;
  p.tokens = random_tokens(77 + length, length, 512);
  p.sampling = {.temperature = 0.8f, .seed = 5, .logprobs = 20};
  p.stop.max_tokens = 24;
  p.stop.ignore_eos = true;
  return p;
}

// Runs the rest of a slot after its prompt by decode steps with drafts and collects everything; `taken`: snapshots at
// these positions are taken on the way, into places from 0 on.
completion decode(engine_driver& d, slot_id slot, completion c, std::map<uint32_t, snapshot_taken>* taken = nullptr,
                  const std::vector<uint32_t>& at = {}) {
  uint32_t pages = static_cast<uint32_t>(d.held(slot).size());
  for (int i = 0; i < 100 && c.finish == finish_reason::none; ++i) {
    step_plan plan;
    plan.verify_budget = 5;
    sequence_step s{.slot = slot};
    if (pages < 25) {
      s.pages = d.pages(slot, 1);
      ++pages;
    }
    for (uint32_t k = 0; k < at.size(); ++k) s.snapshots.push_back({at[k], k});
    plan.sequences.push_back(s);
    for (auto& r : d.run(plan))
      for (auto& q : r.sequences) {
        for (const auto& t : q.snapshots) EXPECT_TRUE(taken->emplace(t.position, t).second) << "taken twice";
        c.tokens.insert(c.tokens.end(), q.tokens.begin(), q.tokens.end());
        c.logprobs.insert(c.logprobs.end(), q.logprobs.begin(), q.logprobs.end());
        c.top.insert(c.top.end(), q.top.begin(), q.top.end());
        c.finish = q.finish;
      }
  }
  return c;
}

// A hit: the pages of the first `cached` tokens come from elsewhere (here: an earlier sequence's pages, copied), and
// the rows from `reuse` on are run, those below `cached` for their windows only; `windows` is a snapshot at `reuse`.
completion with_hit(engine_driver& d, const prompt& p, const std::vector<std::vector<std::byte>>& stored,
                    uint32_t reuse, uint32_t cached, uint32_t chunk, snapshot_place windows = {}) {
  const slot_id slot{1};
  const uint32_t n = static_cast<uint32_t>(p.tokens.size());
  completion c;
  auto pages = d.pages(slot, (n + window - 1) / window);
  for (uint32_t i = 0; i < cached / window; ++i)
    std::memcpy(d.memory().data() + size_t{pages[i].value} * stored[i].size(), stored[i].data(), stored[i].size());
  for (uint32_t at = reuse; at < n;) {
    step_plan plan;
    if (at == reuse) plan.open.push_back(open_of(1, p));
    if (at == reuse) plan.open[0].windows = windows;
    sequence_step s{.slot = slot,
                    .position = at,
                    .rows = std::min(chunk, n - at),
                    .window_floor = windows.position > 0 ? reuse - window : reuse,
                    .write_global_from = cached};
    s.decoder_from = s.decoder_floor = std::max(reuse, n > window ? n - window : 0);
    if (at == reuse) s.pages = pages;
    at += s.rows;
    s.sample = at == n;
    plan.verify_budget = 5;
    plan.sequences.push_back(s);
    for (auto& r : d.run(plan)) {
      EXPECT_EQ(r.failure, errc{}) << r.failure_text;
      for (auto& q : r.sequences) {
        c.tokens.insert(c.tokens.end(), q.tokens.begin(), q.tokens.end());
        c.logprobs.insert(c.logprobs.end(), q.logprobs.begin(), q.logprobs.end());
        c.top.insert(c.top.end(), q.top.begin(), q.top.end());
      }
    }
  }
  c = decode(d, slot, std::move(c));
  step_plan close;
  close.close.push_back(slot);
  d.run(close);
  d.give_back(slot);
  return c;
}

// The prompt without a hit, in chunks, with snapshots at the positions `at` in places from 0 on.
std::map<uint32_t, snapshot_taken> take(engine_driver& d, const prompt& p, uint32_t chunk,
                                        const std::vector<uint32_t>& at) {
  std::map<uint32_t, snapshot_taken> out;
  const slot_id slot{2};
  const uint32_t n = static_cast<uint32_t>(p.tokens.size());
  for (uint32_t done = 0; done < n;) {
    step_plan plan;
    sequence_step s{.slot = slot, .position = done, .rows = std::min(chunk, n - done)};
    if (done == 0) {
      plan.open.push_back(open_of(2, p));
      s.pages = d.pages(slot, (n + window - 1) / window);
    }
    s.decoder_from = s.decoder_floor = n > window ? n - window : 0;
    done += s.rows;
    s.sample = done == n;
    for (uint32_t k = 0; k < at.size(); ++k) s.snapshots.push_back({at[k], k});
    plan.sequences.push_back(s);
    for (auto& r : d.run(plan))
      for (auto& q : r.sequences)
        for (const auto& t : q.snapshots) EXPECT_TRUE(out.emplace(t.position, t).second) << "taken twice";
  }
  step_plan close;
  close.close.push_back(slot);
  d.run(close);
  d.give_back(slot);
  return out;
}

class replay : public ::testing::Test {
 protected:
  replay() : driver_(with_snapshots(snapshots_)), prompt_(long_prompt(230)) {
    // The plain run, whose pages are then what a store would hold.
    const uint32_t n = 230;
    step_plan plan;
    plan.open.push_back(open_of(0, prompt_));
    sequence_step s{.slot = slot_id{0}, .rows = n, .sample = true};
    s.decoder_from = s.decoder_floor = n - window;
    s.pages = driver_.pages(slot_id{0}, (n + window - 1) / window);
    plan.sequences.push_back(s);
    plan.verify_budget = 5;
    for (auto& r : driver_.run(plan))
      for (auto& q : r.sequences) {
        plain_.tokens = q.tokens;
        plain_.logprobs = q.logprobs;
        plain_.top = q.top;
      }
    const size_t bytes = driver_.get().facts().page_bytes;
    for (page_id p : driver_.held(slot_id{0}))
      stored_.emplace_back(driver_.memory().begin() + static_cast<ptrdiff_t>(p.value * bytes),
                           driver_.memory().begin() + static_cast<ptrdiff_t>((p.value + 1) * bytes));
    plain_ = decode(driver_, slot_id{0}, std::move(plain_));
  }
  std::vector<std::byte> snapshots_;
  engine_driver driver_;
  prompt prompt_;
  completion plain_;
  std::vector<std::vector<std::byte>> stored_;
};

TEST_F(replay, exact_is_bit_identical_to_no_hit) {
  for (uint32_t cached : {96u, 160u, 208u})
    for (uint32_t chunk : {300u, 48u, 7u}) {
      const completion c = with_hit(driver_, prompt_, stored_, cached - exact_rows, cached, chunk);
      EXPECT_EQ(c.tokens, plain_.tokens) << cached << " cached, chunks of " << chunk;
      EXPECT_TRUE(c.same_output(plain_)) << cached << " cached, chunks of " << chunk;
    }
}

TEST_F(replay, less_than_exact_differs_so_that_the_test_above_can_fail) {
  const completion c = with_hit(driver_, prompt_, stored_, 208 - window, 208, 300);
  EXPECT_EQ(c.tokens.size(), plain_.tokens.size());
  EXPECT_FALSE(c.same_output(plain_));
}

TEST_F(replay, replayed_rows_leave_the_stored_entries_alone) {
  // Wrong bytes in the cached pages stay wrong: a replay that rewrote them would hide the damage.
  auto damaged = stored_;
  for (auto& byte : damaged[12]) byte ^= std::byte{0x11};
  const completion c = with_hit(driver_, prompt_, damaged, 208 - exact_rows, 208, 300);
  EXPECT_FALSE(c.same_output(plain_));
}

TEST_F(replay, from_a_snapshot_is_bit_identical_to_no_hit_at_every_boundary) {
  const std::vector<uint32_t> at{16, 112, 160, 208, 224};
  std::map<uint32_t, snapshot_taken> first;
  for (uint32_t chunk : {230u, 48u, 7u}) {
    // A chunk may cross many boundaries, and more rows than a ring holds.
    const auto taken = take(driver_, prompt_, chunk, at);
    ASSERT_EQ(taken.size(), at.size()) << chunk;
    if (first.empty()) first = taken;
    EXPECT_EQ(taken, first) << "the same bytes whatever the chunks, " << chunk;
  }
  for (const auto& [position, t] : first) {
    if (position > 208) continue;  // the last window is always run
    for (uint32_t replayed : {0u, 48u}) {
      const uint32_t cached = position + replayed;
      if (cached > 208) continue;
      for (uint32_t chunk : {replayed == 0 ? 300u : 9u, replayed == 0 ? 7u : 300u}) {
        const completion c = with_hit(driver_, prompt_, stored_, position, cached, chunk, {position, t.place});
        EXPECT_EQ(c.tokens, plain_.tokens) << "from " << position << ", cached " << cached << ", chunks of " << chunk;
        EXPECT_TRUE(c.same_output(plain_)) << "from " << position << ", cached " << cached << ", chunks of " << chunk;
      }
    }
  }
}

TEST_F(replay, a_wrong_snapshot_changes_the_output_so_that_the_test_above_can_fail) {
  const auto taken = take(driver_, prompt_, 230, {192, 208});
  EXPECT_NE(taken.at(192).crc, taken.at(208).crc);
  const completion c = with_hit(driver_, prompt_, stored_, 208, 208, 300, {208, taken.at(192).place});
  EXPECT_EQ(c.tokens.size(), plain_.tokens.size());
  EXPECT_FALSE(c.same_output(plain_));
}

// Snapshots of a hit, of decoding with drafts, and of a prompt that holds what was decoded: one is as good as another.
TEST_F(replay, snapshots_are_the_same_whoever_takes_them) {
  prompt whole = prompt_;
  whole.tokens.insert(whole.tokens.end(), plain_.tokens.begin(), plain_.tokens.end());
  const auto want = take(driver_, whole, 300, {208, 224, 240});
  ASSERT_EQ(want.size(), 3u);

  const auto run = [&](uint32_t from, uint32_t cached, snapshot_place windows) {
    std::map<uint32_t, snapshot_taken> got;
    const slot_id slot{3};
    step_plan plan;
    plan.open.push_back(open_of(3, prompt_));
    plan.open[0].windows = windows;
    sequence_step s{.slot = slot, .position = from, .rows = 230 - from, .window_floor = from};
    if (windows.position > 0) s.window_floor -= window;
    s.write_global_from = cached;
    s.decoder_from = s.decoder_floor = 230 - window;
    s.sample = true;
    s.pages = driver_.pages(slot, 15);
    for (uint32_t i = 0; i < cached / window; ++i)
      std::memcpy(driver_.memory().data() + size_t{s.pages[i].value} * stored_[i].size(), stored_[i].data(),
                  stored_[i].size());
    s.snapshots = {{208, 4}, {224, 5}};
    plan.sequences.push_back(s);
    plan.verify_budget = 5;
    completion c;
    for (auto& r : driver_.run(plan))
      for (auto& q : r.sequences) {
        for (const auto& t : q.snapshots) got.emplace(t.position, t);
        c.tokens = q.tokens;
      }
    c = decode(driver_, slot, std::move(c), &got, {240, 256});
    EXPECT_EQ(c.tokens, plain_.tokens);
    EXPECT_EQ(got.size(), windows.position == 208 ? 2u : 3u) << "256 is not reached";
    for (const auto& [position, t] : got) EXPECT_EQ(t.crc, want.at(position).crc) << position << " from " << from;
    step_plan close;
    close.close.push_back(slot);
    driver_.run(close);
    driver_.give_back(slot);
  };
  run(0, 0, {});
  run(208 - exact_rows, 208, {});
  const auto at = take(driver_, prompt_, 300, {192, 208});
  run(192, 208, {192, at.at(192).place});
  take(driver_, prompt_, 300, {192, 208});
  run(208, 208, {208, at.at(208).place});
}

TEST(resume, with_the_original_prompt_length_is_identical) {
  const prompt whole = long_prompt(100);
  engine_driver d(config());
  const completion want = d.complete({whole})[0];
  for (uint32_t emitted : {1u, 9u, 20u}) {
    prompt rest = whole;
    rest.tokens.insert(rest.tokens.end(), want.tokens.begin(), want.tokens.begin() + emitted);
    rest.prompt_length = 100;
    for (uint32_t chunk : {0u, 16u}) {
      rest.chunk = chunk;
      const completion got = d.complete({rest})[0];
      EXPECT_EQ(got.tokens, std::vector<token_id>(want.tokens.begin() + emitted, want.tokens.end())) << emitted;
      EXPECT_EQ(got.logprobs, std::vector<float>(want.logprobs.begin() + emitted, want.logprobs.end())) << emitted;
      EXPECT_EQ(got.finish, want.finish);
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
