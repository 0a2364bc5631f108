#include "kernels/model/weights.hpp"

#include <cstring>
#include <string>

namespace troupe::kernels {
namespace {

std::string text_of(const std::vector<uint64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

// Looks tensors up and keeps the first error.
class loader {
 public:
  loader(const checkpoint& files, model_weights& out) : files_(files), out_(out) {}

  const tensor* need(const std::string& name, dtype type, const std::vector<uint64_t>& shape) {
    if (failed_) return nullptr;
    const tensor* t = files_.find(name);
    if (!t) {
      set(errc::not_found, fmt::format("{}: tensor {} is missing", place(), name));
      return nullptr;
    }
    if (t->type != type) {
      set(errc::invalid_argument,
          fmt::format("{}: tensor {}: dtype is {}, expected {}", t->file, name, to_string(t->type), to_string(type)));
      return nullptr;
    }
    if (t->shape != shape) {
      set(errc::invalid_argument, fmt::format("{}: tensor {}: shape is {}, the configuration asks for {}", t->file,
                                              name, text_of(t->shape), text_of(shape)));
      return nullptr;
    }
    return t;
  }

  weight plain(const std::string& name, dtype type, uint32_t rows, uint32_t cols, bool vector) {
    std::vector<uint64_t> shape;
    if (!vector) shape.push_back(rows);
    shape.push_back(cols);
    const tensor* t = need(name, type, shape);
    if (!t) return {};
    return {t->data.data(), nullptr, type == dtype::f32 ? weight_format::f32 : weight_format::bf16, rows, cols};
  }
  weight bf16(const std::string& name, uint32_t rows, uint32_t cols) {
    return plain(name, dtype::bf16, rows, cols, false);
  }
  weight norm(const std::string& name, uint32_t cols) { return plain(name, dtype::bf16, 1, cols, true); }

  // A dense linear: `prefix`.weight and .scale, one scale per 32x32 block.
  weight fp8(const std::string& prefix, uint32_t rows, uint32_t cols) {
    const tensor* w = need(prefix + ".weight", dtype::f8_e4m3, {rows, cols});
    const tensor* s = need(prefix + ".scale", dtype::f8_e8m0, {(rows + 31) / 32, (cols + 31) / 32});
    if (!w || !s) return {};
    return {w->data.data(), reinterpret_cast<const uint8_t*>(s->data.data()), weight_format::fp8_block, rows, cols};
  }

  weight fp4(const std::string& prefix, uint32_t rows, uint32_t cols) {
    const tensor* w = need(prefix + ".weight", dtype::i8, {rows, cols / 2});
    const tensor* s = need(prefix + ".scale", dtype::f8_e8m0, {rows, cols / 32});
    if (!w || !s) return {};
    return {w->data.data(), reinterpret_cast<const uint8_t*>(s->data.data()), weight_format::mxfp4, rows, cols};
  }

  const float* floats(const std::string& name, uint32_t count) {
    const tensor* t = need(name, dtype::f32, {count});
    if (!t) return nullptr;
    auto copy = std::make_unique<float[]>(count);
    std::memcpy(copy.get(), t->data.data(), t->data.size());
    out_.aligned.push_back(std::move(copy));
    return out_.aligned.back().get();
  }

  void set(errc code, std::string message) {
    if (!failed_) error_ = {code, std::move(message)};
    failed_ = true;
  }
  bool failed() const { return failed_; }
  const error& problem() const { return error_; }

 private:
  std::string place() const { return files_.tensors().empty() ? "checkpoint" : files_.tensors().begin()->second.file; }
  const checkpoint& files_;
  model_weights& out_;
  bool failed_ = false;
  error error_;
};

hc_weights load_hc(loader& in, const std::string& prefix, const model_config& c) {
  const uint32_t rows = (2 + c.hc_mult) * c.hc_mult;
  hc_weights w;
  w.fn = in.plain(prefix + "_fn", dtype::f32, rows, c.hc_mult * c.hidden_size, false);
  w.base = in.floats(prefix + "_base", rows);
  w.scale = in.floats(prefix + "_scale", 3);
  return w;
}

// What backbone layers and draft blocks have in common.
layer_weights load_block(loader& in, const std::string& prefix, const model_config& c, uint32_t experts) {
  layer_weights w;
  const uint32_t h = c.hidden_size, q = c.num_attention_heads * c.head_dim, ffn = c.moe_intermediate_size;
  const std::string a = prefix + "attn.", f = prefix + "ffn.";
  w.attn_norm = in.norm(prefix + "attn_norm.weight", h);
  w.ffn_norm = in.norm(prefix + "ffn_norm.weight", h);
  w.wq_a = in.fp8(a + "wq_a", c.q_lora_rank, h);
  w.wq_b = in.fp8(a + "wq_b", q, c.q_lora_rank);
  w.wkv = in.fp8(a + "wkv", c.head_dim, h);
  w.wo_a = in.fp8(a + "wo_a", c.o_groups * c.o_lora_rank, q / c.o_groups);
  w.wo_b = in.fp8(a + "wo_b", h, c.o_groups * c.o_lora_rank);
  w.q_norm = in.norm(a + "q_norm.weight", c.q_lora_rank);
  w.kv_norm = in.norm(a + "kv_norm.weight", c.head_dim);
  w.sink = in.floats(a + "attn_sink", c.num_attention_heads);
  w.hc_attn = load_hc(in, prefix + "hc_attn", c);
  w.hc_ffn = load_hc(in, prefix + "hc_ffn", c);
  w.gate = in.bf16(f + "gate.weight", experts, h);
  w.gate_bias = in.floats(f + "gate.bias", experts);
  w.experts.resize(experts);
  for (uint32_t e = 0; e < experts && !in.failed(); ++e) {
    const std::string p = f + "experts." + std::to_string(e) + ".";
    w.experts[e] = {in.fp4(p + "w1", ffn, h), in.fp4(p + "w2", h, ffn), in.fp4(p + "w3", ffn, h)};
  }
  const std::string s = f + "shared_experts.";
  w.shared = {in.fp8(s + "w1", ffn, h), in.fp8(s + "w2", h, ffn), in.fp8(s + "w3", ffn, h)};
  return w;
}

void load_compression(loader& in, layer_weights& w, const std::string& a, const model_config& c,
                      const layer_plan& layer) {
  if (layer.role == layer_role::window || layer.role == layer_role::reuse) return;
  w.index_wq_b = in.fp8(a + "indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
  w.index_weights = in.bf16(a + "indexer.weights_proj.weight", c.index_n_heads, c.hidden_size);
  if (layer.role != layer_role::full) return;
  w.compressor_wkv = in.bf16(a + "compressor.wkv.weight", c.head_dim, c.hidden_size);
  if (layer.ratio > 1) w.compressor_wgate = in.bf16(a + "compressor.wgate.weight", c.head_dim, c.hidden_size);
  w.compressor_norm = in.norm(a + "compressor.norm.weight", c.head_dim);
  w.index_wk = in.bf16(a + "indexer.wk.weight", c.index_head_dim, c.head_dim);
  w.index_k_norm = in.norm(a + "indexer.k_norm.weight", c.index_head_dim);
}

// Tensors that must not be there: they show that the configuration belongs to another checkpoint.
void find_contradictions(loader& in, const checkpoint& files, const model_config& c, const model_plan& plan) {
  auto refuse = [&](const std::string& name, const char* field) {
    if (const tensor* t = files.find(name))
      in.set(errc::invalid_argument,
             fmt::format("{}: tensor {} is there, which contradicts text_config.{}", t->file, name, field));
  };
  const std::string next = "layers." + std::to_string(c.num_hidden_layers) + ".";
  refuse(next + "attn_norm.weight", "num_hidden_layers");
  refuse("mtp." + std::to_string(c.num_nextn_predict_layers) + ".attn_norm.weight", "num_nextn_predict_layers");
  for (uint32_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    const layer_plan& layer = plan.layers[l];
    refuse(p + "ffn.experts." + std::to_string(c.n_routed_experts) + ".w1.weight", "n_routed_experts");
    if (layer.role != layer_role::full) refuse(p + "attn.compressor.wkv.weight", "kv_source_layer_ids");
    if (layer.role != layer_role::full || layer.ratio == 1)
      refuse(p + "attn.compressor.wgate.weight", "compress_ratios");
    if (layer.role == layer_role::window || layer.role == layer_role::reuse)
      refuse(p + "attn.indexer.wq_b.weight", "index_source_layer_ids");
    if (layer.engram < 0) refuse(p + "engram.embed.weight", "engram_layer_ids");
  }
}

}  // namespace

result<model_weights> load_weights(const checkpoint& files, const model_config& c, const model_plan& plan) {
  model_weights w;
  loader in(files, w);
  w.embed = in.bf16("embed.weight", c.vocab_size, c.hidden_size);
  w.head = in.bf16("head.weight", c.vocab_size, c.hidden_size);
  w.norm = in.norm("norm.weight", c.hidden_size);
  w.engram.resize(c.engram_layer_ids.size());
  for (uint32_t l = 0; l < c.num_hidden_layers && !in.failed(); ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    w.layers.push_back(load_block(in, p, c, c.n_routed_experts));
    load_compression(in, w.layers.back(), p + "attn.", c, plan.layers[l]);
    if (plan.layers[l].engram < 0) continue;
    const uint32_t module = static_cast<uint32_t>(plan.layers[l].engram);
    const uint32_t rows = static_cast<uint32_t>(c.engram_num_embeddings[module]), dim = c.engram_head_dim;
    engram_weights& e = w.engram[module];
    const tensor* table = in.need(p + "engram.embed.weight", dtype::f8_e4m3, {rows, dim});
    const tensor* scale = in.need(p + "engram.embed.scale", dtype::f8_e8m0, {rows, dim / 32});
    if (table && scale)
      e.table = {table->data.data(), reinterpret_cast<const uint8_t*>(scale->data.data()), weight_format::fp8_row, rows,
                 dim};
    e.wkv = in.fp8(p + "engram.wkv", (c.hc_mult + 1) * c.hidden_size, c.engram_columns() * dim);
    e.q_weight = in.bf16(p + "engram.q_weight", c.hc_mult, c.hidden_size);
    e.k_weight = in.bf16(p + "engram.k_weight", c.hc_mult, c.hidden_size);
  }
  const uint32_t blocks = c.num_nextn_predict_layers;
  for (uint32_t b = 0; b < blocks && !in.failed(); ++b)
    w.draft.blocks.push_back(load_block(in, "mtp." + std::to_string(b) + ".", c, c.dspark_n_routed_experts));
  if (blocks > 0 && !in.failed()) {
    const std::string last = "mtp." + std::to_string(blocks - 1) + ".";
    const uint32_t features = static_cast<uint32_t>(c.dspark_target_layer_ids.size()) * c.hidden_size;
    w.draft.main_proj = in.fp8("mtp.0.main_proj", c.hidden_size, features);
    w.draft.main_norm = in.norm("mtp.0.main_norm.weight", c.hidden_size);
    w.draft.norm = in.norm(last + "norm.weight", c.hidden_size);
    w.draft.markov_embed = in.bf16(last + "markov_head.embed.weight", c.vocab_size, c.dspark_markov_rank);
    w.draft.markov_head = in.bf16(last + "markov_head.head.weight", c.vocab_size, c.dspark_markov_rank);
    w.draft.confidence = in.bf16(last + "confidence_head.proj.weight", 1, c.hidden_size + c.dspark_markov_rank);
  }
  if (!in.failed()) find_contradictions(in, files, c, plan);
  if (in.failed()) return fail(in.problem());
  return w;
}

}  // namespace troupe::kernels
