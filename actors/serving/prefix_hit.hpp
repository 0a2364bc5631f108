// How much of a sequence's cached blocks is reused: the front plans with it, the batch checks and cuts with it.
#pragma once

#include "kernels/engine/engine.hpp"
#include "policies/hit_length.hpp"

namespace troupe::actors {

/// Tokens up to which cached blocks may be used (policies/resume): `known` tokens, the first `prompt_length` of them
/// its prompt. Needs facts.window > 0.
uint32_t prefix_hit_limit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known);

/// What is reused and replayed (policies/hit_length) when the first `blocks` blocks are there. A plain miss, with the
/// reason, for numbers that do not fit.
policies::hit_length_plan prefix_hit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known,
                                     uint32_t blocks, bool exact);

}  // namespace troupe::actors
