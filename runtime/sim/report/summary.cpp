#include "runtime/sim/report/summary.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

// Values of a pool_kind that has steps, or 2.
size_t pool_of(uint64_t v) { return v <= 1 ? static_cast<size_t>(v) : 2; }

}  // namespace

quantiles quantiles_of(std::vector<int64_t>& values) {
  quantiles q;
  q.count = values.size();
  if (values.empty()) return q;
  std::sort(values.begin(), values.end());
  // ceil(share * n) in whole numbers.
  const auto at = [&](uint64_t percent) { return values[(values.size() * percent + 99) / 100 - 1]; };
  q.p50 = at(50), q.p90 = at(90), q.p99 = at(99), q.most = values.back();
  __int128 sum = 0;
  for (const int64_t v : values) sum += v;
  q.mean = static_cast<int64_t>(sum / static_cast<int64_t>(values.size()));
  return q;
}

summary_builder::summary_builder(summary_options options) { out_.about = std::move(options); }

void summary_builder::went_on(open_request& r, int64_t at_ns) {
  for (const uint32_t k : r.waits)
    out_.faults[k].silence = std::max(out_.faults[k].silence, at_ns - out_.faults[k].began);
  r.waits.clear();
}

void summary_builder::on(const event& e) {
  auto& s = out_;
  const auto& v = e.v;
  if (e.kind == event_kind::run_started) start_ = e.at;
  const int64_t at_ns = std::max<int64_t>(0, e.at - start_);
  s.virtual_ns = std::max(s.virtual_ns, at_ns);
  switch (e.kind) {
    case event_kind::request_submitted:
      ++s.submitted, s.input_tokens += v[1];
      open_[v[0]].submitted = at_ns;
      s.over_time.at(at_ns).arrived += 1;
      break;
    case event_kind::prefix_matched: {
      s.asked_blocks += v[1], s.hit_blocks += v[2], s.matched_tokens += v[3], s.hit_tokens += v[4];
      auto& bin = s.over_time.at(at_ns);
      bin.asked_tokens += static_cast<double>(v[3]), bin.hit_tokens += static_cast<double>(v[4]);
      break;
    }
    case event_kind::request_placed:
      if (const auto at = open_.find(v[0]); at != open_.end() && v[1] > at->second.attempt)
        ++s.resumptions, at->second.attempt = v[1];
      break;
    case event_kind::request_tokens: {
      s.output_tokens += v[3];
      s.over_time.at(at_ns).tokens += static_cast<double>(v[3]);
      if (const auto at = open_.find(v[0]); at != open_.end()) {
        if (at->second.first < 0) at->second.first = at_ns;
        at->second.last = at_ns, at->second.tokens += v[3];
        went_on(at->second, at_ns);
      }
      break;
    }
    case event_kind::request_ended: {
      const auto at = open_.find(v[0]);
      if (at == open_.end()) break;
      went_on(at->second, at_ns);
      const auto r = std::move(at->second);
      open_.erase(at);
      if (v[1] == static_cast<uint64_t>(request_end::failed)) ++s.failed;
      if (v[1] == static_cast<uint64_t>(request_end::cancelled)) ++s.cancelled;
      if (v[1] != static_cast<uint64_t>(request_end::finished)) break;
      ++s.finished;
      s.over_time.at(at_ns).finished += 1;
      whole_.push_back(at_ns - r.submitted);
      if (r.first < 0) break;
      const int64_t first = r.first - r.submitted;
      const int64_t each = r.tokens > 1 ? (r.last - r.first) / static_cast<int64_t>(r.tokens - 1) : 0;
      first_token_.push_back(first);
      if (r.tokens > 1) per_token_.push_back(each);
      s.within_slo += first <= s.about.slo_first_token.count() && each <= s.about.slo_per_token.count();
      break;
    }
    case event_kind::step: {
      const size_t p = pool_of(v[1]);
      if (p > 1) break;
      auto& pool = pools_[p];
      const double rank_ns = static_cast<double>(v[3]) * static_cast<double>(v[4]);
      ++pool.steps, pool.tokens += v[5], pool.rank_ns += rank_ns;
      if (auto& most = pool.ranks_of[v[0]]; v[4] > most) pool.most_ranks += v[4] - most, most = v[4];
      s.over_time.add_step(p, at_ns - static_cast<int64_t>(v[3]), at_ns, static_cast<double>(v[2]), rank_ns);
      break;
    }
    case event_kind::bytes_moved:
      if (v[0] < s.bytes.size()) s.bytes[v[0]] += v[1];
      break;
    case event_kind::pool_load:
      if (v[0] < 4) {
        auto& bin = s.over_time.at(at_ns);
        bin.ready[v[0]] = v[1], bin.waiting[v[0]] = v[2], bin.running[v[0]] = v[3];
      }
      break;
    case event_kind::fault_began: {
      if (s.faults.size() <= v[0] && v[0] < 10'000) s.faults.resize(v[0] + 1);
      if (v[0] >= s.faults.size()) break;
      auto& f = s.faults[v[0]];
      if (v[1] < fault_kinds) f.kind = to_string(static_cast<fault_kind>(v[1]));
      if (v[2] < node_roles) f.target = format_node({static_cast<node_role>(v[2]), static_cast<uint32_t>(v[3])});
      f.name = f.kind + "-" + std::to_string(v[0]), f.began = at_ns;
      for (auto& [id, r] : open_)
        if (r.first >= 0) r.waits.push_back(static_cast<uint32_t>(v[0])), ++f.streams;
      break;
    }
    case event_kind::fault_ended:
      if (v[0] < s.faults.size()) s.faults[v[0]].ended = at_ns;
      break;
    case event_kind::fault_seen:
      if (v[0] < s.faults.size() && s.faults[v[0]].seen < 0) s.faults[v[0]].seen = at_ns;
      break;
    case event_kind::fault_recovered:
      if (v[0] < s.faults.size()) s.faults[v[0]].recovered = static_cast<int64_t>(v[1]);
      break;
    default:
      break;
  }
}

void summary_builder::faults(const std::vector<fault_outcome>& outcomes, std::vector<std::string> without_effect) {
  out_.without_effect = std::move(without_effect);
  if (out_.faults.size() < outcomes.size()) out_.faults.resize(outcomes.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    auto& f = out_.faults[i];
    f.name = outcomes[i].name, f.kind = to_string(outcomes[i].kind), f.target = format_node(outcomes[i].target);
    if (outcomes[i].ended && f.ended < 0) f.ended = f.began;  // done at once: there is no event
  }
}

run_summary summary_builder::finish(uint64_t hash, uint64_t count) const {
  run_summary s = out_;
  s.event_log_hash = hash, s.events = count;
  auto first = first_token_, each = per_token_, whole = whole_;
  s.first_token = quantiles_of(first), s.per_token = quantiles_of(each), s.whole = quantiles_of(whole);
  const auto run = static_cast<double>(s.virtual_ns);
  for (size_t p = 0; p < 2; ++p) {
    auto& pool = s.pools[p];
    const uint32_t given = p == 0 ? s.about.prefill_ranks : s.about.decode_ranks;
    pool.ranks = given > 0 ? given : static_cast<uint32_t>(pools_[p].most_ranks);
    pool.steps = pools_[p].steps, pool.tokens = pools_[p].tokens;
    if (pool.ranks == 0 || s.virtual_ns == 0) continue;
    pool.in_steps = pools_[p].rank_ns / (pool.ranks * run);
    pool.achieved_over_balanced =
        s.over_time.work_between(p, s.virtual_ns / 10, s.virtual_ns - s.virtual_ns / 10) / (pool.ranks * run * 0.8);
  }
  auto in = s.about.prices;
  in.hours = run / 3.6e12;
  in.gpus = s.pools[0].ranks + s.pools[1].ranks;
  in.input_mtokens = static_cast<double>(s.input_tokens) / 1e6;
  in.output_mtokens = static_cast<double>(s.output_tokens) / 1e6;
  in.hit_ratio = s.matched_tokens == 0
                     ? 0
                     : std::min(1.0, static_cast<double>(s.hit_tokens) / static_cast<double>(s.matched_tokens));
  if (const auto plan = policies::plan_economics(in)) s.account = *plan;
  return s;
}

}  // namespace troupe::sim
