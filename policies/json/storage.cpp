// Entries of the decisions about the KV store.
#include <array>

#include "policies/evict.hpp"
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/repair_plan.hpp"
#include "policies/shard_place.hpp"
#include "policies/ttl.hpp"

namespace troupe::policies {

template <>
struct json_names<traffic_class> {
  static constexpr std::array<const char*, 2> names{"agent", "chatbot"};
};
template <>
struct json_names<ttl_touch> {
  static constexpr std::array<const char*, 3> names{"write", "read", "probe"};
};
template <>
struct json_fields<ttl_input> {
  static auto list() {
    using t = ttl_input;
    return std::tuple{required("now_s", &t::now_s, "seconds"),
                      required("traffic", &t::traffic, "class of the request"),
                      required("touch", &t::touch, "what touches the chain; only write and read extend"),
                      optional("agent_s", &t::agent_s, "time to live of agent traffic"),
                      optional("chatbot_s", &t::chatbot_s, "time to live of chatbot traffic"),
                      optional("step_s", &t::step_s, "expiries are multiples of this"),
                      required("expiry_s", &t::expiry_s,
                               "expiry per block, root first, the touched one last; 0: does not exist yet")};
  }
};
template <>
struct json_fields<ttl_change> {
  static auto list() {
    using t = ttl_change;
    return std::tuple{required("index", &t::index, "into expiry_s"), required("expiry_s", &t::expiry_s, "the new one")};
  }
};
template <>
struct json_fields<ttl_plan> {
  static auto list() {
    using t = ttl_plan;
    return std::tuple{required("visible", &t::visible, "blocks from the root that a match may return"),
                      required("changes", &t::changes, "records to write, in this order"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<evict_entry> {
  static auto list() {
    using t = evict_entry;
    return std::tuple{required("id", &t::id, "above 0"),
                      optional("parent", &t::parent, "id of the entry it hangs on; 0: none"),
                      required("expiry_s", &t::expiry_s, "seconds"),
                      required("written_s", &t::written_s, "seconds"),
                      required("bytes", &t::bytes, "that it frees"),
                      optional("leased", &t::leased, "being read")};
  }
};
template <>
struct json_fields<evict_input> {
  static auto list() {
    using t = evict_input;
    return std::tuple{required("now_s", &t::now_s, "seconds"), required("need_bytes", &t::need_bytes, "that must go"),
                      optional("all_expired", &t::all_expired, "expired ones go in any case"),
                      required("entries", &t::entries, "all that may go")};
  }
};
template <>
struct json_fields<evict_plan> {
  static auto list() {
    using t = evict_plan;
    return std::tuple{required("ids", &t::ids, "in this order"), required("freed_bytes", &t::freed_bytes, "sum"),
                      required("short_bytes", &t::short_bytes, "of need_bytes, not found"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<shard_node> {
  static auto list() {
    using t = shard_node;
    return std::tuple{required("id", &t::id, "above 0"), required("domain", &t::domain, "what fails together"),
                      optional("weight", &t::weight, "share of the shards; 0: nothing new")};
  }
};
template <>
struct json_fields<shard_place_input> {
  static auto list() {
    using t = shard_place_input;
    return std::tuple{optional("key_high", &t::key_high, "upper half of the extent id"),
                      required("key_low", &t::key_low, "lower half of the extent id"),
                      optional("data", &t::data, "data shards"),
                      optional("parity", &t::parity, "parity shards"),
                      required("nodes", &t::nodes, "members of the storage epoch"),
                      optional("current", &t::current, "node per shard before; empty: a new extent")};
  }
};
template <>
struct json_fields<shard_place_plan> {
  static auto list() {
    using t = shard_place_plan;
    return std::tuple{required("nodes", &t::nodes, "node per shard, data shards first"),
                      required("moved", &t::moved, "shards that differ from current"),
                      required("per_domain", &t::per_domain, "most shards in one domain"),
                      required("survives_domain", &t::survives_domain, "any one domain may go"),
                      required("reason", &t::reason, "why")};
  }
};
template <>
struct json_fields<repair_node> {
  static auto list() {
    using t = repair_node;
    return std::tuple{required("id", &t::id, "above 0"), required("domain", &t::domain, "what fails together"),
                      required("read_bytes", &t::read_bytes, "budget of this round"),
                      required("write_bytes", &t::write_bytes, "budget of this round")};
  }
};
template <>
struct json_fields<repair_extent> {
  static auto list() {
    using t = repair_extent;
    return std::tuple{required("id", &t::id, "above 0"), required("data", &t::data, "shards needed to rebuild"),
                      required("shard_bytes", &t::shard_bytes, "of one shard"),
                      required("holders", &t::holders, "nodes with a good shard"),
                      required("missing", &t::missing, "shards to be made again")};
  }
};
template <>
struct json_fields<repair_input> {
  static auto list() {
    using t = repair_input;
    return std::tuple{required("nodes", &t::nodes, "alive ones"), required("extents", &t::extents, "damaged ones"),
                      optional("max_tasks", &t::max_tasks, "at most so many")};
  }
};
template <>
struct json_fields<repair_task> {
  static auto list() {
    using t = repair_task;
    return std::tuple{required("extent", &t::extent, "id"),
                      required("sources", &t::sources, "nodes to read one shard from, each"),
                      required("targets", &t::targets, "nodes to write one shard to, each")};
  }
};
template <>
struct json_fields<repair_plan> {
  static auto list() {
    using t = repair_plan;
    return std::tuple{required("tasks", &t::tasks, "most endangered first"),
                      required("lost", &t::lost, "nothing can be done"),
                      required("waiting", &t::waiting, "not, or not all of it, in this round"),
                      required("reason", &t::reason, "why")};
  }
};

void add_storage_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<ttl_input>("ttl", "how long a chain of blocks lives after a touch", plan_ttl));
  out.push_back(make_entry<evict_input>("evict", "which store entries go when a disk passes its mark", plan_evict));
  out.push_back(make_entry<shard_place_input>("shard_place", "which nodes hold the shards of an extent", place_shards));
  out.push_back(make_entry<repair_input>("repair_plan", "which damaged extents are rebuilt next, from where to where",
                                         plan_repair));
}

}  // namespace troupe::policies
