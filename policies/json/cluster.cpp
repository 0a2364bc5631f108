// Entries of the decisions about the cluster and about requests at its door: roles, admission, suspicion, recovery,
// money.
#include <array>

#include "policies/admission.hpp"
#include "policies/breaker.hpp"
#include "policies/economics.hpp"
#include "policies/front_admission.hpp"
#include "policies/group_patience.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/phi.hpp"
#include "policies/recover.hpp"
#include "policies/role_move.hpp"
#include "policies/role_plan.hpp"
#include "policies/seat_choice.hpp"
#include "policies/silence.hpp"

namespace troupe::policies {

template <>
struct json_fields<role_load> {
  static auto list() {
    using t = role_load;
    return std::tuple{required("units", &t::units, "that have the role now"),
                      optional("least", &t::least, "bound"),
                      optional("most", &t::most, "bound"),
                      required("rate", &t::rate, "unit-seconds of work that arrive per second"),
                      optional("queued", &t::queued, "unit-seconds of work that waits"),
                      optional("since_change", &t::since_change, "plans since the count changed last")};
  }
};
template <>
struct json_fields<role_plan_input> {
  static auto list() {
    using t = role_plan_input;
    return std::tuple{required("roles", &t::roles, "in a fixed order, e.g. encoder, prefill, decode"),
                      required("units", &t::units, "of the pool"),
                      optional("target", &t::target, "utilisation to aim at"),
                      optional("high", &t::high, "grow above"),
                      optional("low", &t::low, "shrink below, counted with one unit fewer"),
                      optional("drain_s", &t::drain_s, "queues are to be empty after so long"),
                      optional("hold", &t::hold, "plans between two changes of a role")};
  }
};
template <>
struct json_fields<role_plan> {
  static auto list() {
    using t = role_plan;
    return std::tuple{required("units", &t::units, "wanted, in the order of the roles"),
                      required("change", &t::change, "differs from now"),
                      required("short_of_units", &t::short_of_units, "the pool cannot give every role its target"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<admission_input> {
  static auto list() {
    using t = admission_input;
    return std::tuple{required("waiting", &t::waiting, "in the queue"),
                      required("limit", &t::limit, "refuse at and above"),
                      optional("open", &t::open, "false: draining or no engine"),
                      optional("finish_ms", &t::finish_ms, "until one leaves, as last seen")};
  }
};
template <>
struct json_fields<admission_plan> {
  static auto list() {
    using t = admission_plan;
    return std::tuple{required("admit", &t::admit, "yes or no"),
                      required("retry_after_ms", &t::retry_after_ms, "0: admitted, or pointless here"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<tenant_load> {
  static auto list() {
    using t = tenant_load;
    return std::tuple{required("held", &t::held, "its requests that wait or run"),
                      optional("limit", &t::limit, "its own bound"), optional("weight", &t::weight, "above 0")};
  }
};
template <>
struct json_fields<front_admission_input> {
  static auto list() {
    using t = front_admission_input;
    return std::tuple{optional("ready", &t::ready, "a canary went through, not draining"),
                      required("limit", &t::limit, "requests that may wait or run in all"),
                      optional("finish_ms", &t::finish_ms, "until one leaves, as last seen"),
                      optional("reserve", &t::reserve, "part of the limit that only tenants below their share may use"),
                      required("tenant", &t::tenant, "index of the one who asks"),
                      required("tenants", &t::tenants, "all of them")};
  }
};
template <>
struct json_fields<front_admission_plan> {
  static auto list() {
    using t = front_admission_plan;
    return std::tuple{required("admit", &t::admit, "yes or no"), required("status", &t::status, "200, 429 or 503"),
                      required("retry_after_s", &t::retry_after_s, "Retry-After header"),
                      required("share", &t::share, "requests this tenant may hold whatever the others do"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<tenant_queue> {
  static auto list() {
    using t = tenant_queue;
    return std::tuple{required("waiting", &t::waiting, "its requests in the queue"),
                      optional("served", &t::served, "work served / weight")};
  }
};
template <>
struct json_fields<next_tenant_input> {
  static auto list() {
    using t = next_tenant_input;
    return std::tuple{optional("clock", &t::clock, "virtual time of the last choice"),
                      required("tenants", &t::tenants, "all of them")};
  }
};
template <>
struct json_names<group_verdict> {
  static constexpr std::array<const char*, 3> names{"wait", "next_view", "failed"};
};
template <>
struct json_fields<group_patience_input> {
  static auto list() {
    using t = group_patience_input;
    return std::tuple{required("now_ms", &t::now_ms, "time of the question"),
                      required("since_ms", &t::since_ms, "last well, members changed, or last further view"),
                      optional("was_ready", &t::was_ready, "the rank that is not ready was in this view before"),
                      optional("views", &t::views, "further views that did not help"),
                      optional("patience_ms", &t::patience_ms, "for connecting; doubles from the second further view"),
                      optional("grace_ms", &t::grace_ms, "before the first further view of a group that was ready"),
                      optional("max_views", &t::max_views, "then the group has failed")};
  }
};
template <>
struct json_fields<group_patience_plan> {
  static auto list() {
    using t = group_patience_plan;
    return std::tuple{required("verdict", &t::verdict, "what happens now"),
                      required("wait_ms", &t::wait_ms, "until another verdict is due; 0 unless wait"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<seat_state> {
  static auto list() {
    using t = seat_state;
    return std::tuple{required("name", &t::name, "e.g. decode-0/1"), required("group", &t::group, "e.g. decode-0"),
                      optional("by_name", &t::by_name, "only for nodes that ask for it: a front"),
                      optional("holder", &t::holder, "node; 0: empty"),
                      optional("holder_wanted", &t::holder_wanted, "what the holder asked for")};
  }
};
template <>
struct json_fields<seat_choice_input> {
  static auto list() {
    using t = seat_choice_input;
    return std::tuple{required("seats", &t::seats, "in the order in which they are to be filled"),
                      optional("wanted", &t::wanted, "a seat's name, a group's, or empty for any")};
  }
};
template <>
struct json_fields<seat_choice> {
  static auto list() {
    using t = seat_choice;
    return std::tuple{optional("take", &t::take, "index into seats; none: a spare"),
                      optional("clear", &t::clear, "taken from its holder first"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_names<phi_verdict> {
  static constexpr std::array<const char*, 3> names{"alive", "suspect", "down"};
};
template <>
struct json_fields<phi_input> {
  static auto list() {
    using t = phi_input;
    return std::tuple{required("heartbeats_ms", &t::heartbeats_ms, "arrival times, ascending"),
                      required("now_ms", &t::now_ms, "time of the question"),
                      optional("interval_ms", &t::interval_ms, "configured interval"),
                      optional("pause_ms", &t::pause_ms, "silence that is accepted on top"),
                      optional("suspect_at", &t::suspect_at, "threshold"),
                      optional("down_at", &t::down_at, "threshold")};
  }
};
template <>
struct json_fields<phi_plan> {
  static auto list() {
    using t = phi_plan;
    return std::tuple{required("phi", &t::phi, "-log10 of the probability that a heartbeat comes later"),
                      required("verdict", &t::verdict, "how sure we are"),
                      required("mean_ms", &t::mean_ms, "of the gaps"),
                      required("deviation_ms", &t::deviation_ms, "of the gaps"),
                      required("suspect_in_ms", &t::suspect_in_ms, "until it is suspected if nothing comes"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_names<outcome> {
  static constexpr std::array<const char*, 5> names{"success", "worker_fault", "client_error", "cancelled", "refused"};
};
template <>
struct json_names<breaker_state> {
  static constexpr std::array<const char*, 3> names{"closed", "open", "half_open"};
};
template <>
struct json_fields<breaker_event> {
  static auto list() {
    using t = breaker_event;
    return std::tuple{required("at_ms", &t::at_ms, "when"), required("what", &t::what, "how the request ended")};
  }
};
template <>
struct json_fields<breaker_settings> {
  static auto list() {
    using t = breaker_settings;
    return std::tuple{optional("faults", &t::faults, "opens at so many in the window"),
                      optional("fault_ratio", &t::fault_ratio, "and at least this part"),
                      optional("window_ms", &t::window_ms, "length of the window"),
                      optional("open_ms", &t::open_ms, "first pause"),
                      optional("max_open_ms", &t::max_open_ms, "longest pause")};
  }
};
template <>
struct json_fields<breaker_input> {
  static auto list() {
    using t = breaker_input;
    return std::tuple{optional("settings", &t::settings, "bounds"),
                      required("now_ms", &t::now_ms, "time of the question"),
                      optional("probing", &t::probing, "a probe is under way"),
                      required("events", &t::events, "ended requests in order of time")};
  }
};
template <>
struct json_fields<breaker_plan> {
  static auto list() {
    using t = breaker_plan;
    return std::tuple{required("state", &t::state, "of the breaker"), required("allow", &t::allow, "send the request"),
                      required("wait_ms", &t::wait_ms, "until a probe is allowed"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_names<request_fault> {
  static constexpr std::array<const char*, 5> names{"rank_lost", "group_lost", "refused", "client_error", "cancelled"};
};
template <>
struct json_names<recover_action> {
  static constexpr std::array<const char*, 5> names{"go_elsewhere", "wait_for_view", "finish", "give_up", "drop"};
};
template <>
struct json_fields<economics_input> {
  static auto list() {
    using t = economics_input;
    return std::tuple{optional("hit_price", &t::hit_price, "US$ per million input tokens that hit"),
                      optional("miss_price", &t::miss_price, "US$ per million other input tokens"),
                      optional("output_price", &t::output_price, "US$ per million output tokens"),
                      optional("gpu_hour_cost", &t::gpu_hour_cost, "US$"),
                      optional("storage_tb", &t::storage_tb, "TB"),
                      optional("storage_tb_month_cost", &t::storage_tb_month_cost, "US$ per TB and month of 730 hours"),
                      optional("hours", &t::hours, "hours"),
                      required("gpus", &t::gpus, "how many"),
                      required("input_mtokens", &t::input_mtokens, "millions, hits included"),
                      required("hit_ratio", &t::hit_ratio, "0 to 1"),
                      required("output_mtokens", &t::output_mtokens, "millions")};
  }
};
template <>
struct json_fields<economics_plan> {
  static auto list() {
    using t = economics_plan;
    return std::tuple{required("revenue", &t::revenue, "US$"),
                      required("cost", &t::cost, "US$"),
                      required("profit", &t::profit, "US$"),
                      required("gpu_cost", &t::gpu_cost, "US$"),
                      required("storage_cost", &t::storage_cost, "US$"),
                      required("margin_on_cost", &t::margin_on_cost, "profit / cost"),
                      required("revenue_per_gpu_hour", &t::revenue_per_gpu_hour, "US$"),
                      required("cost_per_gpu_hour", &t::cost_per_gpu_hour, "US$"),
                      required("revenue_per_mtoken", &t::revenue_per_mtoken, "US$"),
                      required("cost_per_mtoken", &t::cost_per_mtoken, "US$"),
                      required("cost_per_output_mtoken", &t::cost_per_output_mtoken, "US$"),
                      required("saved_by_hits", &t::saved_by_hits, "US$ that clients pay less"),
                      required("reason", &t::reason, "in short")};
  }
};

namespace {

// On the command line "nobody" is null, not SIZE_MAX.
struct tenant_choice {
  std::optional<uint64_t> choice;
  double start = 0, clock = 0;
  std::string reason;
};
result<tenant_choice> next_tenant(const next_tenant_input& in) {
  TROUPE_TRY(const auto p, plan_next_tenant(in));
  return tenant_choice{p.choice == SIZE_MAX ? std::nullopt : std::optional<uint64_t>(p.choice), p.start, p.clock,
                       p.reason};
}

// The prompt's fields and the resume plan's stand beside the others.
struct recover_question {
  request_fault fault = request_fault::rank_lost;
  uint32_t prompt_length = 0, known = 0, window = 0, decoder_layers = 0;
  uint32_t max_length = recover_input{}.max_length, rank_losses = 1, max_rank_losses = recover_input{}.max_rank_losses;
  uint32_t attempts = 0, max_attempts = recover_input{}.max_attempts;
  int64_t left_ms = 0, view_wait_ms = recover_input{}.view_wait_ms;
};
struct recover_answer {
  recover_action action = recover_action::drop;
  int64_t after_ms = 0;
  bool resumable = false;
  uint32_t decoder_from = 0, hit_limit = 0;
  std::string reason;
};
result<recover_answer> recover(const recover_question& q) {
  TROUPE_TRY(const auto p, plan_recover({q.fault,
                                         {q.prompt_length, q.known, q.window, q.decoder_layers},
                                         q.max_length,
                                         q.rank_losses,
                                         q.max_rank_losses,
                                         q.attempts,
                                         q.max_attempts,
                                         q.left_ms,
                                         q.view_wait_ms}));
  return recover_answer{p.action, p.after_ms, p.resumable, p.resume.decoder_from, p.resume.hit_limit, p.reason};
}

}  // namespace

template <>
struct json_fields<tenant_choice> {
  static auto list() {
    using t = tenant_choice;
    return std::tuple{required("choice", &t::choice, "index; null: nobody waits"),
                      required("start", &t::start, "virtual time at which it starts"),
                      required("clock", &t::clock, "to be passed in next time"), required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<recover_question> {
  static auto list() {
    using t = recover_question;
    return std::tuple{required("fault", &t::fault, "why it has no rank"),
                      required("prompt_length", &t::prompt_length, "tokens of the original prompt"),
                      required("known", &t::known, "tokens known now, emitted ones included"),
                      required("window", &t::window, "sliding window of the model"),
                      required("decoder_layers", &t::decoder_layers, "decoder layers of the model"),
                      optional("max_length", &t::max_length, "prompt and allowed answer"),
                      optional("rank_losses", &t::rank_losses, "ranks that died under it"),
                      optional("max_rank_losses", &t::max_rank_losses, "then it is failed"),
                      optional("attempts", &t::attempts, "times it was started again"),
                      optional("max_attempts", &t::max_attempts, "then it is failed"),
                      required("left_ms", &t::left_ms, "of its deadline"),
                      optional("view_wait_ms", &t::view_wait_ms, "how long a group waits for its next view")};
  }
};
template <>
struct json_fields<recover_answer> {
  static auto list() {
    using t = recover_answer;
    return std::tuple{required("action", &t::action, "what happens next"),
                      required("after_ms", &t::after_ms, "go_elsewhere: pause first; wait_for_view: at most so long"),
                      required("resumable", &t::resumable, "give_up: trying again can help"),
                      required("decoder_from", &t::decoder_from, "first token that later decoder layers run on"),
                      required("hit_limit", &t::hit_limit, "cached blocks may be used up to here"),
                      required("reason", &t::reason, "why")};
  }
};

template <>
struct json_fields<role_move_input> {
  static auto list() {
    using t = role_move_input;
    return std::tuple{required("plan", &t::plan, "as of role_plan; its units count the spares too"),
                      optional("spares", &t::spares, "nodes without a role that may have any"),
                      required("movable", &t::movable, "per role: ranks that may be taken from it")};
  }
};
template <>
struct json_fields<role_move> {
  static auto list() {
    using t = role_move;
    return std::tuple{optional("to", &t::to, "role that gets a rank; none: nobody moves"),
                      optional("from", &t::from, "role that gives it; none: a spare"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<silence_input> {
  static auto list() {
    using t = silence_input;
    return std::tuple{required("heartbeats_ms", &t::heartbeats_ms, "arrival times, ascending, at least one"),
                      required("silent_ms", &t::silent_ms, "since the last of them"),
                      optional("interval_ms", &t::interval_ms, "configured, between heartbeats"),
                      optional("lost_after_ms", &t::lost_after_ms, "configured, at least three intervals")};
  }
};
template <>
struct json_fields<silence_plan> {
  static auto list() {
    using t = silence_plan;
    return std::tuple{required("lost", &t::lost, "it is given up"), required("phi", &t::phi, "suspicion"),
                      required("reason", &t::reason, "why")};
  }
};

void add_cluster_entries(std::vector<policy_entry>& out) {
  out.push_back(
      make_entry<role_plan_input>("role_plan", "how many units serve as encoder, prefill and decode", plan_roles));
  out.push_back(
      make_entry<admission_input>("queue_admission", "whether a scheduler's queue takes one more", plan_admission));
  out.push_back(make_entry<front_admission_input>(
      "admission", "whether the front takes a request: 200, 429 or 503, fair to tenants", plan_front_admission));
  out.push_back(make_entry<next_tenant_input>("next_tenant", "whose waiting request is next", next_tenant));
  out.push_back(make_entry<seat_choice_input>("seat_choice", "which seat of the cluster a node gets", choose_seat));
  out.push_back(make_entry<group_patience_input>(
      "group_patience", "when a group that does not get going is given another view, or has failed",
      plan_group_patience));
  out.push_back(make_entry<phi_input>("phi", "suspicion of a silent node from its heartbeats", plan_phi));
  out.push_back(make_entry<role_move_input>("role_move", "which rank changes its role next", plan_role_move));
  out.push_back(make_entry<silence_input>("silence", "when a silent node is given up", plan_silence));
  out.push_back(
      make_entry<breaker_input>("breaker", "circuit breaker of one worker; counts worker faults only", plan_breaker));
  out.push_back(make_entry<recover_question>("resume_plan", "what to do with a request whose rank died", recover));
  out.push_back(make_entry<economics_input>("economics", "what a day of serving costs and earns", plan_economics));
}

}  // namespace troupe::policies
