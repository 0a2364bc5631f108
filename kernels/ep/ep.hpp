// Expert parallelism: how the ranks of a group meet inside a step. One interface for one rank (no bytes move), for
// several ranks over the transport, and for GPUs. All calls are made by the engine thread, in the same order on every
// rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kernels::ep {

/// Sizes that every rank of a group must agree on; they fix the buffers.
struct group_shape {
  uint32_t ranks = 1;
  uint32_t hidden = 0;
  uint32_t top_k = 0;          // largest number of experts per row over all MoE layers (drafter included)
  uint32_t max_rows = 0;       // rows per rank and exchange: max_chunk + slots * (1 + max_draft)
  uint32_t notes = 0;          // most numbers that a rank sends along with a combine
  uint32_t micro_batches = 1;  // 1 or 2: exchanges under way at once; the second takes half of max_rows, rounded up
  /// Most rows of a rank in an exchange of micro-batch 0 or 1.
  uint32_t rows_of(uint32_t micro) const { return micro == 0 ? max_rows : (max_rows + 1) / 2; }
  bool operator==(const group_shape&) const = default;
};

/// First exchange of a step. The group runs the OR of the flags, the minimum of the budgets, the earliest flip and the
/// maximum of the rest.
struct step_header {
  static constexpr uint64_t no_flip = UINT64_MAX;
  bool has_work = false;
  bool encoder = false;  // some rank runs encoder layers
  bool decoder = false;  // some rank runs decoder layers
  bool draft = false;    // some rank runs the draft pass
  bool leaving = false;  // some rank stops after this step
  uint32_t micro_batches = 1;
  uint64_t chunk_budget_ns = UINT64_MAX;  // minimum
  uint64_t flip_step = no_flip;           // step at which a new expert placement takes effect
  placement_version flip_version;         // which one; of two at the same step the newer
  bool moving = false;                    // some rank still loads expert copies
  bool operator==(const step_header&) const = default;
};

/// Where the copies of each expert live. MoE layers are the backbone's layers in order, then the drafter's blocks.
struct placement {
  placement_version version;
  std::vector<std::vector<std::vector<uint32_t>>>
      copies;  // [MoE layer][logical expert] -> ranks, ascending, none empty
  bool operator==(const placement&) const = default;
};

/// How rows are spread over the copies of an expert. The result of a step never depends on it.
struct split_options {
  /// Steps between two plans of the split (policies/copy_split), each made from what the group counted in between: 1 =
  /// from the step before. 0: evenly, by the position of the row.
  uint32_t window = 0;
};

/// One row's way to one expert.
struct route {
  uint32_t rank = 0;    // that holds the copy
  uint32_t expert = 0;  // logical expert of the layer
  float weight = 0;     // applied by the expert before w2
};

/// What arrived for the experts of this rank: item i is one (row, expert) pair. `rows` is dense: source ranks
/// ascending, rows of one source ascending. Items are sorted by (source rank, row, k), so that their order does not
/// depend on arrival. With one rank `rows` is x itself.
struct received {
  struct item {
    uint32_t row = 0;     // into `rows`
    uint32_t expert = 0;  // logical
    float weight = 0;
  };
  std::span<const float> rows;  // [n, hidden]; each row once per source rank and destination, whatever its experts
  std::span<const item> items;
};

/// Thread rules: one thread at a time, the engine's; `wake` and `end` may be called from any thread. Every exchange
/// returns within the step deadline: with the result, or with peer_lost after which `suspects` names the ranks that did
/// not show up, and the group is unusable (every call fails the same way) until a new one is made for the next epoch. A
/// call out of order (combine without dispatch, two dispatches in a row) or with wrong sizes is invalid_argument and
/// changes nothing. All ranks make the same calls in the same order: begin_step, then any number of (dispatch, combine)
/// pairs.
///
/// Both are made of two halves, so that the rank computes while bytes travel: dispatch_send, dispatch_wait,
/// combine_send, combine_wait, in this order for each micro-batch. The micro-batches of a step do not wait for each
/// other: between two halves of one, any halves of the other may come.
class group {
 public:
  virtual ~group() = default;
  virtual const group_shape& shape() const = 0;
  virtual uint32_t rank() const = 0;

  /// Publishes this rank's header and returns the group's. While nobody has work it parks (sleeping) at this step and
  /// returns, with has_work false and nothing to run, when some rank, this one included, has been woken by `wake`: call
  /// it again with what there is to do now. A header with `leaving` or `moving` set or with a flip never parks. Other
  /// results: peer_lost (also while parked), cancelled after `end`.
  virtual result<step_header> begin_step(const step_header& mine) = 0;

  /// Wakes the group if begin_step is parked, or keeps the next one from parking. Callable from any thread.
  virtual void wake() = 0;

  /// Ends the group on this rank: the call that is running, and every later one, returns cancelled. Callable from any
  /// thread, idempotent. Peers see a rank that does not show up, or, if it said so before, one that has left.
  virtual void end() = 0;

  /// Sends x [rows, hidden] to the ranks named by routes [rows, k] (row-major, k <= top_k; zero rows is allowed). x
  /// stays as it is until dispatch_wait, with one rank until combine_send. `layer` counts exchanges of the micro-batch
  /// in the step and is checked.
  virtual result<void> dispatch_send(uint32_t micro, uint32_t layer, std::span<const float> x,
                                     std::span<const route> routes, uint32_t k) = 0;
  /// What the other ranks, and this one, sent here. Valid until the micro-batch's next dispatch_send.
  virtual result<received> dispatch_wait(uint32_t micro) = 0;

  /// Sends y [items, hidden], one vector per item that was received, home. `out` [rows, k, hidden] of the dispatch is
  /// filled until combine_wait returns: the vector of row r's k-th route. The caller adds them in the order of k.
  /// `layer` as in dispatch. `notes`, at most shape().notes numbers, go to every rank along with the vectors.
  virtual result<void> combine_send(uint32_t micro, uint32_t layer, std::span<const float> y, std::span<float> out,
                                    std::span<const uint32_t> notes) = 0;
  virtual result<void> combine_wait(uint32_t micro) = 0;

  /// The notes of `from` (this rank too) that came with the micro-batch's last combine. Valid until its next
  /// combine_send.
  virtual std::span<const uint32_t> notes(uint32_t micro, uint32_t from) const = 0;

  /// Both halves of the first micro-batch at once.
  result<received> dispatch(uint32_t layer, std::span<const float> x, std::span<const route> routes, uint32_t k) {
    if (auto r = dispatch_send(0, layer, x, routes, k); !r) return fail(std::move(r.error()));
    return dispatch_wait(0);
  }
  result<void> combine(uint32_t layer, std::span<const float> y, std::span<float> out,
                       std::span<const uint32_t> notes = {}) {
    if (auto r = combine_send(0, layer, y, out, notes); !r) return r;
    return combine_wait(0);
  }

  /// Ranks that did not show up in the call that returned peer_lost.
  virtual std::vector<uint32_t> suspects() const = 0;
};

}  // namespace troupe::kernels::ep
