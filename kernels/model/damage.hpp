// Weights that are no numbers: what a damaged file looks like from inside.
#pragma once

#include <string>
#include <vector>

#include "kernels/model/safetensors.hpp"

namespace troupe::kernels {

/// A tensor that holds NaN or infinity.
struct damaged_tensor {
  std::string name, file;
  uint64_t first = 0;  // index of the first such value
  uint64_t values = 0;
};

/// How much is read: all tensors whose values stand for many others (f32, f16, bf16, and scales), which is a twentieth
/// of a released checkpoint; or the FP8 weights too.
enum class damage_scan : uint8_t { light, whole };

/// Damaged tensors by name; empty: none. Integers and packed FP4 cannot be damaged in this way. Reads at memory speed,
/// on the calling thread; touches the mapped pages.
std::vector<damaged_tensor> find_damage(const checkpoint& files, damage_scan scan);

/// "3 tensors hold values that are no numbers: A (12 values from 5), ..." with at most `most` names; "" for none.
std::string damage_text(const std::vector<damaged_tensor>& damage, size_t most = 5);

}  // namespace troupe::kernels
