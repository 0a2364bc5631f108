// The prompts on which "same tokens, any layout" is tested, and placements to test it with.
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "runtime/base/rng.hpp"
#include "tests/kernels/engine_fixture.hpp"

namespace troupe::kernels::testing_support {

inline std::shared_ptr<const model> identity_model() {
  static const auto m = load_model(TROUPE_TEST_DATA "/tiny-v41");
  TROUPE_CHECK(m.has_value(), "{}", m.error().message);
  return *m;
}

inline engine_limits identity_limits(uint32_t slots, uint32_t max_chunk, uint32_t threads = 1) {
  return {.slots = slots,
          .max_chunk = max_chunk,
          .max_context = 384,
          .pages = slots * 24,
          .max_draft = 5,
          .threads = threads};
}

/// Prompts of many lengths, half of them sampled hot, all with 20 alternatives, so that equal results mean equal
/// logits.
inline std::vector<prompt> mixed_prompts(size_t count) {
  std::vector<prompt> out;
  for (size_t i = 0; i < count; ++i) {
    prompt p;
    const uint32_t length = 1 + static_cast<uint32_t>(i * 37 % 131);
    p.tokens = random_tokens(1000 + i, length, 512);
    p.sampling = {.temperature = i % 2 ? 0.8f : 0.0f,
                  .top_p = i % 3 ? 1.0f : 0.9f,
                  .top_k = i % 5 ? 0u : 40u,
                  .seed = 7 * i + 1,
                  .logprobs = 20};
    p.stop.max_tokens = 4 + i % 9;
    out.push_back(std::move(p));
  }
  return out;
}

/// Every bit of an output as one line: tokens, and the bits of all log probabilities.
inline std::string text_of(const completion& c) {
  std::string s = fmt::format("finish {}", static_cast<int>(c.finish));
  for (token_id t : c.tokens) s += fmt::format(" {}", t);
  for (float l : c.logprobs) s += fmt::format(" {:08x}", std::bit_cast<uint32_t>(l));
  for (const auto& alternatives : c.top)
    for (const token_logprob& a : alternatives)
      s += fmt::format(" {}:{:08x}", a.token, std::bit_cast<uint32_t>(a.logprob));
  return s;
}

/// `copies` (at most `ranks`) copies of every expert on ranks drawn from the seed.
inline ep::placement permuted_placement(const model& m, uint32_t ranks, uint32_t copies, uint64_t seed) {
  ep::placement p = initial_placement(m, ranks);
  rng r(seed);
  for (auto& layer : p.copies)
    for (auto& where : layer) {
      std::vector<uint32_t> all(ranks);
      for (uint32_t i = 0; i < ranks; ++i) all[i] = i;
      for (uint32_t i = 0; i + 1 < ranks; ++i) std::swap(all[i], all[i + r.below(ranks - i)]);
      where.assign(all.begin(), all.begin() + std::min(copies, ranks));
      std::sort(where.begin(), where.end());
    }
  return p;
}

}  // namespace troupe::kernels::testing_support
