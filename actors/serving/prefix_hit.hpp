// How much of a sequence's cached blocks is reused: the front plans with it, the batch checks and cuts with it.
#pragma once

#include <span>

#include "kernels/engine/engine.hpp"
#include "policies/hit_length.hpp"

namespace troupe::actors {

/// Names who takes a snapshot, over all fronts: a request's number in its front's incarnation.
uint64_t snapshot_owner(incarnation front, request_number request);

/// Tokens up to which cached blocks may be used (policies/resume): `known` tokens, the first `prompt_length` of them
/// its prompt. Needs facts.window > 0.
uint32_t prefix_hit_limit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known);

/// What is reused and replayed (policies/hit_length) when the first `blocks` blocks are there, and a window snapshot
/// behind so many blocks as `snapshots` says. A plain miss, with the reason, for numbers that do not fit.
policies::hit_length_plan prefix_hit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known,
                                     uint32_t blocks, bool exact, std::span<const uint32_t> snapshots = {});

}  // namespace troupe::actors
