// The checkpoint's tensors as typed views, checked against the configuration.
#pragma once

#include <memory>
#include <vector>

#include "kernels/model/config.hpp"
#include "kernels/model/plan.hpp"
#include "kernels/model/safetensors.hpp"
#include "kernels/ops.hpp"

namespace troupe::kernels {

/// Attention, router, experts and mHC of one backbone layer or draft block. Views have null data where the layer has no
/// such part.
struct layer_weights {
  weight attn_norm, ffn_norm;
  weight wq_a, wq_b, wkv, wo_a, wo_b, q_norm, kv_norm;
  const float* sink = nullptr;  // [heads]
  weight compressor_wkv, compressor_wgate, compressor_norm;
  weight index_wk, index_k_norm, index_wq_b, index_weights;
  hc_weights hc_attn, hc_ffn;
  weight gate;
  const float* gate_bias = nullptr;  // [experts]
  std::vector<expert_weights> experts;
  expert_weights shared;
};

/// One Engram module: table [rows, dim], wkv [(hc + 1) * hidden, columns * dim], q and k weights [hc, hidden].
struct engram_weights {
  weight table, wkv, q_weight, k_weight;
};

/// The drafter: its blocks, the projection of the target features, the Markov and confidence heads.
struct draft_weights {
  std::vector<layer_weights> blocks;  // empty: no drafter
  weight main_proj, main_norm, norm, markov_embed, markov_head, confidence;
};

/// All weights. Views point into the checkpoint's mapping; small float vectors are copied to be aligned.
struct model_weights {
  weight embed, head, norm;
  std::vector<layer_weights> layers;
  std::vector<engram_weights> engram;
  draft_weights draft;
  std::vector<std::unique_ptr<float[]>> aligned;  // storage of the copied vectors
};

/// Errors name file and tensor: not_found for a missing tensor, invalid_argument for a dtype or shape that contradicts
/// the configuration, or for tensors that the configuration says cannot be there (more layers or experts, a compressor
/// in a layer that is no KV source).
result<model_weights> load_weights(const checkpoint& files, const model_config& config, const model_plan& plan);

}  // namespace troupe::kernels
