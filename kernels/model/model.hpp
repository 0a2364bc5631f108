// A checkpoint ready to run: configuration, plan, weights, Engram hash, rotation frequencies, fingerprint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/model/config.hpp"
#include "kernels/model/engram_hash.hpp"
#include "kernels/model/plan.hpp"
#include "kernels/model/safetensors.hpp"
#include "kernels/model/weights.hpp"

namespace troupe::kernels {

/// Thread rules: const after construction, shared freely.
struct model {
  std::string directory;
  model_config config;
  model_plan plan;
  checkpoint files;
  model_weights weights;
  engram_hash hash;
  std::vector<float> plain_freqs;     // window-only layers and draft blocks
  std::vector<float> compress_freqs;  // layers with a compressed cache
};

/// Loads config.json, the safetensors files and the Engram hash of `directory`. Errors name the file and the field or
/// tensor.
result<std::shared_ptr<const model>> load_model(const std::string& directory);

/// Hex SHA-256 over what decides the numbers: config.json, safetensors headers, the first 4 KiB of every tensor, the
/// numeric backend's name (without instruction set) and the replay mode (either may be empty). Fields are
/// length-prefixed.
result<std::string> fingerprint(const model& m, const std::string& backend, const std::string& replay_mode);

}  // namespace troupe::kernels
