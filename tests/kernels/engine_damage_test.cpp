// Weights that give NaN: a sequence ends with an error where its logits stop being numbers, and drafts just stay away.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/model/damage.hpp"
#include "tests/kernels/engine_fixture.hpp"
#include "tests/kernels/tiny.hpp"
#include "tests/support/damaged_model.hpp"

namespace troupe::kernels {
namespace {

using namespace testing_support;

completion run(const std::string& directory, const prompt& p) {
  auto m = load_model(directory);
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  cpu_engine_config c;
  c.weights = *m;
  c.limits = {.slots = 4, .max_chunk = 64, .max_context = 200, .pages = 40, .max_draft = 5, .threads = 1};
  engine_driver d(std::move(c));
  return d.complete({p})[0];
}

prompt prompt_of(uint32_t length, uint32_t max_tokens, float temperature = 0) {
  prompt p;
  p.tokens = random_tokens(length, length, 512);
  p.sampling.temperature = temperature;
  p.sampling.logprobs = 2;
  p.stop = {.max_tokens = max_tokens, .ignore_eos = true};
  return p;
}

TEST(damage, is_found_by_name) {
  auto names = [](const damaged_model& copy, damage_scan scan) {
    auto files = checkpoint::open_directory(copy.path());
    TROUPE_CHECK(files.has_value(), "{}", files.error().message);
    std::vector<std::string> out;
    for (const auto& d : find_damage(*files, scan)) out.push_back(fmt::format("{} {} {}", d.name, d.first, d.values));
    return out;
  };
  damaged_model copy;
  EXPECT_TRUE(names(copy, damage_scan::whole).empty()) << "the golden checkpoint is sound";
  copy.damage("layers.2.attn.wq_a.weight", 5, 2);
  EXPECT_TRUE(names(copy, damage_scan::light).empty());
  EXPECT_EQ(names(copy, damage_scan::whole), (std::vector<std::string>{"layers.2.attn.wq_a.weight 5 2"}));
  copy.damage("embed.weight", 10'000, 6);      // bf16
  copy.damage("layers.1.hc_attn_base", 8, 4);  // f32
  copy.damage("layers.0.ffn.experts.3.w1.scale", 7, 1);
  EXPECT_EQ(names(copy, damage_scan::light),
            (std::vector<std::string>{"embed.weight 5000 3", "layers.0.ffn.experts.3.w1.scale 7 1",
                                      "layers.1.hc_attn_base 2 1"}));
  auto files = checkpoint::open_directory(copy.path());
  const auto text = damage_text(find_damage(*files, damage_scan::whole), 2);
  for (const char* part :
       {"4 tensors hold", "embed.weight (3 from value 5000, in ", "model.safetensors)", "and 2 more"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(damage_text({}), "");
}

TEST(damage, logits_that_are_no_numbers_end_the_sequence_with_an_error) {
  damaged_model copy;
  copy.damage("norm.weight", 6, 2);
  for (float temperature : {0.0f, 0.8f}) {
    const auto got = run(copy.path(), prompt_of(30, 12, temperature));
    EXPECT_EQ(got.finish, finish_reason::error);
    EXPECT_TRUE(got.tokens.empty());
    EXPECT_TRUE(got.logprobs.empty());
  }
}

// The embedding of one token is damaged: everything up to that token is what it was, and the next one is an error, with
// drafts under verification (of which that token may be one) and without.
TEST(damage, what_came_before_it_counts) {
  const prompt p = prompt_of(30, 40);
  const auto whole = run(tiny_folder, p);
  ASSERT_EQ(whole.finish, finish_reason::length);
  const auto bad = std::find_if(whole.tokens.begin() + 5, whole.tokens.end(), [&](token_id t) {
    return std::find(p.tokens.begin(), p.tokens.end(), t) == p.tokens.end() &&
           std::find(whole.tokens.begin(), whole.tokens.begin() + 5, t) == whole.tokens.begin() + 5;
  });
  ASSERT_NE(bad, whole.tokens.end());
  damaged_model copy;
  copy.damage("embed.weight", size_t(*bad) * 2 * size_t((*load_model(tiny_folder))->config.hidden_size), 8);
  for (bool speculate : {true, false}) {
    prompt q = p;
    q.speculate = speculate;
    const auto got = run(copy.path(), q);
    EXPECT_EQ(got.finish, finish_reason::error);
    EXPECT_EQ(got.tokens, std::vector<token_id>(whole.tokens.begin(), bad + 1)) << "token " << *bad;
    EXPECT_EQ(got.logprobs.size(), got.tokens.size());
    EXPECT_EQ(got.top.size(), got.tokens.size());
  }
}

TEST(damage, a_drafter_that_gives_no_numbers_gives_no_drafts) {
  const prompt p = prompt_of(30, 24);
  const auto whole = run(tiny_folder, p);
  ASSERT_GT(whole.drafted, 0u);
  for (const char* tensor : {"markov_head.head.weight", "norm.weight"}) {
    const auto blocks = (*load_model(tiny_folder))->config.num_nextn_predict_layers;
    damaged_model copy;
    copy.damage(fmt::format("mtp.{}.{}", blocks - 1, tensor), 0, 2);
    const auto got = run(copy.path(), p);
    EXPECT_EQ(got.finish, finish_reason::length) << tensor;
    EXPECT_EQ(got.tokens, whole.tokens) << tensor;
    EXPECT_EQ(got.drafted, 0u) << tensor;
  }
}

}  // namespace
}  // namespace troupe::kernels
