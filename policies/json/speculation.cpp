// Entries of the decisions about speculative decoding: lengths to verify, calibration, the off-switch.
#include "policies/speculation.hpp"
#include "policies/confidence.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/verify_lengths.hpp"

namespace troupe::policies {
namespace {

struct lengths_question {
  std::vector<step_cost_point> verify, draft;
  uint32_t stairs = 0;
  std::vector<std::vector<double>> stale, current;
  std::vector<std::vector<std::vector<double>>> earlier;
  uint32_t other_rows = 0;
  uint32_t max_drafts = verify_capacity_input{}.max_drafts;
};
struct lengths_answer {
  uint32_t capacity = 0;
  std::vector<uint32_t> lengths;
  double tokens = 0, cost_ns = 0;
  std::string reason;
};

confidence_rows flatten(const std::vector<std::vector<double>>& rows) {
  confidence_rows out;
  for (const auto& r : rows) out.width = std::max(out.width, static_cast<uint32_t>(r.size()));
  for (const auto& r : rows) {
    out.drafts.push_back(static_cast<uint32_t>(r.size()));
    for (uint32_t k = 0; k < out.width; ++k) out.value.push_back(k < r.size() ? static_cast<float>(r[k]) : 0);
  }
  return out;
}

result<lengths_answer> lengths(const lengths_question& in) {
  TROUPE_TRY(auto table, make_step_cost_table(in.verify, in.draft, in.stairs));
  auto capacity_of = [&]() -> result<verify_capacity_plan> {
    verify_capacity_input step{flatten(in.stale), in.other_rows, in.max_drafts};
    if (in.earlier.empty()) return plan_verify_capacity(table, step);
    survival_memory memory;
    for (const auto& older : in.earlier) {
      TROUPE_TRY(auto unused, plan_verify_capacity(table, {flatten(older), 0, in.max_drafts}, memory));
      (void)unused;
    }
    return plan_verify_capacity(table, step, memory);
  };
  TROUPE_TRY(auto capacity, capacity_of());
  TROUPE_TRY(auto plan, assign_verify_lengths(flatten(in.current), capacity.capacity));
  return lengths_answer{capacity.capacity, plan.lengths, plan.tokens, capacity.cost_ns,
                        capacity.reason + "; " + plan.reason};
}

struct calibration_question {
  std::vector<confidence_sample> samples;
};

struct switch_question {
  std::vector<step_cost_point> verify, draft;
  uint32_t stairs = 0;
  uint32_t requests = 0, other_rows = 0;
  std::vector<speculation_sample> steps;
};

// The switch is state plus a stream of steps: the answer is what holds after them.
result<speculation_plan> after_steps(const switch_question& in) {
  TROUPE_TRY(auto table, make_step_cost_table(in.verify, in.draft, in.stairs));
  speculation_cell cell;
  for (const auto& s : in.steps) {
    if (auto ok = observe(cell, table, s); !ok) return fail(ok.error());
  }
  return plan_speculation(cell, table, in.requests, in.other_rows);
}

}  // namespace

template <>
struct json_fields<step_cost_point> {
  static auto list() {
    return std::tuple{required("n", &step_cost_point::n, "rows or requests"),
                      required("ns", &step_cost_point::ns, "profiled time")};
  }
};
template <>
struct json_fields<lengths_question> {
  static auto list() {
    return std::tuple{
        required("verify", &lengths_question::verify, "profiled target step by rows; empty: nothing is trimmed"),
        optional("draft", &lengths_question::draft, "profiled draft pass by requests"),
        optional("stairs", &lengths_question::stairs, "up to here the next profiled size is paid for"),
        required("stale", &lengths_question::stale,
                 "[request][draft] confidences of two steps ago; 1 for new requests"),
        required("current", &lengths_question::current, "[request][draft] confidences of this step"),
        optional("earlier", &lengths_question::earlier,
                 "[step][request][draft] older ones, oldest first: the capacity goes by their mean"),
        optional("other_rows", &lengths_question::other_rows, "rows of the step that are not of these requests"),
        optional("max_drafts", &lengths_question::max_drafts, "cap on the total")};
  }
};
template <>
struct json_fields<lengths_answer> {
  static auto list() {
    return std::tuple{
        required("capacity", &lengths_answer::capacity, "drafts to verify in all, by the stale confidences"),
        required("lengths", &lengths_answer::lengths, "per request, by the current ones"),
        required("tokens", &lengths_answer::tokens, "expected tokens of the step"),
        required("cost_ns", &lengths_answer::cost_ns, "expected time of the step"),
        required("reason", &lengths_answer::reason, "why")};
  }
};

template <>
struct json_fields<confidence_sample> {
  static auto list() {
    return std::tuple{required("logits", &confidence_sample::logits, "of the confidence head, per draft"),
                      required("accepted", &confidence_sample::accepted, "drafts that survived")};
  }
};
template <>
struct json_fields<calibration_question> {
  static auto list() {
    return std::tuple{required("samples", &calibration_question::samples, "verified blocks, at least 100")};
  }
};
template <>
struct json_fields<calibration_plan> {
  static auto list() {
    return std::tuple{
        required("temperatures", &calibration_plan::temperatures, "per draft position"),
        required("error_before", &calibration_plan::error_before, "calibration error of the survival, per position"),
        required("error_after", &calibration_plan::error_after, "with these temperatures"),
        required("reason", &calibration_plan::reason, "why")};
  }
};

template <>
struct json_fields<speculation_sample> {
  static auto list() {
    return std::tuple{required("drafted", &speculation_sample::drafted, "the step had a draft pass"),
                      required("requests", &speculation_sample::requests, "of the step"),
                      optional("verified", &speculation_sample::verified, "drafts, over all requests"),
                      required("tokens", &speculation_sample::tokens, "emitted, over all requests"),
                      optional("other_rows", &speculation_sample::other_rows, "rows of prompts"),
                      required("ns", &speculation_sample::ns, "measured time")};
  }
};
template <>
struct json_fields<switch_question> {
  static auto list() {
    return std::tuple{
        required("verify", &switch_question::verify, "profiled target step by rows"),
        optional("draft", &switch_question::draft, "profiled draft pass by requests"),
        optional("stairs", &switch_question::stairs, "up to here the next profiled size is paid for"),
        required("requests", &switch_question::requests, "of the next step"),
        optional("other_rows", &switch_question::other_rows, "of the next step"),
        required("steps", &switch_question::steps, "measured, oldest first, of one batch size and context length")};
  }
};
template <>
struct json_fields<speculation_plan> {
  static auto list() {
    return std::tuple{required("draft", &speculation_plan::draft, "in the next step"),
                      required("gain", &speculation_plan::gain, "tokens per time with drafting over without"),
                      required("reason", &speculation_plan::reason, "why")};
  }
};

void add_speculation_entries(std::vector<policy_entry>& out) {
  out.push_back(
      make_entry<lengths_question>("verify_lengths", "how many drafted tokens of each request are verified", lengths));
  out.push_back(
      make_entry<calibration_question>("confidence", "temperatures of a drafter's confidence head from verified blocks",
                                       [](const calibration_question& q) { return calibrate_confidence(q.samples); }));
  out.push_back(make_entry<switch_question>("speculation", "whether the next step drafts at all, after measured steps",
                                            after_steps));
}

}  // namespace troupe::policies
