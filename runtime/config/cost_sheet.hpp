// The sections of a cost file before they are prices: what the model needs, what the hardware offers.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "policies/step_cost.hpp"
#include "runtime/config/schema.hpp"

namespace troupe::config {

/// Rates of one rank's hardware, by the data sheet.
struct hardware_sheet {
  uint64_t memory = 0;               // bytes per second
  uint64_t gemm = 0, attention = 0;  // operations per second
};
/// Part of them that is reached, in millionths: fitted.
struct efficiency_sheet {
  uint32_t memory = 0, gemm = 0, attention = 0, hidden = 0;
};
/// Times that do not depend on the work.
struct fixed_sheet {
  std::chrono::nanoseconds step{0}, draft{0};
};
/// Bytes and operations of the model.
struct model_sheet {
  uint32_t encoder_layers = 0, decoder_layers = 0, experts = 0, top_k = 0;
  uint64_t encoder_bytes = 0, decoder_bytes = 0, head_bytes = 0, expert_bytes = 0, context_bytes = 0;
  uint64_t encoder_row = 0, decoder_row = 0, head_row = 0, encoder_attention = 0, decoder_attention = 0,
           encoder_position = 0, decoder_position = 0, expert_pair = 0, draft_row = 0;  // operations
  uint32_t dispatch_bytes = 0, combine_bytes = 0;
};
/// All of them.
struct cost_sheet {
  hardware_sheet hardware;
  efficiency_sheet efficiency;
  fixed_sheet fixed;
  model_sheet model;
};

/// The tables of keys.
const config::section<hardware_sheet>& hardware_table();
const config::section<efficiency_sheet>& efficiency_table();
const config::section<fixed_sheet>& fixed_table();
const config::section<model_sheet>& cost_model_table();
const config::section<policies::kv_sizes>& kv_table();
const config::section<policies::expert_skew>& skew_table();
const config::section<policies::cost_model>& tokens_table();
const config::section<policies::fabric>& fabric_table();
const config::section<policies::cost_point>& point_table();

/// Prices of work from bytes over rates and operations over rates. Whole numbers throughout.
void fill_rates(const cost_sheet& sheet, policies::step_rates& rates);

/// "0.284" -> 284,000 millionths; 0 to 1, at most six decimals.
result<uint32_t> parse_fraction(const std::string& text);

}  // namespace troupe::config
