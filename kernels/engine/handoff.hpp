// How a running sequence moves from one engine to another: its pages, as they lie in the pool, and its state, dense
// bytes that say nothing about slots, pages or groups, so that both sides may differ in pool size and expert
// parallelism.
//
// A state of n rows in place (docs/decisions.md, detail 6), all little endian, for a window of W tokens:
//   handoff_head
//   for each backbone layer, then each draft block: the window records of positions [max(floor, n - W), n), ascending;
//     floor is the window floor up to the first decoder layer, the decoder floor behind it, the context's for the
//     drafter (whose rows are left out where its context does not reach n)
//   for each compressed source with ratio r > 1: the fp32 pairs (kv, gate) of positions [n - n % r, n)
// The sampler has no state beyond the tokens: its noise is keyed by position.
#pragma once

#include <span>

#include "kernels/engine/engine.hpp"
#include "kernels/model/state.hpp"

namespace troupe::kernels {

/// In front of a state. Written and read as it lies in memory.
struct handoff_head {
  uint64_t magic = 0;
  uint64_t model = 0;   // checksum of the fingerprint of the model and numeric backend
  uint64_t tokens = 0;  // checksum of the tokens in place
  uint32_t rows = 0;
  uint32_t window_floor = 0, decoder_floor = 0;
  uint32_t context_floor = 0, context_end = 0;
  uint32_t bytes = 0;  // of the state, this head included
};

/// CRC-64 of bytes.
uint64_t checksum(std::span<const std::byte> bytes);

/// Checksum of the valid bytes of a page that holds its first `rows` tokens: the entries and keys of complete groups.
/// `page` is plan.page_bytes long.
uint64_t page_checksum(const model_plan& plan, std::span<const std::byte> page, uint32_t rows);

/// The largest state of a sequence of this model, rounded up to 64 bytes.
uint32_t handoff_bytes(const model& m);

/// Writes the state of slot `slot` to `out` (facts.handoff_bytes of host memory); returns its size. `tokens`: the
/// sequence's, at least head.rows. The head's rows and floors are the caller's, the rest of it is filled in.
uint32_t write_handoff(const model& m, const model_facts& facts, operators& ops, place where, const kv_state& state,
                       uint32_t slot, std::span<const token_id> tokens, handoff_head head, std::span<std::byte> out);

/// The head of a state of `rows` tokens that suits this model. corrupt: not a state, or of another size;
/// invalid_argument: of another model or another length.
result<handoff_head> head_of(const model& m, const model_facts& facts, uint32_t rows, std::span<const std::byte> in);

/// The same, and it is the state of the sequence to be opened: invalid_argument for that of other tokens.
result<handoff_head> read_handoff_head(const model& m, const model_facts& facts, const sequence_open& open,
                                       std::span<const std::byte> in);

/// Puts a state with a checked head into slot `slot`.
void read_handoff(const model& m, operators& ops, place where, kv_state& state, uint32_t slot, const handoff_head& head,
                  std::span<const std::byte> in);

/// Whether blocks [first, first + count) of what was exported have arrived in `pages` (the whole table, in memory of a
/// pool of plan.page_bytes pages). corrupt names the first block that differs. The bytes of a page behind its valid
/// ones are zeroed. Any thread that owns the pages.
result<void> check_blocks(const model_plan& plan, const sequence_export& want, std::span<std::byte> pool,
                          std::span<const page_id> pages, size_t first, size_t count);

/// The same for all blocks and the state.
result<void> check_handoff(const model_plan& plan, const sequence_export& want, std::span<std::byte> pool,
                           std::span<const page_id> pages, std::span<const std::byte> state);

}  // namespace troupe::kernels
