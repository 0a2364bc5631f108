#include "kernels/model/plan.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::kernels {
namespace {

int32_t position_in(const std::vector<uint32_t>& list, uint32_t value) {
  auto it = std::find(list.begin(), list.end(), value);
  return it == list.end() ? -1 : static_cast<int32_t>(it - list.begin());
}

// The last entry of an ascending list that is <= layer, or -1.
int32_t latest(const std::vector<uint32_t>& list, uint32_t layer) {
  int32_t found = -1;
  for (size_t i = 0; i < list.size() && list[i] <= layer; ++i) found = static_cast<int32_t>(i);
  return found;
}

}  // namespace

result<model_plan> make_plan(const model_config& c) {
  model_plan p;
  p.window = c.sliding_window;
  p.encoder_layers = c.kv_source_layer_ids.back();
  p.moe_layers = c.num_hidden_layers + c.num_nextn_predict_layers;
  p.window_record_bytes = c.head_dim + c.head_dim / 32;
  for (uint32_t s : c.kv_source_layer_ids) {
    source_plan source;
    source.layer = s;
    source.ratio = c.compress_ratios[s];
    source.per_page = c.sliding_window / source.ratio;
    source.main_bytes = c.head_dim / 2 + c.head_dim / 16;
    source.key_bytes = c.index_head_dim / 2 + c.index_head_dim / 32;
    source.main_offset = p.page_bytes;
    source.key_offset = source.main_offset + source.per_page * source.main_bytes;
    p.page_bytes = source.key_offset + source.per_page * source.key_bytes;
    p.sources.push_back(source);
  }
  const int32_t candidate_source = latest(c.kv_source_layer_ids, c.candidate_source_layer_id);
  for (uint32_t l = 0; l < c.num_hidden_layers; ++l) {
    layer_plan layer;
    layer.ratio = c.compress_ratios[l];
    layer.engram = position_in(c.engram_layer_ids, l);
    layer.draft_feature = c.num_nextn_predict_layers ? position_in(c.dspark_target_layer_ids, l) : -1;
    if (layer.draft_feature >= 0 && l < p.encoder_layers)
      return fail(errc::unsupported,
                  "text_config.dspark_target_layer_ids: layer {} is an encoder layer (before layer {}); decoder replay "
                  "keeps features of decoder layers only",
                  l, p.encoder_layers);
    if (layer.ratio > 0) {
      layer.source = latest(c.kv_source_layer_ids, l);
      layer.index_source = static_cast<int32_t>(c.index_source_layer_ids[latest(c.index_source_layer_ids, l)]);
      if (c.kv_source_layer_ids[layer.source] == l) {
        layer.role = layer_role::full;
      } else if (layer.index_source == static_cast<int32_t>(l)) {
        layer.role = layer_role::reindex;
      } else {
        layer.role = layer_role::reuse;
      }
      const bool indexes = layer.role != layer_role::reuse;
      layer.publishes_candidates = l == c.candidate_source_layer_id;
      layer.within_candidates = indexes && l > c.candidate_source_layer_id && layer.source == candidate_source;
    }
    p.layers.push_back(layer);
  }
  return p;
}

std::vector<float> plain_frequencies(double theta, uint32_t rope_dim) {
  std::vector<float> f(rope_dim / 2);
  for (uint32_t i = 0; i < f.size(); ++i) f[i] = static_cast<float>(std::pow(theta, -2.0 * i / rope_dim));
  return f;
}

std::vector<float> yarn_frequencies(double theta, uint32_t rope_dim, const rope_scaling& s) {
  constexpr double two_pi = 6.283185307179586;
  const double d = rope_dim;
  auto turns_at = [&](double beta) {
    return d * std::log(s.original_max_position / (beta * two_pi)) / (2.0 * std::log(theta));
  };
  const double low = std::max(std::floor(turns_at(s.beta_fast)), 0.0);
  double high = std::min(std::ceil(turns_at(s.beta_slow)), d - 1.0);
  if (high == low) high += 0.001;  // keeps the ramp finite, as the reference does
  std::vector<float> f(rope_dim / 2);
  for (uint32_t i = 0; i < f.size(); ++i) {
    const double base = std::pow(theta, -2.0 * i / d);
    const double t = std::clamp((i - low) / (high - low), 0.0, 1.0);
    f[i] = static_cast<float>(base * (1.0 - t) + base / s.factor * t);
  }
  return f;
}

}  // namespace troupe::kernels
