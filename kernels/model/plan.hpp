// What each layer does, derived from the configuration alone, and the layout of a KV page that follows from it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/model/config.hpp"

namespace troupe::kernels {

/// How a layer sees tokens beyond its window. window: not at all. full: own compressor, own index. reindex: the
/// source's entries and keys, own selection. reuse: the source's entries, the latest selection made against them.
enum class layer_role : uint8_t { window, full, reindex, reuse };

/// One backbone layer.
struct layer_plan {
  layer_role role = layer_role::window;
  uint32_t ratio = 0;         // of the cache it reads; 0 = window only
  int32_t source = -1;        // index into model_plan::sources of the cache it reads
  int32_t index_source = -1;  // layer whose selection it uses
  bool publishes_candidates = false, within_candidates = false;
  int32_t engram = -1;         // index of the Engram module that runs before it
  int32_t draft_feature = -1;  // index among the drafter's target layers
};

/// One compressed cache: who writes it and where it lies in a page.
struct source_plan {
  uint32_t layer = 0, ratio = 0;
  uint32_t per_page = 0;                     // groups per page = window / ratio
  uint32_t main_bytes = 0, key_bytes = 0;    // of one entry
  uint32_t main_offset = 0, key_offset = 0;  // in the page
};

/// All layers, all compressed caches and the sizes that follow from them.
struct model_plan {
  std::vector<layer_plan> layers;
  std::vector<source_plan> sources;
  uint32_t encoder_layers = 0;  // layers before the last KV source, which is the first decoder layer
  uint32_t moe_layers = 0;      // backbone layers, then draft blocks
  uint32_t window_record_bytes = 0;
  uint32_t page_bytes = 0;
  /// Compressed bytes per token over all sources: 890 for the released model.
  double bytes_per_token() const { return window ? static_cast<double>(page_bytes) / window : 0; }
  uint32_t window = 0;
  /// Tokens that exact replay runs: (E + 1) * W rebuilds the windows of the encoder and of the first decoder layer.
  uint32_t exact_replay() const { return (encoder_layers + 1) * window; }
  /// Bytes of a window snapshot: the windows of the encoder and of the first decoder layer.
  uint64_t snapshot_bytes() const { return uint64_t{encoder_layers + 1} * window * window_record_bytes; }
};

/// unsupported if a drafter feature comes from an encoder layer, whose rows decoder replay does not keep.
result<model_plan> make_plan(const model_config& config);

/// Rotation frequencies [qk_rope_head_dim / 2]: theta^(-2 i / d), as floats.
std::vector<float> plain_frequencies(double theta, uint32_t rope_dim);
/// The same with YaRN: pair i is divided by the factor where it turns less than beta_slow times within the original
/// context, kept where it turns more than beta_fast times, and blended between (no attention factor).
std::vector<float> yarn_frequencies(double theta, uint32_t rope_dim, const rope_scaling& scaling);

}  // namespace troupe::kernels
