// Two summaries side by side.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe::sim {

/// Every number that both documents have, by path: {"a", "b", "change"} with change = b / a - 1 (null where a is 0),
/// the equal ones too; texts that differ under "texts"; lists are left out. invalid_argument if one is no summary.
result<nlohmann::ordered_json> compare_summaries(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

/// The comparison as lines for people: what differs by more than `least` (0.01: 1 %), one number a line.
std::string comparison_text(const nlohmann::ordered_json& comparison, double least);

}  // namespace troupe::sim
