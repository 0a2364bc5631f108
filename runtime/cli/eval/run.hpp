// Runs the measurements of `troupe eval`.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/cli/eval/report.hpp"

namespace troupe::cli {

/// What to measure and how much of it.
struct eval_request {
  std::string model, text;
  std::set<std::string> what;         // of loss, load, acceptance, replay, speed, samples, balance
  uint64_t limit_bytes = 256u << 10;  // of text, for loss and load
  uint32_t context = 4096;            // longest document; the model's limit if that is less
  uint32_t threads = 1;
  uint32_t prompts = 64, max_tokens = 128;  // of acceptance and speed
  bool acceptance_if_any = false;           // no error for a model without drafter
  uint32_t cases = 64;                      // of replay
  uint64_t seed = 1;
  std::vector<double> temperatures{0, 0.8};
  std::vector<uint32_t> concurrent{1, 8, 32};
  uint32_t repeats = 1;  // of every speed row
  kernels::measure::balance_options balance;
  std::string dump, compare;  // files of next tokens; empty: none
};

/// Loads the model and measures. `progress` is called now and then with a line for people. Errors name the file, the
/// measurement or the step that failed.
result<eval_report> evaluate(const eval_request& q, const clock_source& clock,
                             const std::function<void(const std::string&)>& progress);

/// Requests made of documents: the prompt is what comes before the first answer, of plain text the first half, at most
/// 64 tokens.
std::vector<kernels::measure::request> requests_of(const std::vector<kernels::measure::document>& documents,
                                                   double temperature, uint64_t seed, uint32_t max_tokens);

}  // namespace troupe::cli
