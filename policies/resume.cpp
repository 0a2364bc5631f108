#include "policies/resume.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe::policies {

resume_plan plan_resume(const resume_input& in) {
  TROUPE_CHECK(in.window > 0, "window {}", in.window);
  TROUPE_CHECK(in.known >= in.prompt_length, "known {} prompt {}", in.known, in.prompt_length);
  const int64_t w = in.window;
  const int64_t by_prompt = int64_t{in.prompt_length} - w;
  const int64_t by_known = int64_t{in.known} - int64_t{in.decoder_layers} * w;
  const int64_t d = std::max({int64_t{0}, by_prompt, by_known});
  const int64_t limit = d <= in.backtrack ? 0 : (d - in.backtrack) / w * w;
  const char* why = d == 0 ? "short" : d == by_prompt ? "prompt minus window" : "known minus decoder windows";
  return {static_cast<uint32_t>(d), static_cast<uint32_t>(limit), fmt::format("d {} ({})", d, why)};
}

}  // namespace troupe::policies
