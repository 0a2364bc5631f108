// How a model wants to be sampled where a request says nothing: its generation_config.json.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::gateway {

/// Values of a request's fields that it leaves out. Those of the OpenAI API unless the model's folder says otherwise.
struct sampling_defaults {
  float temperature = 1, top_p = 1;
  uint32_t top_k = 0;  // 0 = no limit
  bool operator==(const sampling_defaults&) const = default;
};

/// Reads `folder`/generation_config.json (Hugging Face): temperature, top_p, top_k, and do_sample, which as false means
/// temperature 0; other fields are ignored. Without the file: the defaults above. invalid_argument names the file and
/// the field that is not in its range.
result<sampling_defaults> read_sampling_defaults(const std::string& folder);

}  // namespace troupe::gateway
