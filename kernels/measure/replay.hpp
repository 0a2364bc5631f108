// Bounded replay against an undisturbed run: how often a hit in the KV store changes the next token.
//
// A bounded hit reads the global KV of the cached blocks and replays one window of tokens in front of its end, whose
// windows are truncated (policies/hit_length): cheap, and approximate. Both runs get the same prompt, with decoder
// replay as in serving, and then the same given continuation; their likeliest next tokens are compared row by row.
#pragma once

#include <vector>

#include "kernels/measure/document.hpp"
#include "kernels/measure/forward_runner.hpp"

namespace troupe::kernels::measure {

/// A sequence to compare on: the prompt is tokens[0, prompt), what follows is the continuation.
struct replay_case {
  std::vector<token_id> tokens;
  uint32_t prompt = 0;
  bool joined = false;  // of several documents
};

/// Which sequences to make of documents.
struct replay_shape {
  uint32_t blocks = 3;        // shortest prompt, in windows beyond what is never reused (one window and 6 tokens)
  uint32_t continuation = 0;  // longest continuation; 0: two windows
  uint32_t cases = 64;        // at most
};

/// Documents whose prompt is long enough for a hit, and, while there are fewer than `cases`, shorter ones of a kind
/// joined in order, as turns that follow (one begin of sentence). The prompt ends where an answer begins if the text
/// has answers, else as soon as it is long enough; the continuation is what follows, at least 32 tokens, at most
/// `continuation`.
std::vector<replay_case> replay_cases(const std::vector<document>& documents, uint32_t window, uint32_t context,
                                      const replay_shape& shape);

/// Counts over cases.
struct replay_agreement {
  uint64_t cases = 0, joined = 0, reused = 0;  // reused: tokens not run
  uint64_t rows = 0, same = 0;                 // over the continuation
  uint64_t first_rows = 0, first_same = 0;     // of them the first 32
  uint64_t flips_far = 0;                   // flips where the undisturbed run's two likeliest were over 0.5 nats apart
  double nats_exact = 0, nats_bounded = 0;  // loss of the given continuation, summed
  void add(const replay_agreement& o);
};

/// Runs one case both ways. A case without a hit is invalid_argument. The runner's context must hold the case.
/// `replayed_windows`: windows replayed in front of the hit's end: 1 is the bounded rule; encoder layers + 1 are exact.
result<replay_agreement> measure_replay(forward_runner& runner, const replay_case& c, uint32_t replayed_windows = 1);

}  // namespace troupe::kernels::measure
