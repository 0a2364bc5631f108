#include "kv/replay/prompt.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {

std::vector<int32_t> trace_prompt(std::span<const uint64_t> ids, uint64_t owner, uint32_t input_tokens,
                                  uint32_t block_tokens, uint32_t vocabulary, uint64_t seed) {
  TROUPE_CHECK(vocabulary > 3 && block_tokens > 0, "vocabulary {}, {} tokens per block", vocabulary, block_tokens);
  constexpr uint32_t shared_blocks = 16, own_prompts = 17;  // what a token's counter belongs to
  std::vector<int32_t> out(input_tokens);
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const bool shared = !ids.empty();
  for (uint32_t i = 0; i < input_tokens;) {
    const uint32_t offset = shared ? i % block_tokens : i;
    const uint64_t whose = shared ? ids[std::min<size_t>(i / block_tokens, ids.size() - 1)] : owner;
    const auto words = philox({static_cast<uint32_t>(whose), static_cast<uint32_t>(whose >> 32), offset / 4,
                               shared ? shared_blocks : own_prompts},
                              key);
    const uint32_t stop = shared ? std::min<uint32_t>(input_tokens, i - offset + block_tokens) : input_tokens;
    for (uint32_t w = offset % 4; w < 4 && i < stop; ++w, ++i)
      out[i] = static_cast<int32_t>(3 + words[w] % (vocabulary - 3));
  }
  return out;
}

}  // namespace troupe::kv
