// Runs the forward pass over given tokens, one sequence at a time, and shows the logits: what the engine computes,
// without sampling. For measurements that need every row's logits or choose the replay mode themselves.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/model/forward.hpp"

namespace troupe::kernels::measure {

/// Rows [position, end) of the sequence. The replay modes are data (see sequence_rows): no query of layers up to the
/// first decoder layer sees a window row before `window_floor`, stored global KV before `write_global_from` is read but
/// never written, later decoder layers run on rows from `decoder_from` and see none before it.
struct run_span {
  uint32_t position = 0, end = 0;
  uint32_t window_floor = 0, write_global_from = 0, decoder_from = 0;
};

/// One forward pass with the state of one sequence of up to `context` tokens. One thread at a time.
class forward_runner {
 public:
  /// Sees the logits [vocabulary] after the row at `position`; valid during the call.
  using row_sink = std::function<void(uint32_t position, const float* logits)>;

  /// `chunk`: rows per step. invalid_argument for sizes of 0 or above the model's; exhausted if memory is short.
  static result<std::unique_ptr<forward_runner>> make(std::shared_ptr<const model> weights, uint32_t context,
                                                      uint32_t chunk, uint32_t threads);

  const model& weights() const { return *model_; }
  uint32_t context() const { return context_; }

  /// Forgets the sequence: its pages are zeroed from `keep` tokens on (a multiple of the window; 0: all).
  void reset(uint32_t keep = 0);
  /// Runs `rows` of `tokens` (which reach rows.end) in chunks. The sink, if there is one, is called in order for every
  /// row at or after max(logits_from, decoder_from). invalid_argument for tokens outside the vocabulary and rows beyond
  /// the context.
  result<void> run(std::span<const int32_t> tokens, const run_span& rows, uint32_t logits_from = 0,
                   const row_sink& sink = {});

  /// Rows routed per [backbone layer][expert] since the last call are added to `loads`.
  void take_loads(std::vector<std::vector<uint64_t>>& loads);

 private:
  forward_runner(std::shared_ptr<const model> weights, uint32_t context, uint32_t chunk, uint32_t threads);
  result<void> prepare();

  const std::shared_ptr<const model> model_;
  const uint32_t context_, chunk_;
  const std::unique_ptr<operators> ops_;
  std::vector<std::byte> pages_;
  std::optional<kv_state> state_;
  std::unique_ptr<forward_pass> forward_;
  std::unique_ptr<ep::group> group_;
  ep::expert_table table_;
  std::vector<uint32_t> index_;
};

}  // namespace troupe::kernels::measure
