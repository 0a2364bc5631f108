// The engine against a golden folder: every golden tensor, within the tolerance its golden.json advises.
#pragma once

#include <string>
#include <vector>

#include "kernels/model/model.hpp"
#include "kernels/ops.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels {

/// The comparison of one golden tensor.
struct verify_row {
  std::string name;
  double max_abs = 0;  // largest |got - want|; for whole numbers the number of differing values
  double max_rel = 0;  // largest |got - want| / |want| where |want| > 1e-3
  bool pass = false;
  std::string note;  // the tolerance used, or what is wrong
};

/// Runs the prompts of `golden_directory` (golden.json, golden.safetensors) and compares every tensor in it, in the
/// file's order of names. Tolerances: |got - want| <= 1e-3 + 1e-3 |want|; where only a rounding step can explain more
/// (logits and replay tensors), 3e-2 if every argmax agrees; tensors whose advice is `loose` 5e-2 and argmax agreement
/// at 99 % of rows; selections and ids exact; KV values exact but for a stated share one format step away. Errors:
/// unreadable folder, or a failing engine. A tensor that the runner cannot produce is a row that does not pass.
result<std::vector<verify_row>> verify_model(const model& m, operators& ops, const std::string& golden_directory,
                                             const clock_source& clock);

}  // namespace troupe::kernels
