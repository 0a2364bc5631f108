// What `troupe eval` found out, for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/acceptance.hpp"
#include "kernels/measure/balance.hpp"
#include "kernels/measure/load.hpp"
#include "kernels/measure/loss.hpp"
#include "kernels/measure/replay.hpp"
#include "kernels/measure/speed.hpp"
#include "runtime/cli/eval/next_tokens.hpp"

namespace troupe::cli {

/// Acceptance at one temperature.
struct acceptance_row {
  double temperature = 0;
  kernels::measure::acceptance seen;
};

/// A question of the text and what the model says at temperature 0.
struct sample {
  std::string question, answer;
  bool ended = false;  // by the end of sentence, not by the longest length
};

/// Everything measured; what was not asked for is absent.
struct eval_report {
  std::string model, text, fingerprint, isa;
  uint32_t threads = 0;
  std::optional<kernels::measure::loss_sums> loss;
  std::optional<next_agreement> agreement;
  std::string agreement_with;
  std::vector<kernels::measure::layer_load> load;
  std::vector<acceptance_row> acceptance;
  std::optional<kernels::measure::replay_agreement> replay;
  std::optional<kernels::measure::load_time> load_time;
  std::vector<kernels::measure::decode_speed> decode;
  double prefill = 0;  // tokens/s
  uint32_t prefill_tokens = 0;
  std::vector<kernels::measure::balance_window> balance;
  kernels::measure::balance_options balance_options;
  std::vector<sample> samples;
};

/// One object with a member per measurement (docs/model.md has the fields).
nlohmann::ordered_json to_json(const eval_report& r);
/// The same as lines of text.
std::string to_text(const eval_report& r);

}  // namespace troupe::cli
