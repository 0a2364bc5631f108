// The measurements on tiny-v41, against golden tensors, the engine's own counters and each other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/measure/acceptance.hpp"
#include "kernels/measure/load.hpp"
#include "kernels/measure/loss.hpp"
#include "kernels/measure/replay.hpp"
#include "kernels/measure/speed.hpp"
#include "kernels/model/golden_run.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::measure {
namespace {

const std::string folder = TROUPE_TEST_DATA "/tiny-v41";

std::shared_ptr<const model> tiny() {
  static const auto m = load_model(folder);
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  return *m;
}

document random_document(uint64_t seed, uint32_t count) {
  rng random(seed);
  document d;
  for (uint32_t i = 0; i < count; ++i) d.tokens.push_back(static_cast<token_id>(3 + random.below(500)));
  d.bytes = 3 * count;
  return d;
}

std::unique_ptr<forward_runner> runner(uint32_t chunk = 128) {
  auto r = forward_runner::make(tiny(), 400, chunk, 1);
  TROUPE_CHECK(r.has_value(), "{}", r.error().message);
  return std::move(*r);
}

TEST(measure_loss, is_the_one_that_the_golden_logits_give) {
  auto golden = checkpoint::open_file(folder + "/golden.safetensors");
  ASSERT_TRUE(golden) << golden.error().message;
  auto ids = golden_ids(*golden, "prompt.97.ids");
  ASSERT_TRUE(ids) << ids.error().message;
  const tensor* t = golden->find("prompt.97.logits");
  ASSERT_TRUE(t && t->values() == 97u * 512);
  std::vector<float> logits(t->values());
  std::memcpy(logits.data(), t->data.data(), t->data.size());
  double nats = 0;
  std::vector<token_id> best;
  for (size_t i = 0; i < 97; ++i) {
    double sum = 0;
    size_t at = 0;
    for (size_t v = 0; v < 512; ++v) {
      sum += std::exp(double{logits[i * 512 + v]});
      if (logits[i * 512 + v] > logits[i * 512 + at]) at = v;
    }
    best.push_back(static_cast<token_id>(at));
    if (i < 96) nats += std::log(sum) - logits[i * 512 + static_cast<size_t>((*ids)[i + 1])];
  }
  document d;
  d.tokens = *ids;
  d.bytes = 200;
  d.answers = {50};
  d.ends = {60};
  for (uint32_t chunk : {128u, 20u}) {
    auto r = runner(chunk);
    std::vector<token_id> next;
    auto got = measure_loss(*r, d, &next);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_NEAR(got->nats, nats, 1e-3) << "chunks of " << chunk;
    EXPECT_EQ(next, best);
    EXPECT_EQ(got->tokens, 96u);
    EXPECT_EQ(got->bytes, 200u);
    EXPECT_EQ(got->answer_tokens, 10u);
    EXPECT_GT(got->answer_nats, 0);
    EXPECT_LT(got->answer_nats, got->nats);
    // A second document starts afresh.
    auto again = measure_loss(*r, d);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->nats, got->nats);
  }
}

TEST(measure_loss, cuts_what_does_not_fit_and_refuses_what_is_not_in_the_vocabulary) {
  auto r = runner();
  document d = random_document(1, 500);
  auto got = measure_loss(*r, d);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->tokens, 399u);
  EXPECT_EQ(got->bytes, 1200u);
  d.tokens[3] = 512;
  EXPECT_FALSE(measure_loss(*r, d));
  EXPECT_EQ(measure_loss(*r, {})->tokens, 0u);
  EXPECT_FALSE(forward_runner::make(tiny(), 0, 8, 1));
  EXPECT_FALSE(forward_runner::make(tiny(), 8, 0, 1));
}

TEST(measure_load, counts_every_routed_row_once) {
  auto r = runner();
  ASSERT_TRUE(measure_loss(*r, random_document(2, 200)));
  std::vector<std::vector<uint64_t>> loads;
  r->take_loads(loads);
  const auto rows = summarise_loads(loads);
  ASSERT_EQ(rows.size(), 8u);
  for (const layer_load& l : rows) {
    EXPECT_EQ(l.rows, 200u * 4);
    EXPECT_GT(l.max_over_mean, 1);
    EXPECT_LT(l.min_over_mean, 1);
  }
  loads.clear();
  r->take_loads(loads);
  for (const auto& l : summarise_loads(loads)) EXPECT_EQ(l.rows, 0u);
}

std::vector<request> requests(float temperature, uint32_t count) {
  std::vector<request> out;
  for (uint32_t i = 0; i < count; ++i) {
    request q;
    q.tokens = random_document(100 + i, 20 + 7 * i).tokens;
    q.sampling = {.temperature = temperature, .seed = i};
    q.stop = {.max_tokens = 30, .ignore_eos = true};
    // Three tokens only, so that a random drafter is often right.
    q.stop.min_tokens = 30;
    for (token_id t = 0; t < 512; ++t)
      if (t % 170 != 100) q.stop.stop_ids.push_back(t);
    out.push_back(std::move(q));
  }
  return out;
}

TEST(measure_acceptance, counts_are_the_engines) {
  for (float temperature : {0.0f, 0.8f}) {
    const engine_limits limits{.slots = 3, .max_chunk = 64, .max_context = 128};
    std::vector<answer> answers;
    auto got = measure_acceptance(tiny(), limits, requests(temperature, 7), &answers);
    ASSERT_TRUE(got) << got.error().message;
    uint64_t drafted = 0, accepted = 0;
    for (const answer& a : answers) {
      EXPECT_EQ(a.tokens.size(), 30u);
      drafted += a.drafted;
      accepted += a.accepted;
    }
    // The engine does not count a match that ends the sequence, since it adds no row; here at most one per answer.
    EXPECT_GE(got->matched(), accepted);
    EXPECT_LE(got->matched(), accepted + answers.size());
    EXPECT_GT(accepted, 20u);
    EXPECT_GT(drafted, 5 * got->blocks());
    EXPECT_EQ(got->slots().size(), 5u);
    double mean = 0;
    for (const draft_slot& s : got->slots()) mean += s.cumulative();
    EXPECT_NEAR(mean, got->mean_length(), 0.3);  // cut blocks count here too
    EXPECT_GE(got->cumulative().count(), got->per_slot().count());
  }
}

TEST(measure_acceptance, answers_are_those_without_drafts) {
  auto plain = engine_runner::make(tiny(), {.slots = 2, .max_chunk = 16, .max_context = 128});
  ASSERT_TRUE(plain) << plain.error().message;
  auto work = requests(0.8f, 5);
  for (request& q : work) q.speculate = false;
  auto want = (*plain)->run(work);
  ASSERT_TRUE(want) << want.error().message;
  std::vector<answer> got;
  ASSERT_TRUE(measure_acceptance(tiny(), {.slots = 5, .max_chunk = 64, .max_context = 128}, requests(0.8f, 5), &got));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ((*want)[i].tokens, got[i].tokens);
    EXPECT_EQ((*want)[i].drafted, 0u);
  }
  request long_one = work[0];
  long_one.stop.max_tokens = 1000;
  EXPECT_FALSE((*plain)->run({long_one}));
  std::vector<request> fitted{long_one};
  fitted[0].tokens.assign(200, 7);
  fit(fitted, 128);
  EXPECT_EQ(fitted[0].tokens.size() + fitted[0].stop.max_tokens, 128u);
}

TEST(measure_replay, enough_windows_change_nothing_and_one_does) {
  auto r = runner();
  replay_agreement exact, bounded;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const replay_case c{random_document(40 + seed, 260).tokens, 200};
    auto whole = measure_replay(*r, c, tiny()->plan.encoder_layers + 1);
    ASSERT_TRUE(whole) << whole.error().message;
    EXPECT_EQ(whole->nats_bounded, whole->nats_exact) << "case " << seed;
    exact.add(*whole);
    auto one = measure_replay(*r, c);
    ASSERT_TRUE(one) << one.error().message;
    EXPECT_EQ(one->reused, 160u);  // floor((200 - 16 - 6) / 16) * 16 - 16
    EXPECT_NE(one->nats_bounded, one->nats_exact) << "case " << seed;
    EXPECT_NEAR(one->nats_exact, whole->nats_exact, 1e-9);
    bounded.add(*one);
  }
  EXPECT_EQ(exact.rows, 6u * 61);
  EXPECT_EQ(exact.first_rows, 6u * 32);
  EXPECT_EQ(exact.same, exact.rows);
  EXPECT_EQ(exact.first_same, exact.first_rows);
  EXPECT_LT(bounded.same, bounded.rows);
  EXPECT_FALSE(measure_replay(*r, {random_document(1, 100).tokens, 30}));
  EXPECT_FALSE(measure_replay(*r, {random_document(1, 100).tokens, 100}));
}

TEST(measure_speed, every_figure_comes_from_tokens_that_were_written) {
  auto load = measure_load_time(folder, {.slots = 4, .max_context = 256}, steady_clock());
  ASSERT_TRUE(load) << load.error().message;
  EXPECT_GT(load->model.count(), 0);
  EXPECT_GT(load->total(), load->model);
  EXPECT_FALSE(measure_load_time("/nonexistent", {}, steady_clock()));
  for (drafting drafts : {drafting::none, drafting::fixed, drafting::adaptive}) {
    auto s = measure_decode(tiny(), 1, 3, drafts, requests(0, 2), steady_clock());
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_EQ(s->tokens, 480u);  // 16 requests
    EXPECT_GT(s->per_second(), 0);
    if (drafts != drafting::adaptive) {
      EXPECT_EQ(s->drafted > 0, drafts == drafting::fixed);
    }
  }
  auto p = measure_prefill(tiny(), 1, 64, random_document(3, 200).tokens, 1, steady_clock());
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_GT(*p, 0);
}

}  // namespace
}  // namespace troupe::kernels::measure
