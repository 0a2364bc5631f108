// What steps cost: by the floor, by tables, and what the cost models that come with the program say of their points.
#include "policies/step_cost.hpp"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "policies/registry.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/config/cost_file.hpp"

namespace troupe::policies {
namespace {

TEST(step_cost, floor_by_hand) {
  step_rates r;
  r.encoder_layers = 2;
  r.experts = 8;
  r.top_k = 2;
  r.step_ns = 100;
  r.encoder_read_ns = 1000;
  r.encoder_row_fs = 50'000'000;      // 50 ns
  r.encoder_position_fs = 1'000'000;  // 1 ns
  r.expert_read_fs = 30'000'000;      // 30 ns
  r.expert_item_fs = 10'000'000;      // 10 ns
  r.dispatch_bytes = 100;
  r.combine_bytes = 200;
  const fabric wire{"wire", 4, 1'000'000'000, 100'000'000, 7, 9};
  std::array<step_work, 2> work;
  add_rows(work[0], 10, 4, 0, 0);
  EXPECT_EQ(work[0].positions, 10u + 11 + 12 + 13);
  add_rows(work[1], 0, 40, 0, 0);
  EXPECT_EQ(work[1].positions, 780u);
  // Rank 1 is slowest: 40 rows x 50 ns beat the read of 1000 ns, and 780 positions. Experts: (44 rows x 2) / 2 ranks =
  // 44 pairs a rank, 440 ns against 4 x 30 ns of reads, in two layers.
  const auto c = cost_of_step(r, wire, {work, 2, 0, 1000, 0});
  EXPECT_EQ(c.attention_ns, 100u + 2000 + 780);
  EXPECT_EQ(c.experts_ns, 2u * 440);
  EXPECT_EQ(c.dispatch_ns, 2u * (7 + 4400));
  EXPECT_EQ(c.combine_ns, 2u * (9 + 8800));
  EXPECT_EQ(c.total_ns, c.attention_ns + c.experts_ns + c.dispatch_ns + c.combine_ns);
  // Eight ranks over domains of four: half of the bytes at a tenth of the rate.
  EXPECT_EQ(exchange_ns(wire, 8, 44, 100, false), 7u + 22'000);
  EXPECT_EQ(exchange_ns(wire, 1, 44, 100, false), 0u);
  EXPECT_EQ(cost_of_step(r, wire, {{}, 2, 0, 1000, 0}), step_cost_parts{});
}

TEST(step_cost, tables_are_interpolated) {
  const measured_table t{{1, 10, 20}, {0, 1000}, {100, 190, 290, 200, 380, 580}};
  struct row {
    uint64_t rows, context, ns;
  };
  for (const row& r : {row{0, 0, 0},
                       {1, 0, 100},
                       {10, 0, 190},
                       {15, 0, 240},
                       {40, 0, 490},
                       {10, 500, 285},
                       {10, 1000, 380},
                       {10, 9999, 380},
                       {5, 0, 140}})
    EXPECT_EQ(table_ns(t, r.rows, r.context), r.ns) << r.rows << " " << r.context;
  step_rates rates;
  rates.chunk = t;
  rates.decode = {{1}, {0}, {1000}};
  step_work w;
  add_rows(w, 0, 10, 0, 0);
  add_rows(w, 500, 2, 2, 2);
  const std::array<step_work, 1> one{w};
  // Ten prompt rows at a mean context of 4.5, two decode rows.
  EXPECT_EQ(cost_of_step(rates, {}, {one}).total_ns, 190u + 2000);
}

// More of anything never takes less time, in the released model's file.
TEST(step_cost, monotone) {
  const auto m = config::load_cost_model(TROUPE_SOURCE_DIR "/configs/sim/cost/v41-flash.yaml");
  ASSERT_TRUE(m) << m.error().message;
  const uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  rng random(seed);
  const fabric& over = (*m)->fabrics[0];
  for (int i = 0; i < 2000; ++i) {
    std::array<step_work, 3> w;
    for (auto& x : w) {
      x.decoder_rows = static_cast<uint32_t>(random.below(600));
      x.rows = x.decoder_rows + static_cast<uint32_t>(random.below(20'000));
      x.positions = random.below(1ull << 32);
      x.decoder_positions = random.below(1 + x.positions);
      x.context = random.below(1 << 24);
      x.samples = x.decoder_rows;
      x.drafting = x.decoder_rows / 4;
    }
    const auto imbalance = static_cast<uint32_t>(1000 + random.below(500));
    const group_step a{w, 64, 7, imbalance, 5};
    const uint64_t before = cost_of_step((*m)->rates, over, a).total_ns;
    auto more = w;
    step_work& x = more[random.below(3)];
    switch (random.below(7)) {
      case 0:
        x.rows += 100;
        break;
      case 1:
        x.rows += 50, x.decoder_rows += 50;
        break;
      case 2:
        x.positions += 1 << 20;
        break;
      case 3:
        x.decoder_positions += 1 << 20;
        break;
      case 4:
        x.samples += 10;
        break;
      case 5:
        x.drafting += 10;
        break;
      default:
        x.context += 1 << 20;
        break;
    }
    EXPECT_GE(cost_of_step((*m)->rates, over, {more, 64, 7, imbalance + 10, 5}).total_ns, before) << i;
  }
}

TEST(step_cost, published_points_are_met) {
  for (const char* file : {"v41-flash.yaml", "mini-cpu.yaml"}) {
    const auto check = config::check_cost_file(std::string(TROUPE_SOURCE_DIR "/configs/sim/cost/") + file);
    ASSERT_TRUE(check) << check.error().message;
    EXPECT_FALSE(check->points.empty()) << file;
    for (const auto& [p, r] : check->points)
      EXPECT_TRUE(r.within) << file << ": " << p.name << ": " << r.value << ", published " << p.value << ", residual "
                            << r.residual_permille << " / 1000";
  }
}

// The drafts of 60 sequences: what was published of them, by the acceptance model alone.
TEST(step_cost, acceptance_is_a_pure_function_of_seed_and_position) {
  const auto m = config::load_cost_model(TROUPE_SOURCE_DIR "/configs/sim/cost/v41-flash.yaml");
  ASSERT_TRUE(m) << m.error().message;
  const acceptance_model& a = (*m)->acceptance;
  uint64_t sum = 0, accepted = 0;
  const uint64_t n = 200'000;
  for (uint64_t p = 0; p < n; ++p) {
    sum += accept_chance(a, p % 97, p);
    accepted += accepts(a, p % 97, p);
    EXPECT_LE(accept_chance(a, p % 97, p), 1'000'000u);
  }
  EXPECT_NEAR(static_cast<double>(accepted) / n, static_cast<double>(sum) / n / 1e6, 0.005) << "calibrated";
  EXPECT_EQ(accept_chance({5, {250}}, 1, 2), 250'000u);
}

TEST(step_cost, files_name_line_and_key) {
  struct bad {
    const char *text, *message;
  };
  const std::string good = "format: troupe-cost-1\nname: x\n";
  for (const bad& b :
       {bad{"hardware:\n  memory: 8 TB/s\n  gem: 1 PFLOP/s\n", "f:5:3: hardware.gem: unknown key; did you mean gemm?"},
        {"hardware:\n  memory: 8\n", "f:4:11: hardware.memory: '8' has no unit"},
        {"hardware:\n  memory: 8 PB/s\n", "'PB/s' is not a unit"},
        {"efficiency:\n  gemm: 1.5\n", "f:4:9: efficiency.gemm: 1.5 is out of range"},
        {"points:\n  - kind: guess\n", "f:4:11: points[0].kind: 'guess' is not one of"},
        {"measured:\n  chunk:\n    rows: [2, 1]\n    time: [[1us, 2us]]\n", "rates.chunk.rows[1]: does not ascend"},
        {"acceptance:\n  chance: [0.5, x]\n", "acceptance.chance[1]: 'x' is not a number"},
        {"name: y\n", "f:3:1: name: the key appears twice"},
        {"", "neither encoder layers"},
        {"fixed:\n  step: 3\n", "fixed.step"}}) {
    const auto l = config::read_cost_text(good + b.text, "f");
    ASSERT_FALSE(l.problems.empty()) << b.text;
    EXPECT_NE(l.problems[0].text().find(b.message), std::string::npos) << l.problems[0].text();
  }
  EXPECT_NE(config::read_cost_text("name: x\nformat: troupe-cost-9\n", "f").problems[0].text().find("f:2:9: format"),
            std::string::npos);
  EXPECT_EQ(config::load_cost_model("/nonexistent").error().code, errc::invalid_argument);
}

TEST(step_cost, from_the_shell) {
  const auto* entry = find_policy("step_cost");
  ASSERT_TRUE(entry);
  const auto out = entry->run(nlohmann::json::parse(
      R"({"rates":{"encoder_layers":2,"encoder_row_fs":1000000},"fabric":{"domain":1,"domain_rate":1,"outside_rate":1},"ranks":[{"rows":40}]})"));
  ASSERT_TRUE(out) << out.error().message;
  EXPECT_EQ((*out)["parts"]["total_ns"], 40);
}

}  // namespace
}  // namespace troupe::policies
