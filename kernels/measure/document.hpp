// What a measurement reads: a text as token ids, with what is known about it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/engine/engine.hpp"

namespace troupe::kernels::measure {

/// A conversation or a plain text. tokens[0] is given to the model, never predicted.
struct document {
  uint32_t number = 0;  // of its line in the file
  std::vector<token_id> tokens;
  uint64_t bytes = 0;             // of the text, special tokens not counted
  std::vector<uint32_t> answers;  // of a conversation: positions of each answer's first token, ascending
  std::vector<uint32_t> ends;     // and one past each answer's end of sentence
};

}  // namespace troupe::kernels::measure
