// config.json, the layer plan, rotation frequencies and the Engram hash, against published values of the released
// model.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/model/engram_hash.hpp"
#include "kernels/model/plan.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;

json tiny_json() {
  auto text = read_text_file(TROUPE_TEST_DATA "/tiny-v41/config.json");
  EXPECT_TRUE(text);
  return json::parse(*text);
}

// The released model's text_config.
json released_json() {
  json c = tiny_json();
  json ratios = json::array({0, 0});
  for (int i = 0; i < 18; ++i) ratios.push_back(2);
  for (int i = 0; i < 20; ++i) ratios.push_back(1);
  for (int i = 0; i < 3; ++i) ratios.push_back(0);
  c["text_config"].update({{"vocab_size", 129280},
                           {"hidden_size", 5120},
                           {"num_hidden_layers", 40},
                           {"num_attention_heads", 64},
                           {"head_dim", 512},
                           {"qk_rope_head_dim", 64},
                           {"q_lora_rank", 1280},
                           {"o_lora_rank", 1024},
                           {"o_groups", 8},
                           {"moe_intermediate_size", 2304},
                           {"n_routed_experts", 384},
                           {"num_experts_per_tok", 6},
                           {"sliding_window", 128},
                           {"compress_ratios", ratios},
                           {"kv_source_layer_ids", {2, 8, 14, 20}},
                           {"index_source_layer_ids", {2, 8, 14, 20, 24, 28, 32, 36}},
                           {"index_n_heads", 32},
                           {"index_head_dim", 128},
                           {"index_topk", 512},
                           {"candidate_source_layer_id", 20},
                           {"candidate_topk_blocks", 2048},
                           {"candidate_block_size", 8},
                           {"engram_layer_ids", {1, 14}},
                           {"engram_num_embeddings", {384006168, 384016682}},
                           {"engram_max_ngram_size", 4},
                           {"engram_n_heads", 8},
                           {"engram_head_dim", 256},
                           {"engram_vocab_size", 16000000},
                           {"engram_compressed_vocab_size", 99092},
                           {"dspark_noise_token_id", 128799},
                           {"dspark_target_layer_ids", {37, 38, 39}},
                           {"dspark_markov_rank", 256},
                           {"dspark_n_routed_experts", 128},
                           {"dspark_num_experts_per_tok", 3}});
  return c;
}

model_config parsed(const json& j) {
  auto c = parse_config(j.dump(), "config.json");
  EXPECT_TRUE(c) << c.error().message;
  return c ? *c : model_config{};
}

TEST(config, released_model_has_890_bytes_per_token_and_its_layer_roles) {
  const model_config c = parsed(released_json());
  auto plan = make_plan(c);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->bytes_per_token(), 890.0);
  EXPECT_EQ(plan->page_bytes, 113'920u);
  EXPECT_EQ(plan->window_record_bytes, 528u);
  EXPECT_EQ(plan->encoder_layers, 20u);
  EXPECT_EQ(plan->exact_replay(), 2688u);
  EXPECT_EQ(plan->moe_layers, 43u);
  for (const source_plan& s : plan->sources) {
    EXPECT_EQ(s.main_bytes, 288u);
    EXPECT_EQ(s.key_bytes, 68u);
  }
  // One letter per layer: w window, F full, I reindex, r reuse.
  std::string roles;
  for (const layer_plan& l : plan->layers)
    roles += l.role == layer_role::window    ? 'w'
             : l.role == layer_role::full    ? 'F'
             : l.role == layer_role::reindex ? 'I'
                                             : 'r';
  EXPECT_EQ(roles, "wwFrrrrrFrrrrrFrrrrrFrrrIrrrIrrrIrrrIrrr");
  EXPECT_TRUE(plan->layers[20].publishes_candidates);
  EXPECT_FALSE(plan->layers[20].within_candidates);
  for (uint32_t l : {24u, 28u, 32u, 36u}) {
    EXPECT_TRUE(plan->layers[l].within_candidates) << l;
    EXPECT_EQ(plan->layers[l].source, 3) << l;
  }
  EXPECT_EQ(plan->layers[27].index_source, 24);
  EXPECT_EQ(plan->layers[19].index_source, 14);
  EXPECT_EQ(plan->layers[14].engram, 1);
  EXPECT_EQ(plan->layers[38].draft_feature, 1);
}

TEST(config, tiny_model_plan) {
  auto plan = make_plan(parsed(tiny_json()));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->encoder_layers, 4u);
  EXPECT_EQ(plan->exact_replay(), 80u);
  // Two sources: ratio 2 and ratio 1, entries of 64/2 + 64/16 and keys of 32/2 + 32/32 bytes.
  EXPECT_EQ(plan->bytes_per_token(), (36 + 17) / 2.0 + 36 + 17);
}

TEST(config, every_error_names_its_field) {
  struct bad {
    const char* field;
    json value;  // null: remove the field
    const char* message;
  };
  const bad table[] = {
      {"hidden_size", nullptr, "text_config.hidden_size: missing"},
      {"hidden_size", "big", "text_config.hidden_size: is \"big\""},
      {"hidden_size", -5, "text_config.hidden_size: is -5"},
      {"hidden_size", 100, "text_config.hidden_size: is 100, must be a multiple of 32"},
      {"num_key_value_heads", 2, "text_config.num_key_value_heads: is 2; only 1 is supported"},
      {"scoring_func", "sigmoid", "text_config.scoring_func"},
      {"rms_norm_eps", "x", "text_config.rms_norm_eps"},
      {"rope_scaling", 3, "text_config.rope_scaling"},
      {"rope_scaling", {{"rope_type", "linear"}}, "text_config.rope_scaling: rope_type"},
      {"compress_ratios", {0, 0, 2}, "text_config.compress_ratios: has 3 entries"},
      {"compress_ratios", {0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0}, "text_config.compress_ratios: entry 5 is 1"},
      {"compress_ratios", {0, 0, 2, 1, 1, 1, 1, 1, 0, 0, 0}, "text_config.compress_ratios: entry 3 is 1"},
      {"compress_ratios", {0, 0, 2, "a"}, "text_config.compress_ratios: holds \"a\""},
      {"kv_source_layer_ids", {4, 2}, "text_config.kv_source_layer_ids: must ascend"},
      {"kv_source_layer_ids", json::array(), "text_config.kv_source_layer_ids: is empty"},
      {"index_source_layer_ids", {2, 6}, "text_config.index_source_layer_ids: lacks 4"},
      {"candidate_source_layer_id", 5, "text_config.candidate_source_layer_id: is 5"},
      {"num_experts_per_tok", 17, "text_config.num_experts_per_tok: is 17, but n_routed_experts is 16"},
      {"sliding_window", 15, "text_config.sliding_window: is 15, must be a multiple of 2"},
      {"engram_num_embeddings", {4062}, "text_config.engram_num_embeddings: has 1 entries"},
      {"hc_mult", 9, "text_config.hc_mult: is 9"},
      {"index_head_dim", 2048, "text_config.index_head_dim: is 2048"},
      {"engram_head_dim", 48, "text_config.engram_head_dim: is 48, must be a multiple of 32"},
      {"dspark_markov_rank", 24, "text_config.dspark_markov_rank: is 24, must be a multiple of 32"},
      {"dspark_noise_token_id", 512, "text_config.dspark_noise_token_id: is 512"},
  };
  for (const bad& b : table) {
    json c = tiny_json();
    if (b.value.is_null())
      c["text_config"].erase(b.field);
    else
      c["text_config"][b.field] = b.value;
    auto r = parse_config(c.dump(), "dir/config.json");
    ASSERT_FALSE(r) << b.field << " " << b.value.dump();
    EXPECT_EQ(r.error().code, errc::invalid_argument);
    EXPECT_NE(r.error().message.find(b.message), std::string::npos) << r.error().message << "\nexpected " << b.message;
    EXPECT_NE(r.error().message.find("dir/config.json"), std::string::npos);
  }
  EXPECT_FALSE(parse_config("{not json", "config.json"));
  EXPECT_FALSE(parse_config("[]", "config.json"));
  json c = tiny_json();
  c["quantization_config"]["expert_dtype"] = "fp8";
  EXPECT_NE(parse_config(c.dump(), "config.json").error().message.find("quantization_config.expert_dtype"),
            std::string::npos);
}

TEST(config, confidence_calibration_lies_between_its_temperatures) {
  json c = tiny_json();
  EXPECT_TRUE(parsed(c).dspark_confidence.empty());
  const uint32_t drafts = parsed(c).dspark_block_size;
  auto row = [&](double x) { return json(std::vector<double>(drafts, x)); };
  json& table = c["text_config"]["dspark_confidence"];
  table = {{"temperature", {0, 1}}, {"scale", {row(1), row(0.5)}}, {"bias", {row(0), row(-1)}}};
  const confidence_calibration found = parsed(c).dspark_confidence;
  auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_EQ(found(2, 0, 0), sigmoid(2));
  EXPECT_DOUBLE_EQ(found(2, 0.5, 1), sigmoid(0.75 * 2 - 0.5));
  EXPECT_EQ(found(2, 1, drafts - 1), sigmoid(0));
  EXPECT_EQ(found(2, 7, 0), sigmoid(0));
  auto refused = [&](const char* what, json value) {
    json broken = c;
    broken["text_config"]["dspark_confidence"][what] = std::move(value);
    auto r = parse_config(broken.dump(), "config.json");
    return !r && r.error().message.find("dspark_confidence") != std::string::npos;
  };
  EXPECT_TRUE(refused("temperature", {1, 0}));
  EXPECT_TRUE(refused("temperature", {0, 0.5, 1}));
  EXPECT_TRUE(refused("temperature", json::array()));
  EXPECT_TRUE(refused("scale", {row(1), json::array({1})}));
  EXPECT_TRUE(refused("bias", {row(0), row(1e9)}));
  EXPECT_TRUE(refused("bias", nullptr));
}

TEST(engram, multipliers_are_numpys) {
  EXPECT_EQ(engram_multipliers(1, 99092, 4),
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(engram_multipliers(14, 99092, 4),
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ(engram_multipliers(1, 256, 3),
            (std::vector<int64_t>{29662608052400909, 1873410163432121, 13919202536988139}));
  EXPECT_EQ(engram_multipliers(3, 256, 3),
            (std::vector<int64_t>{10655090275895937, 31608505986136395, 4210609209496719}));
}

TEST(engram, bucket_sizes_are_unused_primes_upward) {
  const auto p = engram_primes(2, 16000000, 3, 8);
  EXPECT_EQ(p[0][0],
            (std::vector<uint32_t>{16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183}));
  EXPECT_EQ(p[0][1][0], 16000189u);
  EXPECT_EQ(p[0][2][7], 16000463u);
  EXPECT_EQ(p[1][0][0], 16000477u);
  EXPECT_EQ(p[1][2][7], 16000889u);
  uint64_t sums[2] = {0, 0};
  for (int l = 0; l < 2; ++l)
    for (auto& order : p[l])
      for (uint32_t v : order) sums[l] += v;
  EXPECT_EQ(sums[0], 384006168u);
  EXPECT_EQ(sums[1], 384016682u);
}

TEST(engram, vocabulary_compression) {
  const json tokenizer = {
      {"model",
       {{"vocab",
         {{"a", 0},
          {"A", 1},
          {"\u0120a", 2},
          {"\u00c3\u00a9", 3},
          {"e", 4},
          {"\u0120", 5},
          {"\u010a", 6},
          {"\u00c3", 7},
          {"\u00a9", 8},
          {"\u0120\u0120", 9}}}}},
      {"added_tokens", {{{"id", 10}, {"content", "<|end|>"}}, {{"id", 11}, {"content", "\uff21"}}}}};
  auto map = compress_vocabulary(tokenizer.dump(), 12, "tokenizer.json");
  ASSERT_TRUE(map) << map.error().message;
  // "a", "A", " a" and full-width A are one; e with an accent is e; blanks of any kind are one; the two halves of a
  // UTF-8 character stay apart.
  EXPECT_EQ(*map, (std::vector<int32_t>{0, 0, 0, 1, 1, 2, 2, 3, 4, 2, 5, 0}));
  EXPECT_FALSE(compress_vocabulary("{}", 4, "tokenizer.json"));
  EXPECT_FALSE(compress_vocabulary(tokenizer.dump(), 4, "tokenizer.json"));
}

TEST(engram, look_backs_stop_at_the_start_and_at_dead_tokens) {
  auto c = load_config(TROUPE_TEST_DATA "/tiny-v41");
  ASSERT_TRUE(c);
  auto h = engram_hash::load(TROUPE_TEST_DATA "/tiny-v41", *c);
  ASSERT_TRUE(h) << h.error().message;
  const uint32_t n = h->layers() * h->columns();
  std::vector<uint32_t> a(n), b(n);
  const std::vector<int32_t> pads{2, 2, 40}, start{40}, dead{7, -1, 40}, other{9, 8, 40};
  h->rows(pads, 2, a.data());
  h->rows(start, 0, b.data());
  EXPECT_EQ(a, b);
  h->rows(dead, 2, b.data());
  EXPECT_EQ(a, b);
  h->rows(other, 2, b.data());
  EXPECT_NE(a, b);
}

TEST(rope, yarn_blends_between_the_stated_pairs) {
  const auto plain = plain_frequencies(160000, 64);
  const auto yarn = yarn_frequencies(160000, 64, {16, 32, 1, 65536});
  EXPECT_EQ(plain[0], 1.0f);
  for (int i = 0; i <= 15; ++i) EXPECT_EQ(yarn[i], plain[i]) << i;
  EXPECT_LT(yarn[16], plain[16]);
  for (int i = 25; i < 32; ++i) EXPECT_FLOAT_EQ(yarn[i], plain[i] / 16) << i;
  EXPECT_FLOAT_EQ(yarn[20], plain[20] * 0.5f + plain[20] / 16 * 0.5f);
}

}  // namespace
}  // namespace troupe::kernels
