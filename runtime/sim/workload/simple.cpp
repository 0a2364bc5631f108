#include "runtime/sim/workload/simple.hpp"

#include <algorithm>

#include "kv/replay/lru.hpp"
#include "policies/placement.hpp"
#include "policies/prefix_place.hpp"

namespace troupe::sim {
namespace {

size_t matched_blocks(const kv::lru<uint64_t>& cache, const std::vector<uint64_t>& blocks) {
  size_t n = 0;
  while (n < blocks.size() && cache.contains(blocks[n])) ++n;
  return n;
}

}  // namespace

result<simple_place> parse_simple_place(std::string_view name) {
  if (name == "round_robin") return simple_place::round_robin;
  if (name == "prefix_load") return simple_place::prefix_load;
  if (name == "shared") return simple_place::shared;
  return fail(errc::invalid_argument, "'{}' is no placement; there are: round_robin, prefix_load, shared", name);
}

result<simple_counts> run_simple(workload_source& source, const simple_options& o) {
  if (o.caches < 1 || o.caches > 65'536)
    return fail(errc::invalid_argument, "{} caches: 1 to 65536 expected", o.caches);
  const uint64_t room = o.cache_tokens / source.block_tokens();
  if (o.cache_tokens > 0 && room == 0)
    return fail(errc::invalid_argument, "a cache of {} tokens: at least one block of {} expected", o.cache_tokens,
                source.block_tokens());
  const bool shared = o.place == simple_place::shared;
  const size_t count = shared ? 1 : o.caches;
  std::vector<kv::lru<uint64_t>> caches(count, kv::lru<uint64_t>(shared ? room * o.caches : room));
  simple_counts out;
  out.requests_of.resize(count), out.missed_of.resize(count);
  policies::placement_input turn{std::vector<bool>(count, true)};
  policies::prefix_place_input by_prefix;
  by_prefix.instances.resize(count);
  for (;;) {
    TROUPE_TRY(const auto next, source.next());
    if (!next) return out;
    const auto& r = *next;
    size_t at = 0;
    if (o.place == simple_place::round_robin) {
      at = turn.last = policies::plan_placement(turn).choice;
    } else if (o.place == simple_place::prefix_load) {
      for (size_t i = 0; i < count; ++i) by_prefix.instances[i].matched = matched_blocks(caches[i], r.blocks);
      TROUPE_TRY(const auto plan, policies::place_by_prefix(by_prefix));
      at = plan.choice;
    }
    const size_t hit = matched_blocks(caches[at], r.blocks);
    for (const uint64_t id : r.blocks) caches[at].touch(id);
    // A request without ids has blocks all the same, and finds none of them.
    const uint64_t blocks = (r.input_tokens + source.block_tokens() - 1) / source.block_tokens();
    ++out.requests, ++out.requests_of[at];
    out.blocks += blocks, out.hit_blocks += hit;
    out.missed_of[at] += blocks - hit;
    out.tokens += r.input_tokens;
    out.hit_tokens += std::min<uint64_t>(uint64_t{hit} * source.block_tokens(), r.input_tokens);
    by_prefix.instances[at].missed += blocks - hit;
  }
}

}  // namespace troupe::sim
