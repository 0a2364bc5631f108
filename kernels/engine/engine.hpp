// The engine behind a rank: it runs step plans and reports step results. One interface for the CPU engine, the GPU
// engine and the cost model of the simulator.
//
// The engine is a standing participant of its expert-parallel group: it has a thread of its own, runs the plans that
// are submitted in order, and when it has no plan it keeps joining the group's steps with zero rows (or parks with it).
// A plan names sequences by slot, not by token: the engine holds the last sampled token of each slot, so plan N+1 is
// made while plan N runs. Steps are transactional: a slot's committed length moves only at the end of a step, and an
// abandoned step is simply run again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/engine/placement.hpp"
#include "kernels/ep/ep.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kernels {

using token_id = int32_t;
/// A place for one running sequence in the engine: 0 .. engine_limits::slots - 1. Reused after `close`.
using slot_id = strong_id<struct slot_id_tag, uint32_t>;
/// A page of `window` tokens in the engine's pool.
using page_id = strong_id<struct page_id_tag, uint32_t>;

/// How the next token is drawn. Gumbel-max with noise keyed (seed, position of the sampled token, token id), after
/// temperature, top_k and top_p; ties go to the lowest id. temperature 0 = argmax.
struct sampling_params {
  float temperature = 1.0f;
  float top_p = 1.0f;
  uint32_t top_k = 0;  // 0 = no limit
  uint64_t seed = 0;
  int32_t logprobs = -1;  // -1 none, 0 the sampled token's own, n that many alternatives too (at most 20)
  bool operator==(const sampling_params&) const = default;
};

/// When a sequence ends. Counts are of tokens after the original prompt.
struct stop_params {
  uint32_t max_tokens = 16;
  uint32_t min_tokens = 0;  // end-of-sequence and stop ids cannot be sampled before
  bool ignore_eos = false;
  std::vector<token_id> stop_ids;
  bool operator==(const stop_params&) const = default;
};

/// No place in the handoff memory.
inline constexpr uint32_t no_handoff = UINT32_MAX;

/// A sequence as another engine left it: its pages, filled by the caller and checked (check_handoff), and its state in
/// place `state` of the handoff memory, both untouched by others until the result of the plan that opens the slot.
/// kernels/engine/handoff.hpp says what a state is.
struct sequence_import {
  uint32_t rows = 0;  // tokens in place: one less than are known; 0: nothing is imported
  uint32_t state = no_handoff;
  std::vector<page_id> pages;  // the slot's page table so far: those that hold `rows` tokens
  bool operator==(const sequence_import&) const = default;
};

/// A window snapshot and its place in the snapshot memory: the window records of the encoder layers and of the first
/// decoder layer of positions [position - window, position), layer by layer, facts.snapshot_bytes in all, dense and
/// without a head. `position` is a multiple of the window, > 0; 0: none. What a snapshot is of, its keeper must know:
/// equal tokens up to `position` (and equal replay mode) give equal bytes.
struct snapshot_place {
  uint32_t position = 0;
  uint32_t place = 0;
  bool operator==(const snapshot_place&) const = default;
};

/// One that a step has written.
struct snapshot_taken {
  uint32_t position = 0;
  uint32_t place = 0;
  uint32_t crc = 0;  // CRC32C of its bytes
  bool operator==(const snapshot_taken&) const = default;
};

/// What an engine has written for another one.
struct sequence_export {
  uint32_t rows = 0;  // tokens in place; 0: nothing was exported
  uint32_t state_bytes = 0;
  uint64_t state_checksum = 0;
  std::vector<uint64_t> page_checksums;  // of the valid bytes of each page, in the order of the slot's table
  bool operator==(const sequence_export&) const = default;
};

/// The lasting facts of a sequence, given once when its slot is opened.
struct sequence_open {
  slot_id slot;
  std::vector<token_id> tokens;  // every token known now: the prompt, on a resume also what was already emitted
  uint32_t prompt_length = 0;    // original prompt length L0 <= tokens.size()
  sampling_params sampling;
  stop_params stop;
  bool speculate = true;
  sequence_import imported;  // rows > 0: the slot starts with these tokens in place, and its first step is a decode
  // position > 0: the slot starts committed to there, with these windows; its first chunk goes on from there, with at
  // least a window of tokens left, its pages before write_global_from filled by the caller, and decoder_from not before
  // it. The place is read by the time of the plan's first result.
  snapshot_place windows;
  bool operator==(const sequence_open&) const = default;
};

/// What one sequence does in each step of a plan (docs/decisions.md names the source: decided detail 8). Rows run are
/// [position, position + rows) of the slot's known tokens when rows > 0 (a prompt chunk; position must equal the slot's
/// committed length, or, when window rows are replayed, lie anywhere up to write_global_from with window_floor =
/// position; the pages before write_global_from then hold what a hit or a peer brought), or the last sampled token and
/// the drafts that the engine grants from `verify_budget` when rows == 0 (decode). A decode sequence without a page for
/// its next row waits: it computes nothing and is not in the result. A page that does not start before
/// write_global_from is zeroed when it is appended. Floors are remembered per slot: decode rows keep those of the
/// prompt's last chunk.
struct sequence_step {
  slot_id slot;
  uint32_t position = 0;            // first row of a chunk; ignored for decode
  uint32_t rows = 0;                // rows of the chunk; 0 = decode
  uint32_t window_floor = 0;        // no query sees a window row before this position
  uint32_t write_global_from = 0;   // rows before it are replayed: their stored global KV is read, never overwritten
  uint32_t decoder_from = 0;        // d: first position that decoder layers after the first run on
  uint32_t decoder_floor = 0;       // window floor of those decoder layers
  bool draft_context = true;        // write the drafter's context rows for rows that pass the last layers
  bool sample = false;              // sample after the last row (always done by decode)
  std::vector<page_id> pages;       // newly reserved pages, appended to the slot's page table before the step
  uint32_t export_to = no_handoff;  // place of the handoff memory for the state after the step; needs `sample`
  // Each is written by the step that commits up to or across its position, if there is one and the windows there do not
  // reach below the floor. Right only at or after write_global_from: before it windows are still being rebuilt.
  std::vector<snapshot_place> snapshots;
  bool operator==(const sequence_step&) const = default;
};

/// Up to `max_steps` steps. Chunks run in the first step only; further steps repeat the decode sequences until the
/// limit, a finish, or a newer plan is waiting.
struct step_plan {
  uint64_t id = 0;  // grows by one per plan of a rank
  std::vector<slot_id> close;
  std::vector<sequence_open> open;
  std::vector<sequence_step> sequences;
  uint32_t max_steps = 1;
  uint32_t verify_budget = 0;  // draft tokens verified per step, over all sequences
  bool operator==(const step_plan&) const = default;
};

/// Why a sequence ended; `none` while it runs. error: the model's logits for the next token are not all finite numbers;
/// tokens of the same step before it count. Sent between processes: append only.
enum class finish_reason : uint8_t { none = 0, stop = 1, length = 2, error = 3 };

/// A token and its log-probability (natural logarithm) under the sampling distribution.
struct token_logprob {
  token_id token = 0;
  float logprob = 0;
  bool operator==(const token_logprob&) const = default;
};

/// What a step brought for one sequence.
struct sequence_result {
  slot_id slot;
  uint32_t committed = 0;        // tokens whose KV is in place after the step
  uint32_t first_position = 0;   // position of tokens[0]
  std::vector<token_id> tokens;  // newly sampled; a finish by end-of-sequence or stop id includes that token
  std::vector<float> logprobs;   // of tokens, when asked for
  std::vector<std::vector<token_logprob>> top;  // alternatives per token, when asked for
  uint32_t drafted = 0, accepted = 0;           // drafts verified in this step, and accepted
  finish_reason finish = finish_reason::none;   // after a finish the slot computes nothing; close it
  sequence_export exported;                     // where the step asked for it and the sequence has not ended
  std::vector<snapshot_taken> snapshots;        // of those asked for
  bool operator==(const sequence_result&) const = default;
};

/// Where a step's time went, in nanoseconds of the engine thread. `gap` is what lay between the end of this rank's step
/// before and the begin of this one, up to where it meets its group: taking the plan, opening slots, and waiting for a
/// plan where none was there; 0 for the first. `gap_waited`: the part of it in which the thread waited for a core.
struct step_times {
  int64_t total = 0, attention = 0, dispatch = 0, experts = 0, combine = 0, sampling = 0, idle_before = 0;
  int64_t gap = 0, gap_waited = 0;
  bool operator==(const step_times&) const = default;
};

/// One per step that had rows of this rank, and one for every plan that only opened or closed slots. Plan 0: the group
/// failed while no plan of this rank was running or waiting.
struct step_result {
  uint64_t plan = 0;
  uint64_t step = 0;       // the group's step number
  uint64_t regroups = 0;   // which group it was: how many regroups the engine had been given when it took that group
  bool plan_done = false;  // last result of this plan
  std::vector<sequence_result> sequences;
  std::vector<slot_id> closed;  // slots (of the plan's close list) whose pages nobody touches any more
  uint32_t rows = 0;
  uint32_t micro_batches = 1;  // that the group's step ran in
  step_times times;
  errc failure{};  // 0, or peer_lost / timeout / cancelled / internal: the step was abandoned and emitted nothing; the
                   // plan and every plan queued behind it are dropped, each with one result (plan_done, failure)
  bool applied = true;  // with failure: the plan had begun, so its closes, opens and pages took effect
  std::string failure_text;
  std::vector<uint32_t> suspects;  // ranks of the running group that did not show up, with peer_lost
  bool operator==(const step_result&) const = default;
};

/// What became of one sequence's drafts in a step, for measuring (the scheduler gets the counts in sequence_result).
struct draft_outcome {
  slot_id slot;
  uint32_t first_position = 0;         // position of drafts[0]
  std::span<const token_id> drafts;    // those verified in the step
  std::span<const float> confidences;  // of each: the probability, as the drafter sees it, that it survives if the
                                       // drafts before it do
  uint32_t matched = 0;                // leading drafts equal to what the target sampled
  bool ended = false;                  // the sequence ended with the last match: what follows was never compared
};
/// Called on the engine thread once per sequence with verified drafts and step, before the step's result; it must not
/// block and must not call back into the engine. The spans are valid during the call.
using draft_observer = std::function<void(const draft_outcome&)>;

/// What an engine can hold. Fixed at construction.
struct engine_limits {
  uint32_t slots = 64;            // sequences at once
  uint32_t max_chunk = 512;       // prompt rows per step, over all sequences
  uint32_t max_context = 8192;    // tokens per sequence, prompt and output
  uint32_t pages = 1024;          // pool size
  uint32_t max_draft = 5;         // drafts per sequence and step
  uint32_t threads = 1;           // compute threads, the engine thread included
  uint32_t handoffs = 0;          // places in the handoff memory, for sequences that come from or go to other engines
  uint32_t micro_batch_rows = 0;  // a step in which some rank of a group has so many rows runs in two micro-batches,
                                  // one computing while the other's rows travel; 0: never
  uint32_t snapshots = 0;         // places in the snapshot memory
  bool operator==(const engine_limits&) const = default;
};

/// Facts about the loaded model that schedulers and the gateway need.
struct model_facts {
  std::string name;
  std::string fingerprint;  // hex; weights, config and numeric backend
  uint32_t window = 0;      // tokens per page
  uint32_t page_bytes = 0;
  uint32_t vocabulary = 0;
  uint32_t max_context = 0;
  uint32_t encoder_layers = 0, decoder_layers = 0;
  uint32_t experts = 0;
  bool has_drafter = false;
  token_id bos = 0, eos = 1, pad = 2;
  uint32_t handoff_bytes = 0;   // of one place in the handoff memory
  uint64_t snapshot_bytes = 0;  // of one place in the snapshot memory
  bool operator==(const model_facts&) const = default;
};

/// Thread rules: submit, stop, the placement functions and the observers may be called from any thread. The sink is
/// called on the engine thread, in order; it must not block and must not call back into the engine.
class engine {
 public:
  using sink = std::function<void(step_result)>;
  virtual ~engine() = default;

  virtual const model_facts& facts() const = 0;
  virtual const engine_limits& limits() const = 0;

  /// Queues a plan. At most two plans wait (one running, one next, one spare); a further one is `exhausted`. A plan
  /// that breaks the contract above (unknown slot, position beyond the committed length, too many rows, page out of
  /// range) is `invalid_argument`, names the field, and changes nothing.
  virtual result<void> submit(step_plan plan) = 0;

  /// Gives the engine the group and expert placement of a new epoch; the engine thread takes it between steps. Until
  /// then, and after a peer_lost, plans wait (the failed step's plan and those already queued behind it are reported as
  /// failed and dropped; see step_result::applied), and between such a failure and the next regroup submit is
  /// `unavailable`. The initial group is given at construction. Fails if the placement leaves an expert without a copy.
  /// A step of the group before may still fail after this returns, and takes the plans that wait with it; its result
  /// says so by step_result::regroups, and the engine goes on in the new group all the same.
  virtual result<void> regroup(std::unique_ptr<ep::group> group, ep::placement placement) = 0;

  /// Begins to load what `move` needs, a few experts per step (placement.hpp); `placement` says when it is staged.
  /// Takes the place of a move that is not flipping yet. A regroup ends it. Errors: stale (another group, another
  /// placement in force, or not a newer one), invalid_argument, exhausted (too few slots), unavailable (no group, or
  /// the move before is flipping).
  virtual result<void> stage(placement_move move) = 0;
  /// Every rank of the group has staged `version`: it takes effect on all of them with the next step. One rank that is
  /// told suffices. ok when it is in force already, stale when it is not staged here.
  virtual result<void> flip(placement_version version) = 0;
  /// Gives a move up; ok when there is none such, unavailable when it is flipping.
  virtual result<void> drop(placement_version version) = 0;
  virtual placement_status placement() const = 0;

  /// What the steps have counted since the last take (or regroup), if those are at least `min_steps`; otherwise only
  /// the numbers of steps are filled and counting goes on.
  virtual expert_window take_expert_window(uint64_t min_steps) = 0;

  /// Finishes the running step, then stops; plans not begun are dropped. Idempotent; also done by the destructor.
  virtual void stop() = 0;
};

}  // namespace troupe::kernels
