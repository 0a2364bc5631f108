// Entries of the placement decisions.
#include "policies/decode_place.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/json/prefill_cost.hpp"
#include "policies/prefill_place.hpp"
#include "policies/prefix_place.hpp"

namespace troupe::policies {

template <>
struct json_fields<prefill_work> {
  static auto list() {
    return std::tuple{required("attention_ns", &prefill_work::attention_ns, "attention, ns on one rank"),
                      required("linear_ns", &prefill_work::linear_ns, "everything else, ns on one rank")};
  }
};
template <>
struct json_fields<prefill_candidate> {
  static auto list() {
    using c = prefill_candidate;
    return std::tuple{
        optional("usable", &c::usable, "ready, not draining, not suspected"),
        optional("waiting", &c::waiting, "prompts placed there and not finished"),
        optional("limit", &c::limit, "takes no more at this many"),
        optional("attention_ns", &c::attention_ns,
                 "attention work placed there and not done, each prompt within the horizon"),
        optional("linear_ns", &c::linear_ns, "other work placed there and not done, each prompt within the horizon"),
        optional("longest_tier", &c::longest_tier, "tier of the longest unfinished prompt of its lock-step group")};
  }
};
template <>
struct json_fields<prefill_place_input> {
  static auto list() {
    using i = prefill_place_input;
    return std::tuple{
        required("new_tokens", &i::new_tokens, "tokens to run"),
        required("cached_tokens", &i::cached_tokens, "tokens in front of them that are read from the store"),
        optional("cost", &i::cost, "a q^2 + b q c + d q"),
        optional("chunk_tokens", &i::chunk_tokens, "largest chunk"),
        optional("tiers", &i::tiers, "bounds of the length tiers in new tokens, ascending"),
        optional("horizon_ns", &i::horizon_ns, "a prompt counts for at most this; about one step's budget"),
        optional("isolation_ns", &i::isolation_ns, "extra queued work accepted per tier to keep lengths apart"),
        optional("kind_weight", &i::kind_weight, "weight of the balance of each kind beside that of the sum"),
        required("ranks", &i::ranks, "candidates in a fixed order")};
  }
};

template <>
struct json_fields<decode_cost> {
  static auto list() {
    return std::tuple{optional("request_ns", &decode_cost::request_ns, "step cost of a request"),
                      optional("kv_token_ns", &decode_cost::kv_token_ns, "step cost of a KV token")};
  }
};
template <>
struct json_fields<decode_candidate> {
  static auto list() {
    using c = decode_candidate;
    return std::tuple{optional("usable", &c::usable, "ready, not draining, not suspected"),
                      optional("requests", &c::requests, "running or waiting there"),
                      optional("slots", &c::slots, "takes no more at this many"),
                      optional("kv_tokens", &c::kv_tokens, "KV tokens held now"),
                      optional("growth_tokens", &c::growth_tokens, "KV tokens expected on top"),
                      optional("capacity_tokens", &c::capacity_tokens, "KV tokens that fit")};
  }
};
template <>
struct json_fields<decode_place_input> {
  static auto list() {
    using i = decode_place_input;
    return std::tuple{
        required("kv_tokens", &i::kv_tokens, "KV tokens that the request brings"),
        required("growth_tokens", &i::growth_tokens, "KV tokens that it is expected to add"),
        optional("cost", &i::cost, "what a step costs a rank"),
        optional("kind_weight", &i::kind_weight, "weight of the balance of each kind beside that of the sum"),
        required("ranks", &i::ranks, "candidates in a fixed order")};
  }
};

template <>
struct json_fields<movable_request> {
  static auto list() {
    return std::tuple{required("id", &movable_request::id, "its id"),
                      required("kv_tokens", &movable_request::kv_tokens, "KV tokens it holds")};
  }
};
template <>
struct json_fields<decode_load> {
  static auto list() {
    using l = decode_load;
    return std::tuple{optional("usable", &l::usable, "false: keeps what it has"),
                      optional("capacity_tokens", &l::capacity_tokens, "KV tokens that fit"),
                      optional("slots", &l::slots, "requests that fit"),
                      required("requests", &l::requests, "running there")};
  }
};
template <>
struct json_fields<decode_rebalance_input> {
  static auto list() {
    using i = decode_rebalance_input;
    return std::tuple{optional("cost", &i::cost, "what a step costs a rank"),
                      optional("tolerance", &i::tolerance, "nothing moves while busiest / mean - 1 is at most this"),
                      optional("max_moves", &i::max_moves, "at most so many moves"),
                      required("ranks", &i::ranks, "the pool")};
  }
};
template <>
struct json_fields<decode_move> {
  static auto list() {
    return std::tuple{required("request", &decode_move::request, "id"), required("from", &decode_move::from, "rank"),
                      required("to", &decode_move::to, "rank")};
  }
};
template <>
struct json_fields<decode_rebalance_plan> {
  static auto list() {
    using p = decode_rebalance_plan;
    return std::tuple{required("moves", &p::moves, "in this order"),
                      required("imbalance_before", &p::imbalance_before, "busiest / mean"),
                      required("imbalance_after", &p::imbalance_after, "busiest / mean"),
                      required("reason", &p::reason, "why")};
  }
};

template <>
struct json_fields<prefix_candidate> {
  static auto list() {
    return std::tuple{required("matched", &prefix_candidate::matched, "blocks of the prompt that its cache has"),
                      required("missed", &prefix_candidate::missed, "blocks that prompts placed there did not find")};
  }
};
template <>
struct json_fields<prefix_place_input> {
  static auto list() {
    return std::tuple{required("instances", &prefix_place_input::instances, "caches in a fixed order")};
  }
};
template <>
struct json_fields<prefix_place_plan> {
  static auto list() {
    return std::tuple{required("choice", &prefix_place_plan::choice, "index"),
                      required("score", &prefix_place_plan::score, "of the choice, in blocks"),
                      required("reason", &prefix_place_plan::reason, "why")};
  }
};

namespace {

// On the command line "nobody" is null, not SIZE_MAX.
struct prefill_choice {
  std::optional<uint64_t> choice;
  uint8_t tier = 0;
  prefill_work work;
  double score_ns = 0;
  bool full = false;
  std::string reason;
};
struct decode_choice {
  std::optional<uint64_t> choice;
  double score_ns = 0;
  bool tight = false, full = false;
  std::string reason;
};

std::optional<uint64_t> index(size_t i) { return i == SIZE_MAX ? std::nullopt : std::optional<uint64_t>(i); }

result<prefill_choice> prefill(const prefill_place_input& in) {
  TROUPE_TRY(const auto p, place_prefill(in));
  return prefill_choice{index(p.choice), p.tier, p.work, p.score_ns, p.full, p.reason};
}

result<decode_choice> decode(const decode_place_input& in) {
  TROUPE_TRY(const auto p, place_decode(in));
  return decode_choice{index(p.choice), p.score_ns, p.tight, p.full, p.reason};
}

}  // namespace

template <>
struct json_fields<prefill_choice> {
  static auto list() {
    using p = prefill_choice;
    return std::tuple{required("choice", &p::choice, "index; null: nobody"),
                      required("tier", &p::tier, "length tier of the prompt"),
                      required("work", &p::work, "what it adds there, within the horizon"),
                      required("score_ns", &p::score_ns, "of the choice"),
                      required("full", &p::full, "usable ranks exist, all at their limit"),
                      required("reason", &p::reason, "why")};
  }
};
template <>
struct json_fields<decode_choice> {
  static auto list() {
    using p = decode_choice;
    return std::tuple{required("choice", &p::choice, "index; null: nobody"),
                      required("score_ns", &p::score_ns, "of the choice"),
                      required("tight", &p::tight, "fits now, not with all expected growth"),
                      required("full", &p::full, "usable ranks exist, none has slot and room"),
                      required("reason", &p::reason, "why")};
  }
};

void add_placement_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<prefill_place_input>("prefill_place", "which prefill rank a prompt goes to", prefill));
  out.push_back(make_entry<decode_place_input>("decode_place", "which decode rank a request goes to", decode));
  out.push_back(make_entry<decode_rebalance_input>("decode_rebalance", "which requests to move between decode ranks",
                                                   rebalance_decode));
  out.push_back(make_entry<prefix_place_input>("prefix_place", "which private cache a prompt goes to (for comparison)",
                                               place_by_prefix));
}

}  // namespace troupe::policies
