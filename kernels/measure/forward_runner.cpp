#include "kernels/measure/forward_runner.hpp"

#include <algorithm>

#include "kernels/cpu/operators.hpp"
#include "kernels/engine/cpu_engine.hpp"
#include "kernels/ep/local_group.hpp"

namespace troupe::kernels::measure {

forward_runner::forward_runner(std::shared_ptr<const model> weights, uint32_t context, uint32_t chunk, uint32_t threads)
    : model_(std::move(weights)), context_(context), chunk_(chunk), ops_(cpu::make_operators(threads)) {}

result<std::unique_ptr<forward_runner>> forward_runner::make(std::shared_ptr<const model> weights, uint32_t context,
                                                             uint32_t chunk, uint32_t threads) {
  if (context == 0 || context > weights->config.max_position_embeddings)
    return fail(errc::invalid_argument, "context: is {}, the model takes 1 to {} tokens", context,
                weights->config.max_position_embeddings);
  if (chunk == 0 || threads == 0)
    return fail(errc::invalid_argument, "chunk and threads are {} and {}, must be positive", chunk, threads);
  std::unique_ptr<forward_runner> r(new forward_runner(std::move(weights), context, chunk, threads));
  if (auto ok = r->prepare(); !ok) return fail(ok.error());
  return r;
}

result<void> forward_runner::prepare() {
  const model& m = *model_;
  const uint32_t pages = (context_ + m.plan.window - 1) / m.plan.window;
  pages_.resize(size_t{pages} * m.plan.page_bytes);
  TROUPE_TRY(kv_state state, kv_state::make(m, *ops_, {}, {1, context_, pages}, pages_));
  state_.emplace(std::move(state));
  for (uint32_t p = 0; p < pages; ++p) state_->table(0)[p] = p;
  const uint32_t rows = std::max(chunk_, std::max(1u, m.config.dspark_block_size));
  TROUPE_TRY(forward_, forward_pass::make(m, *ops_, {}, *state_, {rows, 1}, steady_clock()));
  const uint32_t k = std::max(m.config.num_experts_per_tok, m.config.dspark_num_experts_per_tok);
  TROUPE_TRY(group_, ep::make_local_group({1, m.config.hidden_size, k, rows}));
  table_ = ep::expert_table(initial_placement(m, 1), 1, 0);
  return {};
}

void forward_runner::reset(uint32_t keep) {
  const size_t from = size_t{keep / model_->plan.window} * model_->plan.page_bytes;
  if (from < pages_.size()) std::fill(pages_.begin() + static_cast<ptrdiff_t>(from), pages_.end(), std::byte{0});
}

result<void> forward_runner::run(std::span<const int32_t> tokens, const run_span& rows, uint32_t logits_from,
                                 const row_sink& sink) {
  if (rows.end > context_ || rows.end > tokens.size() || rows.position > rows.end)
    return fail(errc::invalid_argument, "rows {} to {} of {} tokens, the context holds {}", rows.position, rows.end,
                tokens.size(), context_);
  for (uint32_t p = rows.position; p < rows.end; ++p)
    if (tokens[p] < 0 || static_cast<uint32_t>(tokens[p]) >= model_->config.vocab_size)
      return fail(errc::invalid_argument, "token {} at {}: outside the vocabulary of {}", tokens[p], p,
                  model_->config.vocab_size);
  const uint32_t shown_from = std::max(logits_from, rows.decoder_from);
  for (uint32_t at = rows.position; at < rows.end;) {
    const uint32_t n = std::min(chunk_, rows.end - at);
    sequence_rows s{.slot = 0,
                    .position = at,
                    .rows = n,
                    .window_floor = rows.window_floor,
                    .first_decoder_floor = rows.window_floor,
                    .decoder_floor = rows.decoder_from,
                    .decoder_from = rows.decoder_from,
                    .write_global_from = rows.write_global_from,
                    .draft_context = false,
                    .tokens = tokens};
    forward_->begin({&s, 1});
    ep::step_header h;
    h.has_work = h.encoder = true;
    h.decoder = forward_->has_tail();
    if (auto r = group_->begin_step(h); !r) return fail(r.error());
    if (auto r = forward_->layers(*group_, table_, h.decoder); !r) return r;
    const uint32_t end = at + n;
    for (uint32_t p = std::max(at, shown_from); sink && p < end;) {
      const uint32_t last = std::min(end, p + forward_->logits_rows());
      index_.clear();
      for (uint32_t i = p; i < last; ++i) index_.push_back(forward_->tail_index(0, i));
      const float* logits = forward_->logits(index_);
      ops_->synchronise({});
      for (uint32_t i = p; i < last; ++i) sink(i, logits + size_t{i - p} * model_->config.vocab_size);
      p = last;
    }
    const commit_rows c{0, n};
    forward_->commit({&c, 1});
    at = end;
  }
  return {};
}

void forward_runner::take_loads(std::vector<std::vector<uint64_t>>& loads) {
  std::vector<std::vector<uint64_t>> fresh;
  std::vector<uint64_t> received;
  forward_->take_loads(fresh, received);
  const size_t layers = std::min<size_t>(fresh.size(), model_->config.num_hidden_layers);
  loads.resize(std::max(loads.size(), layers));
  for (size_t l = 0; l < layers; ++l) {
    loads[l].resize(std::max(loads[l].size(), fresh[l].size()));
    for (size_t e = 0; e < fresh[l].size(); ++e) loads[l][e] += fresh[l][e];
  }
}

}  // namespace troupe::kernels::measure
