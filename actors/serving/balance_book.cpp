#include "actors/serving/balance_book.hpp"

#include <algorithm>

#include "policies/admission.hpp"
#include "policies/decode_place.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {
namespace {

constexpr auto longest_refusal = std::chrono::seconds(1);

}  // namespace

void balance_book::follow(const std::map<actor_key, scheduler_seat>& seats) {
  std::erase_if(ranks_, [&](auto& r) { return !seats.contains(r.first); });
  for (const auto& [key, seat] : seats) {
    if (seat.what != what_) continue;
    auto [it, fresh] = ranks_.try_emplace(key);
    auto& r = it->second;
    r.group = seat.group;
    r.ready = seat.ready;
    if (!fresh) continue;
    for (const auto& [inc, f] : fronts_)  // a front may have seen it first
      for (const auto& [number, l] : f.leases)
        if (l.target == key) add(l);
  }
}

void balance_book::load(const actor_key& target, const rank_load& m) {
  auto it = ranks_.find(target);
  if (it == ranks_.end() || !m.outcome.ok()) return;
  auto& r = it->second;
  r.told = m;
  r.answered = true;
  r.unknown = m.requests > r.leases ? m.requests - r.leases : 0;
  if (m.cost_a > 0 || m.cost_b > 0 || m.cost_d > 0) cost_ = {m.cost_a, m.cost_b, m.cost_d};
  if (m.max_chunk > 0) chunk_tokens_ = m.max_chunk;
}

balance_book::lease balance_book::lease_for(const actor_key& target, const place_wish& wish) const {
  lease l{target, wish, {}, 0};
  if (what_ != role::prefill) return l;
  const policies::prefill_place_input defaults;
  l.work = policies::within_horizon(policies::work_of(cost_, chunk_tokens_, wish.new_tokens, wish.cached_tokens),
                                    defaults.horizon_ns);
  l.tier = policies::tier_of(defaults.tiers, wish.new_tokens);
  return l;
}

void balance_book::add(const lease& l) {
  auto it = ranks_.find(l.target);
  if (it == ranks_.end()) return;
  auto& r = it->second;
  ++r.leases;
  r.attention_ns += l.work.attention_ns;
  r.linear_ns += l.work.linear_ns;
  if (r.tiers.size() <= l.tier) r.tiers.resize(l.tier + 1u);
  ++r.tiers[l.tier];
  r.new_tokens += l.wish.new_tokens;
  r.kv_tokens += l.wish.kv_tokens;
  r.growth_tokens += l.wish.growth_tokens;
}

void balance_book::remove(const lease& l) {
  auto it = ranks_.find(l.target);
  if (it == ranks_.end()) return;
  auto& r = it->second;
  TROUPE_CHECK(r.leases > 0 && l.tier < r.tiers.size() && r.tiers[l.tier] > 0, "a lease on {} twice", l.target.name);
  --r.leases;
  --r.tiers[l.tier];
  r.new_tokens -= l.wish.new_tokens;
  r.kv_tokens -= l.wish.kv_tokens;
  r.growth_tokens -= l.wish.growth_tokens;
  // What rounding leaves does not add up: an empty rank has no work.
  r.attention_ns = r.leases == 0 ? 0 : std::max(0.0, r.attention_ns - l.work.attention_ns);
  r.linear_ns = r.leases == 0 ? 0 : std::max(0.0, r.linear_ns - l.work.linear_ns);
}

bool balance_book::usable(const rank& r, const actor_key& key, const place_request& m) const {
  return r.ready && std::find(m.avoid.begin(), m.avoid.end(), key) == m.avoid.end();
}

uint32_t balance_book::limit_of(const rank& r) const {
  return r.answered ? r.told.slots + r.told.queue_limit : UINT32_MAX;
}

balance_book::choice balance_book::choose_prefill(const place_request& m, nanoseconds now) const {
  policies::prefill_place_input in;
  in.new_tokens = m.wish.new_tokens;
  in.cached_tokens = m.wish.cached_tokens;
  in.cost = cost_;
  in.chunk_tokens = chunk_tokens_;
  std::map<std::string, uint8_t> longest;
  for (const auto& [key, r] : ranks_)
    for (size_t t = 0; t < r.tiers.size(); ++t)
      if (r.tiers[t] > 0) longest[r.group] = std::max(longest[r.group], static_cast<uint8_t>(t));
  for (const auto& [key, r] : ranks_) {
    const uint32_t limit = r.refuses_until > now ? 0 : limit_of(r);
    in.ranks.push_back({usable(r, key, m), r.leases + r.unknown, limit, r.attention_ns, r.linear_ns, longest[r.group]});
  }
  auto plan = policies::place_prefill(in);
  TROUPE_CHECK(plan, "a balancer's own book: {}", plan.error().message);
  return {plan->choice, plan->full, std::move(plan->reason), {{}, m.wish, plan->work, plan->tier}};
}

// Where there is room now; otherwise where the shortest queue is: what waits there holds no pages yet.
balance_book::choice balance_book::choose_decode(const place_request& m, nanoseconds now) const {
  policies::decode_place_input in;
  in.kv_tokens = m.wish.kv_tokens;
  in.growth_tokens = m.wish.growth_tokens;
  for (const auto& [key, r] : ranks_) {
    policies::decode_candidate c;
    c.usable = usable(r, key, m);
    c.requests = r.leases + r.unknown;
    c.kv_tokens = r.kv_tokens;
    c.growth_tokens = r.growth_tokens;
    if (r.answered) {
      c.slots = r.told.slots;
      c.capacity_tokens = uint64_t{r.told.pages} * r.told.page_tokens;
    }
    if (r.refuses_until > now) c.slots = 0;
    in.ranks.push_back(c);
  }
  auto plan = policies::place_decode(in);
  TROUPE_CHECK(plan, "a balancer's own book: {}", plan.error().message);
  if (!plan->full) return {plan->choice, false, std::move(plan->reason), {{}, m.wish, {}, 0}};
  size_t i = 0;
  for (const auto& [key, r] : ranks_) {
    auto& c = in.ranks[i++];
    c.slots = r.refuses_until > now ? 0 : limit_of(r);
    c.capacity_tokens = policies::decode_candidate{}.capacity_tokens;
  }
  plan = policies::place_decode(in);
  TROUPE_CHECK(plan, "a balancer's own book: {}", plan.error().message);
  return {plan->choice, plan->full, "to wait at " + plan->reason, {{}, m.wish, {}, 0}};
}

uint32_t balance_book::retry_after() const {
  policies::admission_input in;
  for (const auto& [key, r] : ranks_) {
    if (!r.ready) continue;
    in.waiting += r.leases + r.unknown;
    in.limit += r.answered ? limit_of(r) : 0;
  }
  in.waiting = std::max(in.waiting, in.limit);  // a rank may have refused below its limit
  return policies::plan_admission(in).retry_after_ms;
}

void balance_book::note(std::string reason) {
  if (!reasons_.empty() && reasons_.back() == reason) return;
  if (reasons_.size() == 16) reasons_.pop_front();
  reasons_.push_back(std::move(reason));
}

place_reply balance_book::place(const place_request& m, nanoseconds now) {
  auto& f = fronts_[m.front.inc];
  f.heard = now;
  if (auto it = f.leases.find(m.lease); it != f.leases.end()) return {{}, it->second.target, 0, "asked again"};
  place_reply reply;
  if (leases_ >= max_leases) {
    ++counters_.refused;
    reply.outcome = {errc::exhausted, fmt::format("{} requests are placed", leases_)};
    reply.retry_after_ms = 1000;
    return reply;
  }
  auto c = what_ == role::prefill ? choose_prefill(m, now) : choose_decode(m, now);
  note(c.reason);
  reply.reason = c.reason;
  if (c.index == SIZE_MAX) {
    ++counters_.refused;
    reply.outcome = {c.full ? errc::exhausted : errc::unavailable, std::move(c.reason)};
    reply.retry_after_ms = c.full ? retry_after() : 250;
    return reply;
  }
  c.made.target = reply.target = std::next(ranks_.begin(), static_cast<std::ptrdiff_t>(c.index))->first;
  add(c.made);
  placed_ns_ += c.made.work.attention_ns + c.made.work.linear_ns;
  f.leases.emplace(m.lease, std::move(c.made));
  ++leases_;
  ++counters_.placed;
  return reply;
}

void balance_book::end(const lease_end& m, nanoseconds now) {
  auto f = fronts_.find(m.front.inc);
  if (f == fronts_.end()) return;
  auto it = f->second.leases.find(m.lease);
  if (it == f->second.leases.end()) return;
  if (auto r = ranks_.find(it->second.target); r != ranks_.end() && m.why != errc{}) {
    const auto pause = std::chrono::milliseconds(std::max(m.retry_after_ms, 1u));
    r->second.refuses_until = now + std::min<nanoseconds>(pause, longest_refusal);
  }
  remove(it->second);
  f->second.leases.erase(it);
  --leases_;
}

void balance_book::update(const lease_update& m, nanoseconds now) {
  auto& f = fronts_[m.front.inc];
  f.heard = now;
  auto old = std::exchange(f.leases, {});
  leases_ -= old.size();
  for (auto& [number, l] : old) {
    const bool asked = std::find(m.asked.begin(), m.asked.end(), number) != m.asked.end();
    if (asked)  // the answer is still on its way
      f.leases.emplace(number, std::move(l)), ++leases_;
    else
      remove(l);
  }
  for (const auto& h : m.held) {
    if (leases_ >= max_leases || f.leases.contains(h.lease)) continue;
    auto l = lease_for(h.target, h.wish);
    add(l);
    f.leases.emplace(h.lease, std::move(l));
    ++leases_;
  }
}

void balance_book::measure(pool_load& out, nanoseconds since) {
  const double placed = std::exchange(placed_ns_, 0.0);
  for (const auto& [key, r] : ranks_) {
    if (what_ == role::prefill) {
      out.queued += (r.attention_ns + r.linear_ns) / 1e9;
    } else if (r.answered && r.told.slots > 0) {
      const double room = static_cast<double>(r.told.pages) * r.told.page_tokens;
      const double full = static_cast<double>(r.leases + r.unknown) / r.told.slots;
      out.rate += std::max(full, room > 0 ? static_cast<double>(r.told.kv_tokens) / room : 0.0);
    }
  }
  if (what_ == role::prefill && since.count() > 0) out.rate = placed / static_cast<double>(since.count());
}

void balance_book::remove_front(std::map<incarnation, front>::iterator it) {
  for (const auto& [number, l] : it->second.leases) remove(l);
  leases_ -= it->second.leases.size();
  fronts_.erase(it);
}

void balance_book::drop(incarnation inc) {
  auto it = fronts_.find(inc);
  if (it == fronts_.end()) return;
  counters_.freed += it->second.leases.size();
  remove_front(it);
}

std::vector<incarnation> balance_book::expire(nanoseconds limit) {
  std::vector<incarnation> out;
  for (const auto& [inc, f] : fronts_)
    if (f.heard < limit) out.push_back(inc);
  for (auto inc : out) {
    auto it = fronts_.find(inc);
    counters_.expired += it->second.leases.size();
    remove_front(it);
  }
  return out;
}

void balance_book::clear() {
  while (!fronts_.empty()) remove_front(fronts_.begin());
}

std::vector<actor_key> balance_book::ready() const {
  std::vector<actor_key> out;
  for (const auto& [key, r] : ranks_)
    if (r.ready) out.push_back(key);
  return out;
}

bool balance_book::complete() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](auto& r) { return !r.second.ready || r.second.answered; });
}

void balance_book::describe(balancer_report& out) const {
  const auto [what, active, term] = std::tuple{out.what, out.active, out.term};
  out = counters_;
  out.what = what;
  out.active = active;
  out.term = term;
  out.fronts = static_cast<uint32_t>(fronts_.size());
  out.leases = static_cast<uint32_t>(leases_);
  for (const auto& [key, r] : ranks_)
    out.ranks.push_back(
        {key, r.ready, r.leases, what_ == role::prefill ? r.new_tokens : r.kv_tokens + r.growth_tokens});
  out.reasons.assign(reasons_.begin(), reasons_.end());
}

}  // namespace troupe::actors
