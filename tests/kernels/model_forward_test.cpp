// Every logit of every position, to the bit: whatever runs beside a sequence, however its prompt is cut, on any threads
// and instructions.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/operators.hpp"
#include "kernels/ep/local_group.hpp"
#include "kernels/model/forward.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels {
namespace {

std::shared_ptr<const model> tiny() {
  static const auto m = load_model(TROUPE_TEST_DATA "/tiny-v41");
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  return *m;
}

// Ids below the vocabulary's end, drawn from a seed.
std::vector<int32_t> tokens_of(uint64_t seed, uint32_t count) {
  rng random(seed);
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(3 + random.below(508)));
  return out;
}

// Forward passes over a few slots of their own pages.
class bench {
 public:
  bench(uint32_t slots, uint32_t context, uint32_t rows, uint32_t threads, cpu::isa which)
      : ops_(cpu::make_operators(threads, which)) {
    const model& m = *tiny();
    const uint32_t window = m.plan.window, per_slot = (context + window - 1) / window;
    pages_.resize(size_t{slots} * per_slot * m.plan.page_bytes);
    auto state = kv_state::make(m, *ops_, {}, {slots, context, slots * per_slot}, pages_);
    TROUPE_CHECK(state.has_value(), "{}", state.error().message);
    state_.emplace(std::move(*state));
    for (uint32_t s = 0; s < slots; ++s)
      for (uint32_t p = 0; p < per_slot; ++p) state_->table(s)[p] = p * slots + s;  // scattered
    auto forward = forward_pass::make(m, *ops_, {}, *state_, {rows, slots}, steady_clock());
    TROUPE_CHECK(forward.has_value(), "{}", forward.error().message);
    forward_ = std::move(*forward);
    auto group = ep::make_local_group({1, m.config.hidden_size, 4, rows});
    TROUPE_CHECK(group.has_value(), "{}", group.error().message);
    group_ = std::move(*group);
    table_ = ep::expert_table(ep::contiguous_placement(1, 8, 16), 1, 0);
  }

  // One step; appends the logits of sequence `which`'s rows to out.
  void step(const std::vector<sequence_rows>& sequences, size_t which, std::vector<float>& out, bool commit = true) {
    forward_->begin(sequences);
    ASSERT_TRUE(forward_->layers(*group_, table_, true));
    const sequence_rows& s = sequences[which];
    for (uint32_t p = s.position; p < s.position + s.rows; p += 64) {
      std::vector<uint32_t> index;
      for (uint32_t i = p; i < std::min(p + 64, s.position + s.rows); ++i)
        index.push_back(forward_->tail_index(static_cast<uint32_t>(which), i));
      const float* l = forward_->logits(index);
      out.insert(out.end(), l, l + index.size() * tiny()->config.vocab_size);
    }
    if (!commit) return;
    std::vector<commit_rows> commits;
    for (uint32_t i = 0; i < sequences.size(); ++i) commits.push_back({i, sequences[i].rows});
    forward_->commit(commits);
  }

 private:
  std::unique_ptr<operators> ops_;
  std::vector<std::byte> pages_;
  std::optional<kv_state> state_;
  std::unique_ptr<forward_pass> forward_;
  std::unique_ptr<ep::group> group_;
  ep::expert_table table_;
};

std::vector<float> in_chunks(const std::vector<int32_t>& tokens, uint32_t chunk, uint32_t threads, cpu::isa which) {
  const uint32_t n = static_cast<uint32_t>(tokens.size());
  bench b(1, n, n, threads, which);
  std::vector<float> out;
  for (uint32_t at = 0; at < n; at += chunk)
    b.step({{.slot = 0, .position = at, .rows = std::min(chunk, n - at), .tokens = tokens}}, 0, out);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr uint32_t length = 150;

const std::vector<float>& whole() {
  static const auto logits = in_chunks(tokens_of(11, length), length, 1, cpu::best_isa());
  return logits;
}

TEST(forward, chunks_give_the_bits_of_the_whole_prompt) {
  for (uint32_t chunk : {1u, 7u, 64u})
    EXPECT_TRUE(same_bits(in_chunks(tokens_of(11, length), chunk, 1, cpu::best_isa()), whole()))
        << "chunks of " << chunk;
}

TEST(forward, threads_and_instruction_sets_give_the_same_bits) {
  for (cpu::isa which : {cpu::isa::portable, cpu::isa::avx2, cpu::isa::avx512})
    for (uint32_t threads : {1u, 2u, 3u}) {
      if (!cpu::supported(which) || (which == cpu::isa::portable && threads == 3)) continue;
      EXPECT_TRUE(same_bits(in_chunks(tokens_of(11, length), 64, threads, which), whole()))
          << cpu::to_string(which) << ", " << threads << " threads";
    }
}

TEST(forward, a_batch_of_64_mixed_sequences_changes_no_bit) {
  const uint64_t seed = 4;
  std::cout << "seed " << seed << "\n";
  rng random(seed);
  constexpr uint32_t slots = 64, mine = 17;
  std::vector<std::vector<int32_t>> tokens;
  for (uint32_t s = 0; s < slots; ++s) tokens.push_back(tokens_of(s == mine ? 11 : 100 + s, length));
  bench b(slots, length, slots * 12, 2, cpu::best_isa());
  std::vector<uint32_t> done(slots, 0);
  std::vector<float> out;
  while (done[mine] < length) {
    // Chunks of 1 to 12 rows, decode-like single rows among them; some sequences sit a step out.
    std::vector<sequence_rows> step;
    size_t at = 0;
    for (uint32_t s = 0; s < slots; ++s) {
      if (done[s] == length || (s != mine && random.below(4) == 0)) continue;
      const uint32_t rows = random.below(2) ? 1 : 1 + static_cast<uint32_t>(random.below(12));
      if (s == mine) at = step.size();
      step.push_back({.slot = s, .position = done[s], .rows = std::min(rows, length - done[s]), .tokens = tokens[s]});
      done[s] += step.back().rows;
    }
    b.step(step, at, out);
  }
  EXPECT_TRUE(same_bits(out, whole()));
}

TEST(forward, an_abandoned_step_leaves_no_trace) {
  const auto tokens = tokens_of(11, length);
  auto wrong = tokens_of(12, length);
  std::copy(tokens.begin(), tokens.begin() + 60, wrong.begin());
  bench b(1, length, length, 1, cpu::best_isa());
  std::vector<float> out, ignored;
  b.step({{.slot = 0, .rows = 60, .tokens = tokens}}, 0, out);
  // Rows that are never committed: other tokens, more of them than a ring holds.
  b.step({{.slot = 0, .position = 60, .rows = length - 60, .tokens = wrong}}, 0, ignored, false);
  b.step({{.slot = 0, .position = 60, .rows = length - 60, .tokens = tokens}}, 0, out);
  EXPECT_TRUE(same_bits(out, whole()));
}

}  // namespace
}  // namespace troupe::kernels
