// config.json of a checkpoint as a typed value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::kernels {

/// YaRN parameters of the compressed-attention rope.
struct rope_scaling {
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  double original_max_position = 65536;
  bool operator==(const rope_scaling&) const = default;
};

/// Makes probabilities of the confidence head's logits where the checkpoint says how (text_config.dspark_confidence, an
/// addition of ours): the event is "draft equals the target's keyed sample", whose rate falls with the temperature,
/// which the head does not see. Empty: sigmoid(logit), as released.
struct confidence_calibration {
  std::vector<double> temperature;               // ascending
  std::vector<std::vector<double>> scale, bias;  // [temperature][draft]
  bool empty() const { return temperature.empty(); }
  /// sigmoid(scale * logit + bias), both linear between the temperatures and constant beyond them.
  double operator()(double logit, double at, uint32_t draft) const;
};

/// Everything the text backbone, Engram and the drafter need. Names follow config.json.
struct model_config {
  std::string name;  // model_type of the top level
  int32_t bos = 0, eos = 1, pad = 2;

  uint32_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  uint32_t num_attention_heads = 0, head_dim = 0, qk_rope_head_dim = 0;
  uint32_t q_lora_rank = 0, o_lora_rank = 0, o_groups = 0;
  uint32_t moe_intermediate_size = 0, n_routed_experts = 0, num_experts_per_tok = 0;
  double routed_scaling_factor = 1, swiglu_limit = 0, rms_norm_eps = 0, gate_temp = 1;
  double rope_theta = 0, compress_rope_theta = 0;
  rope_scaling scaling;
  uint32_t max_position_embeddings = 0, sliding_window = 0;
  std::vector<uint32_t> compress_ratios;  // backbone layers, then draft blocks
  std::vector<uint32_t> kv_source_layer_ids, index_source_layer_ids;
  uint32_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;
  uint32_t candidate_source_layer_id = 0, candidate_topk_blocks = 0, candidate_block_size = 0;
  uint32_t hc_mult = 0, hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  std::vector<uint32_t> engram_layer_ids;       // empty: no Engram
  std::vector<uint64_t> engram_num_embeddings;  // rows of each table
  uint64_t engram_vocab_size = 0;
  uint32_t engram_max_ngram_size = 0, engram_n_heads = 0, engram_head_dim = 0;
  int32_t engram_pad_token_id = 2;
  uint32_t engram_compressed_vocab_size = 0;

  uint32_t num_nextn_predict_layers = 0;  // draft blocks; 0: no drafter
  uint32_t dspark_block_size = 0;
  int32_t dspark_noise_token_id = 0;
  std::vector<uint32_t> dspark_target_layer_ids;
  uint32_t dspark_markov_rank = 0, dspark_n_routed_experts = 0, dspark_num_experts_per_tok = 0;
  confidence_calibration dspark_confidence;

  uint32_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  bool operator==(const model_config&) const = default;
};

/// Parses the text of a config.json. Every error names the field (as `text_config.field`), what was found and what is
/// allowed; contradictions between fields are errors too. `source` is the file's name for the message.
result<model_config> parse_config(std::string_view text, const std::string& source);

/// Reads and parses `directory`/config.json.
result<model_config> load_config(const std::string& directory);

/// Reads a whole file; io names the file and the reason.
result<std::string> read_text_file(const std::string& path);

}  // namespace troupe::kernels
