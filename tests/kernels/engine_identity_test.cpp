// Same tokens, any layout: what comes out of the engine depends on the request alone.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cpu/isa.hpp"
#include "kernels/ep/thread_group.hpp"
#include "runtime/base/rng.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/identity_workload.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

cpu_engine_config config(uint32_t slots, uint32_t max_chunk, uint32_t threads = 1, std::string isa = "") {
  cpu_engine_config c;
  c.weights = identity_model();
  c.limits = identity_limits(slots, max_chunk, threads);
  c.isa = std::move(isa);
  return c;
}

std::vector<completion> alone(const std::vector<prompt>& prompts) {
  engine_driver d(config(1, 512));
  std::vector<completion> out;
  for (const prompt& p : prompts) out.push_back(d.complete({p}, 0)[0]);
  return out;
}

const std::vector<completion>& reference() {
  static const auto r = alone(mixed_prompts(64));
  return r;
}

void expect_same(const std::vector<completion>& got, const std::vector<completion>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << what << ", prompt " << i;
    EXPECT_TRUE(got[i].same_output(want[i])) << what << ", prompt " << i;
  }
}

TEST(identity, alone_and_in_a_batch_of_64_mixed_requests) {
  engine_driver d(config(64, 96));
  expect_same(d.complete(mixed_prompts(64)), reference(), "batch of 64");
  EXPECT_EQ(d.pool().free(), d.pool().total());
}

TEST(identity, chunks_of_any_size) {
  for (uint32_t chunk : {1u, 7u, 64u}) {
    auto prompts = mixed_prompts(24);
    for (prompt& p : prompts) p.chunk = chunk;
    engine_driver d(config(16, 512));
    expect_same(d.complete(prompts), {reference().begin(), reference().begin() + 24},
                fmt::format("chunks of {}", chunk));
  }
}

TEST(identity, threads_and_instruction_sets) {
  const bool all = std::getenv("TROUPE_LONG") != nullptr;
  for (cpu::isa which : {cpu::isa::portable, cpu::isa::avx2, cpu::isa::avx512}) {
    if (!cpu::supported(which)) {
      std::cout << cpu::to_string(which) << " is not supported here\n";
      continue;
    }
    // The portable path calls fma in software on most builds: fewer prompts of it.
    const size_t count = all ? 24 : which == cpu::isa::portable ? 3 : 12;
    const std::vector<prompt> prompts = mixed_prompts(count);
    const std::vector<completion> want(reference().begin(), reference().begin() + static_cast<ptrdiff_t>(count));
    for (uint32_t threads : {1u, 2u, 3u}) {
      engine_driver d(config(12, 80, threads, cpu::to_string(which)));
      expect_same(d.complete(prompts), want, fmt::format("{} with {} threads", cpu::to_string(which), threads));
    }
  }
}

TEST(identity, speculation_changes_nothing) {
  for (float temperature : {0.0f, 0.8f}) {
    std::vector<prompt> prompts;
    for (size_t i = 0; i < 12; ++i) {
      prompt p;
      p.tokens = random_tokens(500 + i, 20 + 5 * static_cast<uint32_t>(i), 512);
      p.sampling = {.temperature = temperature, .seed = 90 + i, .logprobs = 5};
      p.stop.max_tokens = 40;
      prompts.push_back(p);
    }
    engine_driver with(config(12, 128)), without(config(12, 128));
    const auto drafted = with.complete(prompts, 60), plain = without.complete(prompts, 0);
    expect_same(drafted, plain, fmt::format("temperature {}", temperature));
    uint32_t verified = 0, accepted = 0, steps = 0, tokens = 0;
    for (const completion& c : drafted) {
      verified += c.drafted;
      accepted += c.accepted;
      steps += c.steps;
      tokens += static_cast<uint32_t>(c.tokens.size());
    }
    EXPECT_GT(verified, 0u);
    std::cout << fmt::format("temperature {}: {} drafts verified, {} accepted ({:.1f} %), {:.2f} tokens per step\n",
                             temperature, verified, accepted, 100.0 * accepted / verified, 1.0 * tokens / steps);
  }
}

// With all tokens but three banned, a random drafter is often right, so that runs of accepted drafts are committed.
TEST(identity, accepted_drafts_commit_several_rows_per_step) {
  std::vector<prompt> prompts;
  for (size_t i = 0; i < 6; ++i) {
    prompt p;
    p.tokens = random_tokens(900 + i, 30, 512);
    p.sampling = {.temperature = i % 2 ? 0.8f : 0.0f, .seed = i, .logprobs = 3};
    p.stop.max_tokens = p.stop.min_tokens = 60;
    for (token_id t = 0; t < 512; ++t)
      if (t % 170 != 100) p.stop.stop_ids.push_back(t);
    prompts.push_back(p);
  }
  engine_driver with(config(6, 128)), without(config(6, 128));
  const auto drafted = with.complete(prompts, 30, 4), plain = without.complete(prompts, 0);
  expect_same(drafted, plain, "three tokens, four steps per plan");
  cpu_engine_config own = config(6, 128);
  own.adaptive_drafts = true;  // whenever and however much it drafts by the times of this run
  expect_same(engine_driver(std::move(own)).complete(prompts, 30, 4), plain, "adaptive drafts");
  uint32_t accepted = 0, verified = 0, steps = 0;
  for (const completion& c : drafted) {
    accepted += c.accepted;
    verified += c.drafted;
    steps += c.steps;
  }
  std::cout << fmt::format("{} of {} drafts accepted, {} tokens in {} steps\n", accepted, verified, 6 * 60, steps);
  EXPECT_GT(accepted, 60u);
}

// In one micro-batch, and in two from so many rows of a rank on: chunks are cut in the middle of a prompt, decode rows
// in the middle of a sequence's drafts.
TEST(identity, expert_parallel_over_2_and_4_ranks_with_permuted_placement_and_micro_batches) {
  const std::vector<prompt> prompts = mixed_prompts(24);
  for (const auto& [ranks, micro_batch_rows] : {std::array{2u, 1u}, {4u, 0u}}) {
    const uint64_t seed = 40 + ranks;
    std::cout << "placement seed " << seed << "\n";
    rng random(seed);
    cpu_engine_config first = config(12, 80);
    ep::placement placement = initial_placement(*first.weights, ranks);
    for (auto& layer : placement.copies)
      for (auto& copies : layer) {
        copies.clear();
        for (uint32_t r = 0; r < ranks; ++r)
          if (random.below(2)) copies.push_back(r);
        if (copies.empty()) copies.push_back(static_cast<uint32_t>(random.below(ranks)));
      }
    first.limits.micro_batch_rows = micro_batch_rows;
    auto group = ep::make_thread_group(engine_group_shape(*first.weights, first.limits, ranks), {});
    ASSERT_TRUE(group) << group.error().message;
    std::vector<std::unique_ptr<engine_driver>> drivers;
    for (uint32_t r = 0; r < ranks; ++r) {
      cpu_engine_config c = config(12, 80);
      c.limits = first.limits;
      c.group = std::move(group->ranks[r]);
      c.placement = placement;
      drivers.push_back(std::make_unique<engine_driver>(std::move(c)));
    }
    // Rank r runs the prompts r, r + ranks, ...; one rank has none at first and takes part with zero rows.
    std::vector<std::vector<completion>> got(ranks);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks; ++r)
      threads.emplace_back([&, r, ranks = ranks] {
        std::vector<prompt> mine;
        for (size_t i = r; i < prompts.size(); i += ranks) mine.push_back(prompts[i]);
        if (r == 1) mine.clear();
        got[r] = drivers[r]->complete(mine);
      });
    for (auto& t : threads) t.join();
    for (uint32_t r = 0; r < ranks; ++r)
      for (size_t i = 0; i < got[r].size(); ++i)
        EXPECT_TRUE(got[r][i].same_output(reference()[r + i * ranks])) << ranks << " ranks, prompt " << r + i * ranks;
    EXPECT_EQ(drivers[0]->split_steps() > 0, micro_batch_rows > 0);
    std::vector<std::thread> stops;  // a rank that stops tells its peers, so all stop together
    for (auto& d : drivers) stops.emplace_back([&] { d->get().stop(); });
    for (auto& t : stops) t.join();
  }
}

}  // namespace
}  // namespace troupe::kernels
