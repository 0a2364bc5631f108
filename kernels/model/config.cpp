#include "kernels/model/config.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace troupe::kernels {
namespace {

using nlohmann::json;

// Reads fields of one JSON object and keeps the first error, so that the caller reads as a list of fields.
class reader {
 public:
  reader(const json& object, std::string source, std::string prefix)
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  template <class... Args>
  void complain(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty())
      error_ = fmt::format("{}: {}{}: {}", source_, prefix_, field, fmt::format(format, std::forward<Args>(args)...));
  }

  const json* find(const std::string& field, bool required) {
    auto it = object_.find(field);
    if (it == object_.end() || it->is_null()) {
      if (required) complain(field, "missing");
      return nullptr;
    }
    return &*it;
  }

  template <class T>
  void whole(const std::string& field, T& out, uint64_t low, uint64_t high, bool required = true) {
    const json* v = find(field, required);
    if (!v) return;
    if (!v->is_number_integer() || (v->is_number_integer() && !v->is_number_unsigned() && v->get<int64_t>() < 0))
      return complain(field, "is {}, expected a whole number from {} to {}", v->dump(), low, high);
    uint64_t n = v->get<uint64_t>();
    if (n < low || n > high) return complain(field, "is {}, allowed are {} to {}", n, low, high);
    out = static_cast<T>(n);
  }

  void real(const std::string& field, double& out, double low, double high, bool required = true) {
    const json* v = find(field, required);
    if (!v) return;
    if (!v->is_number()) return complain(field, "is {}, expected a number", v->dump());
    double d = v->get<double>();
    if (!(d >= low && d <= high)) return complain(field, "is {}, allowed are {} to {}", d, low, high);
    out = d;
  }

  template <class T>
  void list(const std::string& field, std::vector<T>& out, uint64_t high, bool required = true) {
    const json* v = find(field, required);
    if (!v) return;
    if (!v->is_array()) return complain(field, "is {}, expected a list of whole numbers", v->dump());
    out.clear();
    for (const json& e : *v) {
      if (!e.is_number_unsigned() || e.get<uint64_t>() > high)
        return complain(field, "holds {}, expected whole numbers up to {}", e.dump(), high);
      out.push_back(static_cast<T>(e.get<uint64_t>()));
    }
  }

  // {"temperature": [t..], "scale": [[per draft]..], "bias": [[per draft]..]}, one row for every temperature.
  void calibration(const std::string& field, confidence_calibration& out, uint32_t drafts) {
    const json* v = find(field, false);
    if (!v) return;
    auto number = [](const json& e) { return e.is_number() && std::abs(e.get<double>()) <= 1e3; };
    auto rows = [&](const char* name, std::vector<std::vector<double>>& into) {
      const auto at = v->find(name);
      bool good = at != v->end() && at->is_array() && at->size() == out.temperature.size();
      for (size_t i = 0; good && i < at->size(); ++i) {
        good =
            (*at)[i].is_array() && (*at)[i].size() == drafts && std::all_of((*at)[i].begin(), (*at)[i].end(), number);
        if (good) into.push_back((*at)[i].get<std::vector<double>>());
      }
      if (!good) complain(field, "{} is no list of {} numbers (up to 1000) for every temperature", name, drafts);
    };
    const auto knots = v->is_object() ? v->find("temperature") : v->end();
    bool good = v->is_object() && knots != v->end() && knots->is_array() && !knots->empty() && knots->size() <= 64 &&
                std::all_of(knots->begin(), knots->end(), number);
    if (good) out.temperature = knots->get<std::vector<double>>();
    for (size_t i = 0; good && i < out.temperature.size(); ++i)
      good = out.temperature[i] >= 0 && (i == 0 || out.temperature[i] > out.temperature[i - 1]);
    if (!good) return complain(field, "temperature is no ascending list of 1 to 64 numbers from 0");
    rows("scale", out.scale);
    rows("bias", out.bias);
  }

  // Fields of which this engine implements one value only.
  void only(const std::string& field, const json& wanted) {
    const json* v = find(field, false);
    if (v && *v != wanted) complain(field, "is {}; only {} is supported", v->dump(), wanted.dump());
  }

  const std::string& error() const { return error_; }
  void take(const reader& other) {
    if (error_.empty()) error_ = other.error_;
  }

 private:
  const json& object_;
  std::string source_, prefix_, error_;
};

bool ascending(const std::vector<uint32_t>& v) {
  for (size_t i = 1; i < v.size(); ++i)
    if (v[i] <= v[i - 1]) return false;
  return true;
}

bool lists(const std::vector<uint32_t>& v, uint32_t x) {
  for (uint32_t e : v)
    if (e == x) return true;
  return false;
}

// Relations between fields; shapes are divided into formats of 16 and 32 values.
void check_relations(const model_config& c, reader& r) {
  const uint32_t layers = c.num_hidden_layers;
  auto multiple = [&](const char* field, uint64_t value, uint64_t of, const char* why) {
    if (of == 0 || value % of != 0) r.complain(field, "is {}, must be a multiple of {} ({})", value, of, why);
  };
  multiple("hidden_size", c.hidden_size, 32, "weights are scaled per 32 values");
  multiple("head_dim", c.head_dim, 32, "window records are scaled per 32 channels");
  multiple("q_lora_rank", c.q_lora_rank, 32, "weights are scaled per 32 values");
  multiple("o_lora_rank", c.o_lora_rank, 32, "weights are scaled per 32 values");
  multiple("moe_intermediate_size", c.moe_intermediate_size, 32, "weights are scaled per 32 values");
  multiple("index_head_dim", c.index_head_dim, 32, "index keys are scaled per 32 channels");
  multiple("engram_head_dim", c.engram_layer_ids.empty() ? 0 : c.engram_head_dim, 32,
           "table rows are scaled per 32 values");
  multiple("dspark_markov_rank", c.num_nextn_predict_layers == 0 ? 0 : c.dspark_markov_rank, 32,
           "operators take columns in groups");
  multiple("qk_rope_head_dim", c.qk_rope_head_dim, 2, "channels rotate in pairs");
  multiple("num_attention_heads", c.num_attention_heads, c.o_groups, "o_groups");
  if (c.qk_rope_head_dim > c.head_dim || c.qk_rope_head_dim > c.index_head_dim)
    r.complain("qk_rope_head_dim", "is {}, larger than head_dim {} or index_head_dim {}", c.qk_rope_head_dim,
               c.head_dim, c.index_head_dim);
  if (c.num_experts_per_tok > c.n_routed_experts)
    r.complain("num_experts_per_tok", "is {}, but n_routed_experts is {}", c.num_experts_per_tok, c.n_routed_experts);
  if (c.compress_ratios.size() != layers + c.num_nextn_predict_layers)
    return r.complain("compress_ratios", "has {} entries, expected num_hidden_layers + num_nextn_predict_layers = {}",
                      c.compress_ratios.size(), layers + c.num_nextn_predict_layers);
  if (c.kv_source_layer_ids.empty()) return r.complain("kv_source_layer_ids", "is empty");
  if (!ascending(c.kv_source_layer_ids) || c.kv_source_layer_ids.back() >= layers)
    return r.complain("kv_source_layer_ids", "must ascend and stay below num_hidden_layers {}", layers);
  if (!ascending(c.index_source_layer_ids) || c.index_source_layer_ids.empty() ||
      c.index_source_layer_ids.back() >= layers)
    return r.complain("index_source_layer_ids", "must ascend and stay below num_hidden_layers {}", layers);
  for (uint32_t s : c.kv_source_layer_ids) {
    if (!lists(c.index_source_layer_ids, s))
      r.complain("index_source_layer_ids", "lacks {}, which is in kv_source_layer_ids", s);
    if (c.compress_ratios[s] == 0)
      r.complain("compress_ratios", "entry {} is 0, but layer {} is a KV source", s, s);
    else
      multiple("sliding_window", c.sliding_window, c.compress_ratios[s], "a page holds whole groups");
  }
  uint32_t source = UINT32_MAX;
  for (uint32_t l = 0; l < c.compress_ratios.size(); ++l) {
    uint32_t ratio = c.compress_ratios[l];
    if (lists(c.kv_source_layer_ids, l)) source = l;
    if (l >= layers) {
      if (ratio != 0) r.complain("compress_ratios", "entry {} is {}, draft blocks have 0", l, ratio);
    } else if (ratio != 0 && (source == UINT32_MAX || c.compress_ratios[source] != ratio)) {
      r.complain("compress_ratios", "entry {} is {}, but the KV source at or before layer {} does not have that ratio",
                 l, ratio, l);
    }
  }
  if (!lists(c.index_source_layer_ids, c.candidate_source_layer_id))
    r.complain("candidate_source_layer_id", "is {}, not one of index_source_layer_ids", c.candidate_source_layer_id);
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size())
    r.complain("engram_num_embeddings", "has {} entries, engram_layer_ids has {}", c.engram_num_embeddings.size(),
               c.engram_layer_ids.size());
  for (uint32_t l : c.engram_layer_ids)
    if (l >= layers) r.complain("engram_layer_ids", "holds {}, the model has {} layers", l, layers);
  for (uint32_t l : c.dspark_target_layer_ids)
    if (l >= layers) r.complain("dspark_target_layer_ids", "holds {}, the model has {} layers", l, layers);
  if (c.num_nextn_predict_layers > 0 && c.dspark_num_experts_per_tok > c.dspark_n_routed_experts)
    r.complain("dspark_num_experts_per_tok", "is {}, but dspark_n_routed_experts is {}", c.dspark_num_experts_per_tok,
               c.dspark_n_routed_experts);
}

void read_text_config(const json& object, model_config& c, reader& r) {
  constexpr uint64_t big = 1u << 24;
  r.whole("vocab_size", c.vocab_size, 1, big);
  r.whole("hidden_size", c.hidden_size, 1, big);
  r.whole("num_hidden_layers", c.num_hidden_layers, 1, 1024);
  r.whole("num_attention_heads", c.num_attention_heads, 1, 4096);
  r.only("num_key_value_heads", 1);
  r.whole("head_dim", c.head_dim, 1, 65536);
  r.whole("qk_rope_head_dim", c.qk_rope_head_dim, 2, 65536);
  r.whole("q_lora_rank", c.q_lora_rank, 1, big);
  r.whole("o_lora_rank", c.o_lora_rank, 1, big);
  r.whole("o_groups", c.o_groups, 1, 4096);
  r.whole("moe_intermediate_size", c.moe_intermediate_size, 1, big);
  r.whole("n_routed_experts", c.n_routed_experts, 1, 65536);
  r.only("n_shared_experts", 1);
  r.whole("num_experts_per_tok", c.num_experts_per_tok, 1, 64);
  r.only("scoring_func", "sqrtsoftplus");
  r.only("topk_method", "noaux_tc");
  r.only("norm_topk_prob", true);
  r.only("hidden_act", "silu");
  r.only("attention_bias", false);
  r.only("tie_word_embeddings", false);
  r.real("routed_scaling_factor", c.routed_scaling_factor, 1e-6, 1e6);
  r.real("swiglu_limit", c.swiglu_limit, 1e-6, 1e30);
  r.real("rms_norm_eps", c.rms_norm_eps, 0, 1);
  r.real("gate_temp", c.gate_temp, 1e-6, 1e6, false);
  r.real("rope_theta", c.rope_theta, 1, 1e12);
  r.real("compress_rope_theta", c.compress_rope_theta, 1, 1e12);
  if (const json* s = r.find("rope_scaling", true)) {
    if (!s->is_object()) {
      r.complain("rope_scaling", "is {}, expected an object", s->dump());
    } else {
      reader y(*s, {}, {});
      const char* key = s->contains("rope_type") ? "rope_type" : "type";
      y.only(key, "yarn");
      y.real("factor", c.scaling.factor, 1, 1e6);
      y.real("beta_fast", c.scaling.beta_fast, 1e-6, 1e6);
      y.real("beta_slow", c.scaling.beta_slow, 1e-6, 1e6);
      y.real("original_max_position_embeddings", c.scaling.original_max_position, 1, 1e12);
      if (!y.error().empty()) r.complain("rope_scaling", "{}", y.error().substr(2));
    }
  }
  r.whole("max_position_embeddings", c.max_position_embeddings, 1, UINT32_MAX);
  r.whole("sliding_window", c.sliding_window, 1, 65536);
  r.list("compress_ratios", c.compress_ratios, 16);  // what operators::compress takes
  r.list("kv_source_layer_ids", c.kv_source_layer_ids, 1024);
  r.list("index_source_layer_ids", c.index_source_layer_ids, 1024);
  r.whole("index_n_heads", c.index_n_heads, 1, 4096);
  r.whole("index_head_dim", c.index_head_dim, 1, 1024);
  r.whole("index_topk", c.index_topk, 1, 65536);
  r.whole("candidate_source_layer_id", c.candidate_source_layer_id, 0, 1024);
  r.whole("candidate_topk_blocks", c.candidate_topk_blocks, 1, big);
  r.whole("candidate_block_size", c.candidate_block_size, 1, 65536);
  r.whole("hc_mult", c.hc_mult, 1, 8);
  r.whole("hc_sinkhorn_iters", c.hc_sinkhorn_iters, 1, 1000);
  r.real("hc_eps", c.hc_eps, 0, 1);
  r.list("engram_layer_ids", c.engram_layer_ids, 1024, false);
  if (!c.engram_layer_ids.empty()) {
    r.list("engram_num_embeddings", c.engram_num_embeddings, UINT32_MAX);
    r.whole("engram_vocab_size", c.engram_vocab_size, 2, UINT32_MAX);
    r.whole("engram_max_ngram_size", c.engram_max_ngram_size, 2, 16);
    r.whole("engram_n_heads", c.engram_n_heads, 1, 256);
    r.whole("engram_head_dim", c.engram_head_dim, 32, 65536);
    const char* pad = object.contains("engram_pad_token_id") ? "engram_pad_token_id" : "engram_pad_id";
    r.whole(pad, c.engram_pad_token_id, 0, c.vocab_size, false);
    r.whole("engram_compressed_vocab_size", c.engram_compressed_vocab_size, 1, big);
  }
  r.whole("num_nextn_predict_layers", c.num_nextn_predict_layers, 0, 16, false);
  if (c.num_nextn_predict_layers > 0) {
    r.whole("dspark_block_size", c.dspark_block_size, 1, 64);
    r.whole("dspark_noise_token_id", c.dspark_noise_token_id, 0, c.vocab_size - 1);
    r.list("dspark_target_layer_ids", c.dspark_target_layer_ids, 1024);
    r.whole("dspark_markov_rank", c.dspark_markov_rank, 1, 65536);
    r.whole("dspark_n_routed_experts", c.dspark_n_routed_experts, 1, 65536);
    r.whole("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, 1, 64);
    r.calibration("dspark_confidence", c.dspark_confidence, c.dspark_block_size);
  }
  r.whole("bos_token_id", c.bos, 0, big, false);
  r.whole("eos_token_id", c.eos, 0, big, false);
  r.whole("pad_token_id", c.pad, 0, big, false);
}

}  // namespace

double confidence_calibration::operator()(double logit, double at, uint32_t draft) const {
  size_t high = 0;
  while (high < temperature.size() && temperature[high] < at) ++high;
  const size_t low = high == 0 ? 0 : high - 1;
  high = std::min(high, temperature.size() - 1);
  const double share = high == low ? 0 : (at - temperature[low]) / (temperature[high] - temperature[low]);
  auto between = [&](const std::vector<std::vector<double>>& rows) {
    return rows[low][draft] + (rows[high][draft] - rows[low][draft]) * share;
  };
  return 1 / (1 + std::exp(-(between(scale) * logit + between(bias))));
}

result<model_config> parse_config(std::string_view text, const std::string& source) {
  json root = json::parse(text, nullptr, false);
  if (root.is_discarded() || !root.is_object()) return fail(errc::invalid_argument, "{}: not a JSON object", source);
  model_config c;
  reader top(root, source, "");
  if (const json* v = top.find("architectures", false)) {
    if (*v != json::array({"DeepseekV41ForCausalLM"}))
      top.complain("architectures", "is {}; only [\"DeepseekV41ForCausalLM\"] is supported", v->dump());
  }
  if (const json* v = top.find("model_type", true)) c.name = v->is_string() ? v->get<std::string>() : "";
  if (const json* q = top.find("quantization_config", true)) {
    if (!q->is_object()) {
      top.complain("quantization_config", "is {}, expected an object", q->dump());
    } else {
      reader quant(*q, source, "quantization_config.");
      quant.only("quant_method", "fp8");
      quant.only("weight_block_size", json::array({32, 32}));
      quant.only("scale_fmt", "ue8m0");
      quant.only("expert_dtype", "fp4");
      top.take(quant);
    }
  }
  top.whole("bos_token_id", c.bos, 0, 1u << 24, false);
  top.whole("eos_token_id", c.eos, 0, 1u << 24, false);
  top.whole("pad_token_id", c.pad, 0, 1u << 24, false);
  const json* t = top.find("text_config", true);
  if (t && !t->is_object()) top.complain("text_config", "is {}, expected an object", t->dump());
  if (!top.error().empty()) return fail(errc::invalid_argument, "{}", top.error());
  reader r(*t, source, "text_config.");
  read_text_config(*t, c, r);
  if (r.error().empty()) check_relations(c, r);
  if (!r.error().empty()) return fail(errc::invalid_argument, "{}", r.error());
  return c;
}

result<std::string> read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(errc::io, "{}: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.good() && !in.eof()) return fail(errc::io, "{}: read failed", path);
  return text.str();
}

result<model_config> load_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  TROUPE_TRY(std::string text, read_text_file(path));
  return parse_config(text, path);
}

}  // namespace troupe::kernels
