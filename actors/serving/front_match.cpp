#include "actors/serving/front_match.hpp"

#include <algorithm>

#include "actors/serving/prefix_hit.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

bool front_match::begin(request_number number, front_request& r) {
  if (!options_.store || r.what.chain.empty()) return false;
  ++matches_;
  r.matching = true;
  entrypoint_actor me = caf::actor_cast<entrypoint_actor>(self_);
  later(self_, options_.match_timeout, match_answer{number, {errc::timeout, "the store is slow"}, 0, {}});
  options_.store->match(r.what.chain, [me, number](result<prefix_match> found) {
    if (!found) return post(me, match_answer{number, to_status(found.error()), 0, {}});
    post(me, match_answer{number, {}, static_cast<uint32_t>(found->blocks), std::move(found->snapshots)});
  });
  return true;
}

bool front_match::take(const match_answer& m, front_request& r, const kernels::model_facts& facts) {
  if (!r.matching) return false;
  r.matching = false;
  r.begin_waiting(now(self_));
  late_ += m.outcome.code == errc::timeout;
  failed_ += !m.outcome.ok();
  if (!m.outcome.ok()) log::debug("entrypoint: request {} is placed as a miss: {}", r.what.id, m.outcome.text);
  r.stored = std::min<uint32_t>(m.blocks, static_cast<uint32_t>(r.what.chain.size()));
  r.snapshots = m.snapshots;
  r.hit = plan(r, facts, r.known()).reuse;
  return true;
}

prefix_plan front_match::plan(const front_request& r, const kernels::model_facts& facts, uint32_t known) const {
  prefix_plan p;
  if (!options_.store || facts.window == 0 || options_.scheme.block_tokens != facts.window) return p;
  p.active = r.what.cache;
  p.chain = r.what.chain;
  p.salt = r.what.salt;
  p.traffic = static_cast<kv::traffic_class>(r.what.traffic);
  if (!p.active || r.stored == 0) return p;
  const auto hit =
      prefix_hit(facts, static_cast<uint32_t>(r.what.prompt.size()), known, r.stored, options_.exact, r.snapshots);
  log::debug("entrypoint: request {}: {} blocks are stored, {}", r.what.id, r.stored, hit.reason);
  p.reuse = hit.reuse;
  p.replay = hit.replay;
  p.snapshot = hit.snapshot;
  return p;
}

void front_match::count(const front_request& r) {
  const auto prompt = static_cast<uint32_t>(r.what.prompt.size());
  const auto cached = std::min(r.cached, prompt);
  hit_tokens_ += cached;
  miss_tokens_ += prompt - cached;
}

void front_match::describe(front_report& out) const {
  out.matches = matches_;
  out.matches_failed = failed_;
  out.matches_late = late_;
  out.hit_tokens = hit_tokens_;
  out.miss_tokens = miss_tokens_;
}

}  // namespace troupe::actors
