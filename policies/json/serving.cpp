// Entries of the decisions that the serving actors take: whose turn it is, share of a step's rows, pages, round robin,
// restart of a request.
#include "policies/chunk.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/pages.hpp"
#include "policies/placement.hpp"
#include "policies/queue_order.hpp"
#include "policies/read_race.hpp"
#include "policies/resume.hpp"

namespace troupe::policies {

template <>
struct json_fields<chunk_input> {
  static auto list() {
    return std::tuple{required("budget", &chunk_input::budget, "prompt rows of the step, over all prompts"),
                      required("remaining", &chunk_input::remaining, "rows left per prompt, oldest first, each > 0")};
  }
};
template <>
struct json_fields<chunk_plan> {
  static auto list() {
    return std::tuple{required("rows", &chunk_plan::rows, "rows per prompt"),
                      required("reason", &chunk_plan::reason, "why")};
  }
};

template <>
struct json_fields<queue_order_input> {
  static auto list() {
    return std::tuple{required("arrived_ns", &queue_order_input::arrived_ns, "when it came, on the queue's clock"),
                      optional("work_ns", &queue_order_input::work_ns, "what its prompt costs"),
                      optional("priority", &queue_order_input::priority, "0 to 9, higher is sooner"),
                      optional("longest_ns", &queue_order_input::longest_ns, "work beyond this puts nobody back"),
                      optional("head_start_ns", &queue_order_input::head_start_ns, "of one step of priority")};
  }
};
template <>
struct json_fields<queue_order_plan> {
  static auto list() {
    return std::tuple{required("key_ns", &queue_order_plan::key_ns, "smaller keys go first"),
                      required("reason", &queue_order_plan::reason, "why")};
  }
};

template <>
struct json_fields<page_holder> {
  static auto list() {
    return std::tuple{required("held", &page_holder::held, "pages it has"),
                      required("needed", &page_holder::needed, "pages after the next step, at worst")};
  }
};
template <>
struct json_fields<page_input> {
  static auto list() {
    return std::tuple{required("free", &page_input::free, "free pages"),
                      optional("returning", &page_input::returning, "pages of slots that are being closed"),
                      required("running", &page_input::running, "sequences, oldest first")};
  }
};
template <>
struct json_fields<page_plan> {
  static auto list() {
    return std::tuple{required("grow", &page_plan::grow, "pages to add, per sequence"),
                      required("runs", &page_plan::runs, "its need is met"),
                      required("preempt", &page_plan::preempt, "indexes to give up, youngest first"),
                      required("reason", &page_plan::reason, "why")};
  }
};

namespace {
// On the command line "nobody" is null, not SIZE_MAX.
struct round_robin_input {
  std::vector<bool> usable;
  std::optional<uint64_t> last;
};
struct round_robin_plan {
  std::optional<uint64_t> choice;
  std::string reason;
};
round_robin_plan round_robin(const round_robin_input& in) {
  auto plan = plan_placement({in.usable, in.last ? static_cast<size_t>(*in.last) : SIZE_MAX});
  round_robin_plan out{std::nullopt, std::move(plan.reason)};
  if (plan.choice != SIZE_MAX) out.choice = plan.choice;
  return out;
}

result<resume_plan> resume(const resume_input& in) {
  if (in.window == 0) return fail(errc::invalid_argument, "window: 0; it is the model's sliding window, e.g. 128");
  if (in.known < in.prompt_length)
    return fail(errc::invalid_argument, "known: {} is less than prompt_length {}", in.known, in.prompt_length);
  return plan_resume(in);
}

result<page_plan> pages(const page_input& in) {
  uint64_t sum = uint64_t{in.free} + in.returning;
  for (const auto& s : in.running) sum += uint64_t{s.held} + s.needed;
  if (sum > UINT32_MAX) return fail(errc::invalid_argument, "running: {} pages in all, at most 2^32 - 1", sum);
  return plan_pages(in);
}
}  // namespace

template <>
struct json_fields<round_robin_input> {
  static auto list() {
    return std::tuple{required("usable", &round_robin_input::usable, "candidates in a fixed order"),
                      optional("last", &round_robin_input::last, "the previous choice; null: none")};
  }
};
template <>
struct json_fields<round_robin_plan> {
  static auto list() {
    return std::tuple{required("choice", &round_robin_plan::choice, "index; null: nobody"),
                      required("reason", &round_robin_plan::reason, "why")};
  }
};

template <>
struct json_fields<resume_input> {
  static auto list() {
    return std::tuple{required("prompt_length", &resume_input::prompt_length, "tokens of the original prompt"),
                      required("known", &resume_input::known, "tokens known now, emitted ones included"),
                      required("window", &resume_input::window, "sliding window of the model"),
                      required("decoder_layers", &resume_input::decoder_layers, "decoder layers of the model"),
                      optional("backtrack", &resume_input::backtrack, "tokens that are never reused")};
  }
};
template <>
struct json_fields<resume_plan> {
  static auto list() {
    return std::tuple{
        required("decoder_from", &resume_plan::decoder_from, "first token that later decoder layers run on"),
        required("hit_limit", &resume_plan::hit_limit, "cached blocks may be used up to here"),
        required("reason", &resume_plan::reason, "why")};
  }
};

template <>
struct json_fields<read_race_input> {
  static auto list() {
    return std::tuple{
        required("tokens", &read_race_input::tokens, "tokens that need not be computed when the read succeeds"),
        optional("row_ns", &read_race_input::row_ns, "time for a prompt token as measured; 0: not known"),
        required("at_least_ns", &read_race_input::at_least_ns, "a read gets so long in any case"),
        required("at_most_ns", &read_race_input::at_most_ns, "and never longer")};
  }
};
template <>
struct json_fields<read_race_plan> {
  static auto list() {
    return std::tuple{required("deadline_ns", &read_race_plan::deadline_ns, "then the blocks are computed"),
                      required("reason", &read_race_plan::reason, "why")};
  }
};

void add_serving_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<chunk_input>("row_shares", "prompt rows of one step, shared out over the waiting prompts",
                                        plan_chunks));
  out.push_back(
      make_entry<page_input>("pages", "KV pages for the next step, and who gives up when they are short", pages));
  out.push_back(
      make_entry<queue_order_input>("queue_order", "whose turn it is in a queue of requests", plan_queue_order));
  out.push_back(
      make_entry<round_robin_input>("round_robin", "next usable scheduler where no balancer runs", round_robin));
  out.push_back(make_entry<read_race_input>("read_deadline",
                                            "how long a read of cached blocks may take before they are "
                                            "computed",
                                            plan_read_race));
  out.push_back(
      make_entry<resume_input>("restart", "where a prompt's computation starts after a crash or preemption", resume));
}

}  // namespace troupe::policies
