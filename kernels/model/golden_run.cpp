#include "kernels/model/golden_run.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/ep/local_group.hpp"
#include "kernels/formats/records.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;

bool has(const std::vector<uint32_t>& list, uint32_t n) { return std::find(list.begin(), list.end(), n) != list.end(); }

// Copies everything it sees, per point and layer.
class recorder final : public probe {
 public:
  explicit recorder(size_t groups) : groups_(groups) {}
  void see(probe_point point, uint32_t layer, const void* data, uint32_t rows, size_t width) override {
    const size_t size = point == probe_point::window_records ? 1 : 4;
    auto& to = seen_[{point, layer}];
    to.resize(rows * width * size);
    if (!to.empty()) std::memcpy(to.data(), data, to.size());
  }
  float* index_scores(uint32_t layer, uint32_t rows, size_t& stride) override {
    stride = groups_;
    auto& s = scores_[layer];
    s.assign(rows * groups_, 0);
    return s.data();
  }
  template <class T>
  std::vector<T> get(probe_point point, uint32_t layer) const {
    auto it = seen_.find({point, layer});
    if (it == seen_.end()) return {};
    std::vector<T> out(it->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), it->second.data(), it->second.size());
    return out;
  }
  const std::vector<float>& scores(uint32_t layer) { return scores_[layer]; }

 private:
  size_t groups_;
  std::map<std::pair<probe_point, uint32_t>, std::vector<std::byte>> seen_;
  std::map<uint32_t, std::vector<float>> scores_;
};

class golden_runner {
 public:
  golden_runner(const model& m, operators& ops, place where, const checkpoint& golden, const golden_roles& roles,
                const clock_source& clock)
      : m_(m), c_(m.config), ops_(ops), where_(where), golden_(golden), roles_(roles), clock_(clock) {}

  result<golden_answers> run() {
    if (auto r = prepare(); !r) return fail(r.error());
    for (uint32_t e = 0; e < m_.hash.layers(); ++e) {
      auto& multipliers = answers_["engram.multipliers"].whole;
      multipliers.insert(multipliers.end(), m_.hash.multipliers(e).begin(), m_.hash.multipliers(e).end());
      auto& primes = answers_["engram.primes"].whole;
      primes.insert(primes.end(), m_.hash.primes(e).begin(), m_.hash.primes(e).end());
    }
    answers_["engram.token_map"].whole.assign(m_.hash.token_map().begin(), m_.hash.token_map().end());
    for (uint32_t n : roles_.lengths)
      if (auto r = prompt(n); !r) return fail(r.error());
    for (uint32_t n : roles_.decoder_replay)
      for (bool strict : {true, false}) {
        const uint32_t d = n > m_.plan.window ? n - m_.plan.window : 0;
        TROUPE_TRY(auto ids, tokens(n));
        sequence_rows s{
            .slot = 0, .rows = n, .decoder_floor = d, .decoder_from = d, .draft_context = false, .tokens = ids};
        s.first_decoder_floor = strict ? d : 0;
        const std::string name = "decoder_replay." + std::to_string(n) + (strict ? ".strict" : ".first_full");
        if (auto r = last_logits(s, name, 1); !r) return fail(r.error());
      }
    if (roles_.encoder_prompt)
      if (auto r = encoder_replay(); !r) return fail(r.error());
    return std::move(answers_);
  }

 private:
  result<void> prepare() {
    const uint32_t longest = *std::max_element(roles_.lengths.begin(), roles_.lengths.end());
    context_ = longest + 64;  // greedy continuation
    const uint32_t window = m_.plan.window, pages = (context_ + window - 1) / window;
    pages_.resize(size_t{pages} * m_.plan.page_bytes);
    TROUPE_TRY(kv_state state, kv_state::make(m_, ops_, where_, {1, context_, pages}, pages_));
    state_.emplace(std::move(state));
    for (uint32_t p = 0; p < pages; ++p) state_->table(0)[p] = p;
    const uint32_t rows = std::max(longest, std::max(1u, c_.dspark_block_size));
    TROUPE_TRY(forward_, forward_pass::make(m_, ops_, where_, *state_, {rows, 1}, clock_));
    const uint32_t k = std::max(c_.num_experts_per_tok, c_.dspark_num_experts_per_tok);
    TROUPE_TRY(group_, ep::make_local_group({1, c_.hidden_size, k, rows}));
    ep::placement all = ep::contiguous_placement(1, c_.num_hidden_layers, c_.n_routed_experts);
    for (auto& layer : ep::contiguous_placement(1, c_.num_nextn_predict_layers, c_.dspark_n_routed_experts).copies)
      all.copies.push_back(layer);
    table_ = ep::expert_table(std::move(all), 1, 0);
    return {};
  }

  result<std::vector<int32_t>> tokens(uint32_t n) {
    return golden_ids(golden_, "prompt." + std::to_string(n) + ".ids");
  }

  result<void> step(const sequence_rows& s) {
    forward_->begin({&s, 1});
    ep::step_header h;
    h.has_work = h.encoder = h.decoder = true;
    if (auto r = group_->begin_step(h); !r) return fail(r.error());
    return forward_->layers(*group_, table_, true);
  }
  void commit(uint32_t rows) {
    const commit_rows c{0, rows};
    forward_->commit({&c, 1});
  }

  // Logits of the tail rows at [from, end) appended to out.
  void take_logits(uint32_t from, uint32_t end, std::vector<float>& out) {
    std::vector<uint32_t> index;
    for (uint32_t p = from; p < end; p += forward_->logits_rows()) {
      index.clear();
      for (uint32_t i = p; i < std::min(end, p + forward_->logits_rows()); ++i)
        index.push_back(forward_->tail_index(0, i));
      const float* l = forward_->logits(index);
      ops_.synchronise(where_);
      out.insert(out.end(), l, l + index.size() * c_.vocab_size);
    }
  }

  int32_t argmax(const float* logits) const {
    return static_cast<int32_t>(std::max_element(logits, logits + c_.vocab_size) - logits);
  }

  // A full run of one prompt with everything golden about it.
  result<void> prompt(uint32_t n) {
    TROUPE_TRY(auto ids, tokens(n));
    ids.resize(context_);
    const std::string name = "prompt." + std::to_string(n);
    for (uint32_t i = 0; i < n; ++i) answers_[name + ".ids"].whole.push_back(ids[i]);
    const bool inner = n == roles_.detail || n == roles_.index || has(roles_.dspark, n);
    recorder record(n);
    forward_->set_probe(inner ? &record : nullptr);
    const sequence_rows s{.slot = 0, .rows = n, .tokens = ids};
    auto ran = step(s);
    if (!ran) return ran;
    auto& logits = answers_[name + ".logits"].floats;
    take_logits(0, n, logits);
    const int32_t next = argmax(logits.data() + size_t{n - 1} * c_.vocab_size);
    if (n == roles_.detail) detail(name, n, record);
    if (n == roles_.index) index(name, n, record);
    if (has(roles_.dspark, n) && c_.num_nextn_predict_layers > 0)
      if (auto r = dspark(n, next, record); !r) return r;
    forward_->set_probe(nullptr);
    commit(n);
    if (!has(roles_.greedy, n)) return {};
    const tensor* wanted = golden_.find("greedy." + std::to_string(n) + ".ids");
    const uint32_t count = wanted ? static_cast<uint32_t>(wanted->values()) : 0;
    auto& greedy = answers_["greedy." + std::to_string(n) + ".ids"].whole;
    ids[n] = next;
    greedy.push_back(next);
    std::vector<float> row;
    for (uint32_t i = 1; i < count && n + i < context_; ++i) {
      const sequence_rows one{.slot = 0, .position = n + i - 1, .rows = 1, .tokens = ids};
      if (auto r = step(one); !r) return r;
      row.clear();
      take_logits(n + i - 1, n + i, row);
      commit(1);
      greedy.push_back(ids[n + i] = argmax(row.data()));
    }
    return {};
  }

  void detail(const std::string& name, uint32_t n, recorder& record) {
    auto floats = [&](const char* what) -> std::vector<float>& { return answers_[name + "." + what].floats; };
    std::vector<float> row(c_.head_dim);
    for (uint32_t l = 0; l < c_.num_hidden_layers; ++l) {
      for (float v : record.get<float>(probe_point::resid_mean, l)) floats("resid_mean").push_back(v);
      for (uint32_t v : record.get<uint32_t>(probe_point::router_ids, l))
        answers_[name + ".router_ids"].whole.push_back(v);
      for (float v : record.get<float>(probe_point::router_weights, l)) floats("router_weights").push_back(v);
      const auto records = record.get<uint8_t>(probe_point::window_records, l);
      for (uint32_t i = 0; i < n; ++i) {
        formats::decode_window_record(records.data() + size_t{i} * m_.plan.window_record_bytes, c_.head_dim,
                                      row.data());
        floats("window_kv").insert(floats("window_kv").end(), row.begin(), row.end());
      }
    }
    const uint32_t columns = m_.hash.columns();
    for (uint32_t e = 0; e < m_.hash.layers(); ++e)
      for (float v : record.get<float>(probe_point::engram_gate, e)) floats("engram_gate").push_back(v);
    for (uint32_t i = 0; i < n; ++i)
      for (uint32_t e = 0; e < m_.hash.layers(); ++e) {
        const auto rows = record.get<uint32_t>(probe_point::engram_rows, e);
        for (uint32_t k = 0; k < columns; ++k)
          answers_[name + ".engram_rows"].whole.push_back(rows[size_t{i} * columns + k]);
      }
    std::vector<float> key(c_.index_head_dim);
    for (uint32_t s = 0; s < m_.plan.sources.size(); ++s) {
      const source_plan& source = m_.plan.sources[s];
      auto& main = floats(("compressed_kv." + std::to_string(source.layer)).c_str());
      auto& keys = floats(("index_key." + std::to_string(source.layer)).c_str());
      for (uint32_t g = 0; g < n / source.ratio; ++g) {
        formats::decode_main_entry(entry(state_->entries(s), g), c_.head_dim, row.data());
        main.insert(main.end(), row.begin(), row.end());
        formats::decode_index_key(entry(state_->keys(s), g), c_.index_head_dim, key.data());
        keys.insert(keys.end(), key.begin(), key.end());
      }
    }
  }

  const uint8_t* entry(const paged_view& v, uint32_t g) const {
    return reinterpret_cast<const uint8_t*>(v.pages) + v.table[g / v.per_page] * v.page_bytes + v.offset +
           size_t{g % v.per_page} * v.entry_bytes;
  }

  void index(const std::string& name, uint32_t n, recorder& record) {
    for (uint32_t l : c_.index_source_layer_ids) {
      const std::string at = "." + std::to_string(l);
      const auto selected = record.get<uint32_t>(probe_point::selected, l);
      const auto counts = record.get<uint32_t>(probe_point::selected_counts, l);
      auto& sel = answers_[name + ".index_sel" + at].whole;
      for (uint32_t i = 0; i < n; ++i)
        for (uint32_t k = 0; k < c_.index_topk; ++k)
          sel.push_back(k < counts[i] ? int64_t{selected[size_t{i} * c_.index_topk + k]} : -1);
      const uint32_t groups = n / m_.plan.layers[l].ratio;
      const float* last = record.scores(l).data() + size_t{n - 1} * n;
      answers_[name + ".index_score_last" + at].floats.assign(last, last + groups);
      if (!m_.plan.layers[l].publishes_candidates) continue;
      const auto blocks = record.get<uint32_t>(probe_point::candidate_blocks, l);
      const auto used = record.get<uint32_t>(probe_point::candidate_counts, l);
      auto& mask = answers_[name + ".candidates" + at].whole;
      mask.assign(size_t{n} * groups, 0);
      for (uint32_t i = 0; i < n; ++i)
        for (uint32_t b = 0; b < used[i]; ++b) {
          const uint32_t first = blocks[size_t{i} * c_.candidate_topk_blocks + b] * c_.candidate_block_size;
          for (uint32_t g = first; g < std::min(groups, first + c_.candidate_block_size); ++g)
            mask[size_t{i} * groups + g] = 1;
        }
    }
  }

  result<void> dspark(uint32_t n, int32_t anchor, recorder& record) {
    const std::string name = "dspark." + std::to_string(n) + ".";
    const uint32_t block = c_.dspark_block_size;
    std::vector<int32_t> ids(block);
    std::vector<float> confidence(block);
    const draft_sequence s{.sequence = 0, .last = n - 1, .floor = 0, .anchor = anchor, .sampling = {}};
    if (auto r = forward_->draft(*group_, table_, {&s, 1}, ids.data(), confidence.data()); !r) return r;
    answers_[name + "anchor"].whole.push_back(anchor);
    answers_[name + "draft_ids"].whole.assign(ids.begin(), ids.end());
    answers_[name + "confidence"].floats = confidence;
    const auto main_x = record.get<float>(probe_point::main_x, 0);
    const uint32_t rows = std::min(n, m_.plan.window);
    answers_[name + "main_x"].floats.assign(main_x.end() - static_cast<ptrdiff_t>(size_t{rows} * c_.hidden_size),
                                            main_x.end());
    answers_[name + "hidden"].floats = record.get<float>(probe_point::draft_hidden, 0);
    answers_[name + "base_logits"].floats = record.get<float>(probe_point::draft_logits, 0);
    for (uint32_t k = 0; k < block; ++k)
      answers_[name + "confidence_logit"].floats.push_back(record.get<float>(probe_point::draft_confidence, k)[0]);
    return {};
  }

  // Logits of the last `rows` positions of a run that keeps no state.
  result<void> last_logits(const sequence_rows& s, const std::string& name, uint32_t rows) {
    if (auto r = step(s); !r) return r;
    take_logits(s.position + s.rows - rows, s.position + s.rows, answers_[name].floats);
    return {};
  }

  result<void> encoder_replay() {
    const uint32_t n = roles_.encoder_prompt, cached = roles_.encoder_cached, start = roles_.encoder_start;
    const uint32_t d = n > m_.plan.window ? n - m_.plan.window : 0;
    TROUPE_TRY(auto ids, tokens(n));
    auto exact = [&]() {
      // Leaves the cached groups as an exact run writes them, and clears what lies behind.
      std::fill(pages_.begin(), pages_.end(), std::byte{0});
      return step({.slot = 0, .rows = cached, .draft_context = false, .tokens = ids});
    };
    sequence_rows s{.slot = 0,
                    .position = start,
                    .rows = n - start,
                    .window_floor = start,
                    .first_decoder_floor = start,
                    .decoder_floor = start,
                    .decoder_from = start,
                    .write_global_from = cached,
                    .draft_context = false,
                    .tokens = ids};
    if (auto r = exact(); !r) return r;
    if (auto r = last_logits(s, "encoder_replay.logits", n - cached); !r) return r;
    for (bool strict : {true, false}) {
      s.decoder_from = s.decoder_floor = d;
      s.first_decoder_floor = strict ? d : start;
      if (auto r = exact(); !r) return r;
      if (auto r = last_logits(s, std::string("encoder_decoder_replay.") + (strict ? "strict" : "first_full"), 1); !r)
        return r;
    }
    return {};
  }

  const model& m_;
  const model_config& c_;
  operators& ops_;
  const place where_;
  const checkpoint& golden_;
  const golden_roles& roles_;
  const clock_source& clock_;
  uint32_t context_ = 0;
  std::vector<std::byte> pages_;
  std::optional<kv_state> state_;
  std::unique_ptr<forward_pass> forward_;
  std::unique_ptr<ep::group> group_;
  ep::expert_table table_;
  golden_answers answers_;
};

}  // namespace

result<golden_roles> read_golden_roles(const std::string& text, const std::string& source) {
  json root = json::parse(text, nullptr, false);
  if (!root.is_object() || !root.contains("roles") || !root["roles"].is_object())
    return fail(errc::corrupt, "{}: no roles object", source);
  const json& roles = root["roles"];
  golden_roles out;
  std::string wrong;
  auto list = [&](const char* key, std::vector<uint32_t>& to) {
    if (!roles.contains(key)) return;
    if (!roles[key].is_array())
      wrong = key;
    else
      for (const json& e : roles[key])
        if (e.is_number_unsigned())
          to.push_back(e.get<uint32_t>());
        else
          wrong = key;
  };
  auto number = [&](const json& o, const char* key, uint32_t& to) {
    if (!o.contains(key)) return;
    if (!o[key].is_number_unsigned())
      wrong = key;
    else
      to = o[key].get<uint32_t>();
  };
  list("lengths", out.lengths);
  list("greedy", out.greedy);
  list("dspark", out.dspark);
  list("decoder_replay", out.decoder_replay);
  number(roles, "detail", out.detail);
  number(roles, "index", out.index);
  if (roles.contains("encoder_replay") && roles["encoder_replay"].is_object()) {
    number(roles["encoder_replay"], "prompt", out.encoder_prompt);
    number(roles["encoder_replay"], "cached", out.encoder_cached);
    number(roles["encoder_replay"], "replay_start", out.encoder_start);
  }
  if (!wrong.empty()) return fail(errc::corrupt, "{}: roles.{} is not as expected", source, wrong);
  if (out.lengths.empty() || has(out.lengths, 0))
    return fail(errc::corrupt, "{}: roles.lengths lists no prompt", source);
  if (out.encoder_prompt && (out.encoder_cached >= out.encoder_prompt || out.encoder_start >= out.encoder_cached))
    return fail(errc::corrupt, "{}: roles.encoder_replay: replay_start < cached < prompt does not hold", source);
  return out;
}

result<std::vector<int32_t>> golden_ids(const checkpoint& golden, const std::string& name) {
  const tensor* t = golden.find(name);
  if (!t || t->type != dtype::i32)
    return fail(errc::not_found, "golden tensor {} is missing or not of dtype I32", name);
  std::vector<int32_t> ids(t->values());
  std::memcpy(ids.data(), t->data.data(), t->data.size());
  return ids;
}

result<golden_answers> run_golden(const model& m, operators& ops, place where, const checkpoint& golden,
                                  const golden_roles& roles, const clock_source& clock) {
  for (uint32_t n : roles.lengths) {
    TROUPE_TRY(auto ids, golden_ids(golden, "prompt." + std::to_string(n) + ".ids"));
    if (ids.size() != n) return fail(errc::corrupt, "golden tensor prompt.{}.ids has {} ids", n, ids.size());
    for (int32_t id : ids)
      if (id < 0 || static_cast<uint32_t>(id) >= m.config.vocab_size)
        return fail(errc::invalid_argument, "golden tensor prompt.{}.ids: {} is outside the vocabulary of {}", n, id,
                    m.config.vocab_size);
  }
  return golden_runner(m, ops, where, golden, roles, clock).run();
}

}  // namespace troupe::kernels
