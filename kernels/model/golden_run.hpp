// Runs what a golden folder asks for and collects the engine's answers under the golden tensors' names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/model/forward.hpp"
#include "kernels/model/safetensors.hpp"

namespace troupe::kernels {

/// Which runs a golden.json asks for (its `roles`).
struct golden_roles {
  std::vector<uint32_t> lengths;  // prompts, by length
  std::vector<uint32_t> greedy, dspark, decoder_replay;
  uint32_t detail = 0, index = 0;                                      // prompts with inner tensors; 0 = none
  uint32_t encoder_prompt = 0, encoder_cached = 0, encoder_start = 0;  // prompt 0 = no encoder replay
};

/// An answer, flat in the golden tensor's order. Integers and floats are kept apart.
struct golden_answer {
  std::vector<float> floats;
  std::vector<int64_t> whole;
};
using golden_answers = std::map<std::string, golden_answer>;

/// corrupt if golden.json lacks the roles or a list is not one.
result<golden_roles> read_golden_roles(const std::string& text, const std::string& source);

/// Token ids of a tensor of I32 values.
result<std::vector<int32_t>> golden_ids(const checkpoint& golden, const std::string& name);

/// Runs everything in `roles`. Errors are those of the forward pass or of missing golden inputs.
result<golden_answers> run_golden(const model& m, operators& ops, place where, const checkpoint& golden,
                                  const golden_roles& roles, const clock_source& clock);

}  // namespace troupe::kernels
