// The engine's plan, result and limits as parts of messages.
#pragma once

#include "actors/protocol/fields.hpp"
#include "kernels/engine/engine.hpp"

namespace troupe::kernels {

TROUPE_FIELDS(sampling_params, temperature, top_p, top_k, seed, logprobs)
TROUPE_FIELDS(stop_params, max_tokens, min_tokens, ignore_eos, stop_ids)
TROUPE_FIELDS(sequence_import, rows, state, pages)
TROUPE_FIELDS(sequence_export, rows, state_bytes, state_checksum, page_checksums)
TROUPE_FIELDS(snapshot_place, position, place)
TROUPE_FIELDS(snapshot_taken, position, place, crc)
TROUPE_FIELDS(sequence_open, slot, tokens, prompt_length, sampling, stop, speculate, imported, windows)
TROUPE_FIELDS(sequence_step, slot, position, rows, window_floor, write_global_from, decoder_from, decoder_floor,
              draft_context, sample, pages, export_to, snapshots)
TROUPE_FIELDS(step_plan, id, close, open, sequences, max_steps, verify_budget)
TROUPE_FIELDS(token_logprob, token, logprob)
TROUPE_FIELDS(sequence_result, slot, committed, first_position, tokens, logprobs, top, drafted, accepted, finish,
              exported, snapshots)
TROUPE_FIELDS(step_times, total, attention, dispatch, experts, combine, sampling, idle_before, gap, gap_waited)
TROUPE_FIELDS(step_result, plan, step, regroups, plan_done, sequences, closed, rows, micro_batches, times, failure,
              applied, failure_text, suspects)
TROUPE_FIELDS(engine_limits, slots, max_chunk, max_context, pages, max_draft, threads, handoffs, micro_batch_rows,
              snapshots)
TROUPE_FIELDS(model_facts, name, fingerprint, window, page_bytes, vocabulary, max_context, encoder_layers,
              decoder_layers, experts, has_drafter, bos, eos, pad, handoff_bytes, snapshot_bytes)

}  // namespace troupe::kernels
