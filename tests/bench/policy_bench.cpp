// Decisions on the path of a request or a step. CPU time per decision; `troupe policy` calls the same functions.
#include <benchmark/benchmark.h>

#include "policies/copy_split.hpp"
#include "policies/eplb.hpp"
#include "policies/hit_length.hpp"
#include "policies/prefill_cost.hpp"
#include "policies/speculation.hpp"
#include "policies/verify_lengths.hpp"
#include "tests/policies/loads.hpp"

namespace troupe::policies {
namespace {

void chunk_size(benchmark::State& state) {
  chunk_size_input in{400'000'000, 0, {2e-3, 2e-2, 9e3}, 32768};
  for (auto _ : state) {
    in.cached = (in.cached + 4096) % 1'000'000;
    benchmark::DoNotOptimize(plan_chunk_size(in));
  }
}
BENCHMARK(chunk_size);

void group_budget(benchmark::State& state) {
  std::vector<uint64_t> budgets(static_cast<size_t>(state.range(0)), 400'000'000);
  for (auto _ : state) benchmark::DoNotOptimize(plan_group_budget(budgets));
}
BENCHMARK(group_budget)->Arg(4)->Arg(512);

void fit_of_256_samples(benchmark::State& state) {
  rng random{1};
  std::vector<cost_sample> samples;
  for (int i = 0; i < 256; ++i) {
    double q = static_cast<double>(128 * (1 + random.below(256))), c = static_cast<double>(128 * random.below(4096));
    samples.push_back({q, c, (2e-3 * q + 2e-2 * c + 9e3) * q * (0.98 + 0.04 * random.uniform())});
  }
  for (auto _ : state) benchmark::DoNotOptimize(fit_prefill_cost({samples, {}, 0.25}));
}
BENCHMARK(fit_of_256_samples)->Unit(benchmark::kMicrosecond);

void hit_length(benchmark::State& state) {
  hit_length_input in;
  in.prompt_tokens = 50'000, in.block_hit_tokens = 49'920, in.snapshots = {49'664, 49'792, 49'920};
  in.exact = state.range(0) != 0;
  for (auto _ : state) benchmark::DoNotOptimize(plan_hit_length(in));
}
BENCHMARK(hit_length)->Arg(0)->Arg(1);

void verify_lengths(benchmark::State& state) {
  rng random{2};
  confidence_rows rows{5, {}, std::vector<uint32_t>(static_cast<size_t>(state.range(0)), 5)};
  for (size_t i = 0; i < 5 * rows.drafts.size(); ++i) rows.value.push_back(static_cast<float>(random.uniform()));
  auto table = *make_step_cost_table({{96, 10.8e6}, {275, 13.3e6}, {360, 14.4e6}, {576, 18.8e6}}, {{1, 1e6}});
  survival_memory memory;
  const verify_capacity_input in{rows, 0, UINT32_MAX};
  for (auto _ : state) {
    auto capacity = plan_verify_capacity(table, in, memory);
    benchmark::DoNotOptimize(assign_verify_lengths(rows, capacity->capacity));
  }
}
BENCHMARK(verify_lengths)->Arg(16)->Arg(60)->Arg(96)->Arg(256)->Unit(benchmark::kMicrosecond);

void speculation_switch(benchmark::State& state) {
  auto table = *make_step_cost_table({{8, 8e6}, {48, 16e6}}, {{8, 1e6}});
  speculation_cell cell;
  for (auto _ : state) {
    benchmark::DoNotOptimize(observe(cell, table, {true, 8, 40, 30, 0, 17e6}));
    benchmark::DoNotOptimize(plan_speculation(cell, table, 8));
  }
}
BENCHMARK(speculation_switch);

std::vector<std::vector<double>> forty_layers() {
  rng random{3};
  std::vector<std::vector<double>> out;
  for (int l = 0; l < 40; ++l) out.push_back(zipf_load(random, 384));
  return out;
}

// One MoE layer of a step: rows of the batch over the copies of a placement.
void copy_split_of_a_layer(benchmark::State& state) {
  auto gpus = static_cast<uint32_t>(state.range(0)), slots = static_cast<uint32_t>(state.range(1));
  auto plan = *plan_eplb({eplb_algorithm::balanced, {forty_layers()[0]}, slots, 1, 1, gpus});
  std::vector<std::vector<uint32_t>> copies(384);
  for (uint32_t s = 0; s < slots; ++s) copies[static_cast<size_t>(plan.phy2log[0][s])].push_back(s / (slots / gpus));
  auto table = *make_copy_table(copies, gpus);
  rng random{4};
  auto rows = forty_layers()[0];
  for (double& r : rows) r = std::floor(r / 100 * std::exp(0.2 * gaussian(random)));
  for (auto _ : state) benchmark::DoNotOptimize(plan_copy_split(table, rows));
}
BENCHMARK(copy_split_of_a_layer)->Args({4, 400})->Args({64, 448})->Unit(benchmark::kMicrosecond);

void eplb_of_40_layers(benchmark::State& state) {
  eplb_input in{state.range(2) ? eplb_algorithm::balanced : eplb_algorithm::global,
                forty_layers(),
                static_cast<uint32_t>(state.range(1)),
                1,
                1,
                static_cast<uint32_t>(state.range(0))};
  for (auto _ : state) benchmark::DoNotOptimize(plan_eplb(in));
}
BENCHMARK(eplb_of_40_layers)
    ->ArgNames({"gpus", "slots", "balanced"})
    ->Args({64, 448, 0})
    ->Args({64, 448, 1})
    ->Args({4, 400, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace troupe::policies

BENCHMARK_MAIN();
