// What a stand-in engine is told, and the formulas that its tokens and states follow.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/serving/rank_host.hpp"
#include "runtime/base/rng.hpp"
#include "tests/actors/stand_in_blocks.hpp"

namespace troupe::actors {

class stand_in_host;
/// Memory of stand-ins by address, for pulls between them.
using stand_in_memories = std::map<std::string, stand_in_host*>;

/// What a state of `rows` tokens is.
inline uint64_t state_of(uint64_t seed, uint32_t rows) {
  const auto h = philox({UINT32_MAX, rows, 7, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return h[0] | uint64_t{h[1]} << 32 | 1;
}

/// Token that a request with this sampling seed has at this position, whoever computes it.
inline kernels::token_id token_at(uint64_t seed, uint32_t position) {
  const auto h = philox({position, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
  return h % 61 == 0 ? 1 : static_cast<kernels::token_id>(3 + h % 250);
}

struct stand_in_options {
  kernels::model_facts facts;
  kernels::engine_limits limits;
  nanoseconds load{std::chrono::milliseconds(20)}, regroup{std::chrono::milliseconds(5)};
  nanoseconds step{std::chrono::microseconds(500)}, per_row{std::chrono::microseconds(20)};
  nanoseconds deadline{std::chrono::milliseconds(200)};
  nanoseconds stage{std::chrono::milliseconds(30)};  // from the order to `staged`
  uint32_t expert_slots = 1000, redundant_experts = 1;
  std::function<bool()> stage_hangs;                     // asked at the end of loading: it never ends
  std::function<bool()> flip_hangs;                      // asked at the order to flip: the placement is never taken
  std::function<bool(const group_view&)> regroup_fails;  // asked at every regroup
  std::function<bool()> step_fails;  // asked at the end of a step: it fails, and nobody is suspected
  nanoseconds pull{std::chrono::milliseconds(1)}, per_page{std::chrono::microseconds(100)};
  std::function<result<void>()> pull_fails;     // asked when a pull begins
  std::shared_ptr<stand_in_memories> memories;  // without: nobody can be pulled from
  stand_in_options() {
    facts.name = "stand-in";
    facts.window = 16;
    facts.page_bytes = facts.snapshot_bytes = sizeof(uint64_t);
    facts.vocabulary = 256;
    facts.max_context = 512;
    facts.encoder_layers = facts.decoder_layers = 2;
    facts.experts = 8;
    facts.has_drafter = true;
    limits.slots = 8;
    limits.max_chunk = 24;
    limits.max_context = 512;
    limits.pages = 48;
    limits.max_draft = 3;
  }
};

}  // namespace troupe::actors
