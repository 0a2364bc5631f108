#include "runtime/sim/events/event.hpp"

#include <fmt/format.h>

#include "runtime/base/check.hpp"

namespace troupe::sim {
namespace {

constexpr std::array<event_spec, event_kinds> event_table{{
    {"run_started", 2, {"seed", "nodes"}},
    {"run_ended", 1, {"drained"}},
    {"request_submitted", 5, {"request", "input_tokens", "output_tokens", "traffic", "tenant"}},
    {"prefix_matched", 5, {"request", "asked_blocks", "hit_blocks", "input_tokens", "hit_tokens"}},
    {"request_placed", 5, {"request", "attempt", "pool", "actor_rank", "lease"}},
    {"request_tokens", 4, {"request", "attempt", "first", "count"}},
    {"request_ended", 3, {"request", "how", "tokens"}},
    {"decode_owned", 2, {"request", "attempt"}},
    {"decode_dropped", 2, {"request", "attempt"}},
    {"pool_opened", 1, {"total"}},
    {"pages_taken", 2, {"request", "count"}},
    {"pages_given_back", 2, {"request", "count"}},
    {"page_account", 2, {"free", "total"}},
    {"transfer_began", 3, {"transfer", "request", "pages"}},
    {"transfer_ended", 3, {"transfer", "bytes", "complete"}},
    {"lease_granted", 3, {"lease", "actor_holder", "expires"}},
    {"lease_renewed", 2, {"lease", "expires"}},
    {"lease_used", 1, {"lease"}},
    {"epoch_seen", 4, {"kind", "id", "value", "incarnation"}},
    {"leader", 1, {"epoch"}},
    {"role_changed", 4, {"role", "index", "state", "incarnation"}},
    {"step", 6, {"group", "pool", "work", "took", "ranks", "tokens"}},
    {"expert_account", 2, {"group", "without_copy"}},
    {"queue_length", 3, {"queue", "length", "bound"}},
    {"shard_written", 3, {"extent_high", "extent_low", "shard"}},
    {"extent_indexed", 3, {"extent_high", "extent_low", "shards"}},
    {"block_served", 5, {"key_asked", "key_found", "checksum_stored", "checksum_computed", "bytes"}},
    {"bytes_moved", 2, {"kind", "bytes"}},
    {"pool_load", 4, {"pool", "ready", "waiting", "running"}},
    {"fault_began", 4, {"fault", "kind", "role", "index"}},
    {"fault_ended", 1, {"fault"}},
    {"fault_seen", 2, {"fault", "effect"}},
    {"fault_recovered", 2, {"fault", "took"}},
    {"faults_over", 1, {"deadline"}},
    {"process_ended", 2, {"role", "index"}},
}};

}  // namespace

const event_spec& spec_of(event_kind k) {
  TROUPE_CHECK(static_cast<size_t>(k) < event_kinds, "event kind {}", static_cast<int>(k));
  return event_table[static_cast<size_t>(k)];
}

std::string to_text(const event& e, const std::string& actor_name) {
  const auto& s = spec_of(e.kind);
  std::string out = fmt::format("{}.{:09} s {} {}:", e.at / 1'000'000'000, e.at % 1'000'000'000, actor_name, s.name);
  for (size_t i = 0; i < s.count; ++i) out += fmt::format("{} {} {}", i ? "," : "", s.fields[i], e.v[i]);
  return out;
}

}  // namespace troupe::sim
