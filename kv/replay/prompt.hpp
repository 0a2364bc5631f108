// Token ids for traces: a trace tells which prompts begin alike, not what they say.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::kv {

/// A prompt of `input_tokens` ids in [3, vocabulary). Block i of prompts with the same id at i has the same tokens, so
/// prompts share prefixes exactly as their ids do; the last block may be partial and is then the beginning of that
/// block. Without ids: a prompt of its own, by `owner`. vocabulary > 3, block_tokens > 0; tokens beyond the last id belong
/// to the last id. Pure.
std::vector<int32_t> trace_prompt(std::span<const uint64_t> ids, uint64_t owner, uint32_t input_tokens,
                                  uint32_t block_tokens, uint32_t vocabulary, uint64_t seed);

}  // namespace troupe::kv
