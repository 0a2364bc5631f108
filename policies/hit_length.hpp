// How much of a prompt's cached prefix is reused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// All positions in tokens.
struct hit_length_input {
  uint32_t prompt_tokens = 0;
  uint32_t block_hit_tokens = 0;    // prefix found in the block store: a multiple of `block`, at most the prompt
  std::vector<uint32_t> snapshots;  // positions with a snapshot of the sliding windows: multiples of `block`, any order
  uint32_t block = 128;             // also the window
  uint32_t backtrack = 6;           // tokens that speculation may take back
  /// Largest hit, for a resume (resume_plan::hit_limit). Without it the last block + backtrack tokens are never reused.
  std::optional<uint32_t> hit_limit;
  bool exact = false;  // rebuild windows bit for bit instead of by a truncated replay
  uint32_t encoder_layers =
      20;  // for exact: windows of the encoder and of the first decoder layer depend on that many blocks
};

/// Tokens [0, reuse) are not run. Tokens [reuse, reuse + replay) are run for their windows only: their global KV is
/// read, never written. (reuse + replay) / block blocks are read.
struct hit_length_plan {
  uint32_t reuse = 0, replay = 0;
  std::string reason;
  bool snapshot = false;  // the windows at `reuse` come from a snapshot there; else the replay is enough for them
};

/// L1 = min(block hit, floor((prompt - block - backtrack) / block) * block). Bounded: reuse L1 with a snapshot at L1,
/// else L1 - block with one block of replay (DeepSeek's published rule; the replayed windows are truncated, so bytes
/// may differ between hits). Exact: reuse = max(newest snapshot <= L1, L1 - (encoder_layers + 1) * block). Zero or less
/// is a plain miss and nothing is read. Without snapshots the exact replay loses every hit of up to (encoder_layers +
/// 1) blocks.
result<hit_length_plan> plan_hit_length(const hit_length_input& in);

}  // namespace troupe::policies
