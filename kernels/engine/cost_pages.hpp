// What a cost engine keeps in place of keys and values: hashes of the tokens, in pages and in hand-over states.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/engine/engine.hpp"

namespace troupe::kernels {

/// A hash with all bits mixed.
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// The hash of a sequence of tokens, from that of the tokens before the last one. 0: of none.
constexpr uint64_t chain_after(uint64_t before, token_id token) {
  return mix_bits(before * 0x9e3779b97f4a7c15ull + static_cast<uint32_t>(token) + 1);
}
/// Over all of them.
uint64_t chain_of(std::span<const token_id> tokens);

/// What a page holds of a token: a part of the chain up to it. Never 0, which is an empty page's.
constexpr uint32_t tag_of(uint64_t chain) { return static_cast<uint32_t>(chain >> 32) | 1u; }

/// A state in the handoff memory. Written and read as it lies in memory.
struct cost_state_head {
  uint64_t magic = 0;
  uint64_t model = 0;  // checksum of the fingerprint
  uint64_t chain = 0;  // of the tokens in place
  uint32_t rows = 0, bytes = 0;
  uint64_t damage = 0;  // of a sequence that has read pages with another content
  uint64_t unused[3] = {};
};

/// Writes the state of `rows` tokens to `out` (cost_state_bytes); returns its size.
uint32_t write_cost_state(const model_facts& facts, uint32_t rows, uint64_t chain, uint64_t damage,
                          std::span<std::byte> out);
/// The head of a state of `rows` tokens of this model; errors as check_cost_state.
result<cost_state_head> read_cost_state(const model_facts& facts, uint32_t rows, std::span<const std::byte> in);

}  // namespace troupe::kernels
