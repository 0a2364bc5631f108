#include "runtime/sim/workload_source.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::sim {

std::vector<kernels::token_id> prompt_of(const workload_request& r, uint32_t vocabulary) {
  if (!r.prompt.empty()) return r.prompt;
  TROUPE_CHECK(vocabulary > 3, "a vocabulary of {}", vocabulary);
  TROUPE_CHECK(r.piece_tokens > 0 && uint64_t{r.piece_tokens} * r.pieces.size() >= r.prompt_tokens,
               "{} pieces of {} tokens for a prompt of {}", r.pieces.size(), r.piece_tokens, r.prompt_tokens);
  std::vector<kernels::token_id> out(r.prompt_tokens);
  const uint32_t range = vocabulary - 3;
  for (uint32_t p = 0; p < r.prompt_tokens; p += 4) {
    // Four tokens a draw; they never cross a piece unless its length is odd, and then each is drawn for itself.
    std::array<uint32_t, 4> words{};
    uint64_t drawn_piece = UINT64_MAX;
    uint32_t drawn_quad = 0;
    for (uint32_t i = p; i < std::min(p + 4, r.prompt_tokens); ++i) {
      const uint64_t id = r.pieces[i / r.piece_tokens];
      const uint32_t offset = i % r.piece_tokens;
      if (drawn_piece != id || drawn_quad != offset / 4) {
        words = philox({offset / 4, 0, 0, 11}, {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32)});
        drawn_piece = id;
        drawn_quad = offset / 4;
      }
      out[i] = static_cast<kernels::token_id>(3 + words[offset % 4] % range);
    }
  }
  return out;
}

}  // namespace troupe::sim
