// Entries of the decisions before and during prefill: chunk size, group budget, fit of the cost model, hit length.
#include "policies/hit_length.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/json/prefill_cost.hpp"
#include "policies/prefill_cost.hpp"

namespace troupe::policies {
namespace {

// On the command line the coefficients stand beside the other fields.
struct chunk_question {
  uint64_t budget_ns = 0, cached = 0;
  double a = 0, b = 0, d = 0;
  uint32_t max_tokens = chunk_size_input{}.max_tokens;
};

result<chunk_size_plan> chunk(const chunk_question& in) {
  return plan_chunk_size({in.budget_ns, in.cached, {in.a, in.b, in.d}, in.max_tokens});
}

struct budget_question {
  std::vector<uint64_t> budgets_ns;
};
struct budget_answer {
  uint64_t budget_ns = 0, rank = 0;
  std::string reason;
};

result<budget_answer> budget(const budget_question& in) {
  TROUPE_TRY(auto plan, plan_group_budget(in.budgets_ns));
  return budget_answer{plan.budget_ns, plan.rank, plan.reason};
}

struct fit_question {
  std::vector<cost_sample> samples;
  std::optional<prefill_cost> prior;
  double max_error = cost_fit_input{}.max_error;
};
struct fit_answer {
  double a = 0, b = 0, d = 0;
  uint64_t used = 0, outliers = 0;
  double median_error = 0;
  std::string reason;
};

result<fit_answer> fit(const fit_question& in) {
  TROUPE_TRY(auto plan, fit_prefill_cost({in.samples, in.prior, in.max_error}));
  return fit_answer{plan.cost.a, plan.cost.b, plan.cost.d, plan.used, plan.outliers, plan.median_error, plan.reason};
}

struct hit_question {
  uint32_t prompt_tokens = 0, block_hit_tokens = 0;
  bool snapshot = false;
  std::vector<uint32_t> snapshots;
  uint32_t block = hit_length_input{}.block, backtrack = hit_length_input{}.backtrack;
  std::optional<uint32_t> hit_limit;
  bool exact = false;
  uint32_t encoder_layers = hit_length_input{}.encoder_layers;
};

result<hit_length_plan> hit(const hit_question& q) {
  hit_length_input in{q.prompt_tokens, q.block_hit_tokens, q.snapshots, q.block,
                      q.backtrack,     q.hit_limit,        q.exact,     q.encoder_layers};
  if (q.snapshot && q.block > 0 && q.block_hit_tokens <= q.prompt_tokens) {
    // Wherever the hit ends there is one; the three newest boundaries would do, all of them is simpler to get right.
    for (uint64_t p = q.block; p <= q.block_hit_tokens; p += q.block) in.snapshots.push_back(static_cast<uint32_t>(p));
  }
  return plan_hit_length(in);
}

}  // namespace

template <>
struct json_fields<chunk_question> {
  static auto list() {
    return std::tuple{required("budget_ns", &chunk_question::budget_ns, "time of the step"),
                      optional("cached", &chunk_question::cached, "tokens before the chunk"),
                      required("a", &chunk_question::a, "ns per token^2"),
                      required("b", &chunk_question::b, "ns per token and cached token"),
                      required("d", &chunk_question::d, "ns per token"),
                      optional("max_tokens", &chunk_question::max_tokens, "cap, whatever the budget")};
  }
};
template <>
struct json_fields<chunk_size_plan> {
  static auto list() {
    return std::tuple{required("tokens", &chunk_size_plan::tokens, "size of the chunk; 0: not even one token fits"),
                      required("cost_ns", &chunk_size_plan::cost_ns, "by the cost model"),
                      required("reason", &chunk_size_plan::reason, "why")};
  }
};

template <>
struct json_fields<budget_question> {
  static auto list() {
    return std::tuple{required("budgets_ns", &budget_question::budgets_ns, "one per rank; 2^64 - 1: no opinion")};
  }
};
template <>
struct json_fields<budget_answer> {
  static auto list() {
    return std::tuple{required("budget_ns", &budget_answer::budget_ns, "of the group"),
                      required("rank", &budget_answer::rank, "lowest rank that asked for it"),
                      required("reason", &budget_answer::reason, "why")};
  }
};

template <>
struct json_fields<cost_sample> {
  static auto list() {
    return std::tuple{required("tokens", &cost_sample::tokens, "of the chunk"),
                      required("cached", &cost_sample::cached, "before it"),
                      required("time_ns", &cost_sample::time_ns, "measured"),
                      optional("own", &cost_sample::own, "of several chunks: sum of squares / tokens; 0: one chunk")};
  }
};
template <>
struct json_fields<fit_question> {
  static auto list() {
    return std::tuple{required("samples", &fit_question::samples, "measured steps, at least 8"),
                      optional("prior", &fit_question::prior, "decides what the samples leave open"),
                      optional("max_error", &fit_question::max_error, "largest acceptable median relative error")};
  }
};
template <>
struct json_fields<fit_answer> {
  static auto list() {
    return std::tuple{required("a", &fit_answer::a, "ns per token^2"),
                      required("b", &fit_answer::b, "ns per token and cached token"),
                      required("d", &fit_answer::d, "ns per token"),
                      required("used", &fit_answer::used, "samples with weight"),
                      required("outliers", &fit_answer::outliers, "samples set aside"),
                      required("median_error", &fit_answer::median_error, "relative, over all samples"),
                      required("reason", &fit_answer::reason, "why")};
  }
};

template <>
struct json_fields<hit_question> {
  static auto list() {
    return std::tuple{required("prompt_tokens", &hit_question::prompt_tokens, "length of the prompt"),
                      required("block_hit_tokens", &hit_question::block_hit_tokens, "stored prefix, whole blocks"),
                      optional("snapshot", &hit_question::snapshot, "a window snapshot lies wherever the hit ends"),
                      optional("snapshots", &hit_question::snapshots, "or: positions of window snapshots in tokens"),
                      optional("block", &hit_question::block, "tokens per block, also the window"),
                      optional("backtrack", &hit_question::backtrack, "tokens that speculation may take back"),
                      optional("hit_limit", &hit_question::hit_limit, "largest hit of a resume (see restart)"),
                      optional("exact", &hit_question::exact, "rebuild windows bit for bit"),
                      optional("encoder_layers", &hit_question::encoder_layers, "of the model, for exact")};
  }
};
template <>
struct json_fields<hit_length_plan> {
  static auto list() {
    return std::tuple{required("reuse", &hit_length_plan::reuse, "tokens that are not run"),
                      required("replay", &hit_length_plan::replay, "tokens run for their windows only"),
                      required("reason", &hit_length_plan::reason, "why")};
  }
};

void add_prefill_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<chunk_question>(
      "chunk", "largest prefill chunk within a time budget, by the cost model a q^2 + b q c + d q", chunk));
  out.push_back(make_entry<fit_question>("chunk_fit",
                                         "coefficients of the prefill cost model from measured steps, robustly", fit));
  out.push_back(
      make_entry<budget_question>("group_budget", "one chunk budget for a data-parallel group: the minimum", budget));
  out.push_back(make_entry<hit_question>(
      "hit_length", "how much of a cached prefix is reused, how much replayed for its windows", hit));
}

}  // namespace troupe::policies
