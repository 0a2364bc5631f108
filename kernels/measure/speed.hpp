// How fast one engine in this process loads, reads prompts and writes answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/measure/engine_runner.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels::measure {

/// Nanoseconds from the files to an engine that takes plans.
struct load_time {
  nanoseconds model{}, engine{};  // load_model; make_cpu_engine with `limits`
  nanoseconds total() const { return model + engine; }
};

/// Loads `directory` and starts an engine once. Errors are those of loading.
result<load_time> measure_load_time(const std::string& directory, const engine_limits& limits,
                                    const clock_source& clock);

/// none: no drafts; fixed: all drafts of every step are verified; adaptive: as in serving (cpu_engine_config).
enum class drafting : uint8_t { none, fixed, adaptive };
const char* to_string(drafting d);

/// One row of the table.
struct decode_speed {
  uint32_t concurrent = 0;
  drafting drafts = drafting::none;
  uint64_t tokens = 0, drafted = 0, accepted = 0;
  nanoseconds elapsed{};
  double per_second() const { return static_cast<double>(tokens) * 1e9 / static_cast<double>(elapsed.count()); }
};

/// Runs requests, `concurrent` at once and 16 or more in all, to their ends, prompts included, and times it. They are
/// repeated as needed; their `speculate` is overwritten. The same requests, up to 48 tokens of each, run first: that
/// warms the engine up, and an adaptive one measures itself in it.
result<decode_speed> measure_decode(std::shared_ptr<const model> weights, uint32_t threads, uint32_t concurrent,
                                    drafting drafts, const std::vector<request>& requests, const clock_source& clock);

/// Prompt tokens per second: `prompt` alone, one token sampled, `max_chunk` rows a step, the best of `repeats`.
result<double> measure_prefill(std::shared_ptr<const model> weights, uint32_t threads, uint32_t max_chunk,
                               const std::vector<token_id>& prompt, uint32_t repeats, const clock_source& clock);

}  // namespace troupe::kernels::measure
