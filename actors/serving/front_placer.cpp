#include "actors/serving/front_placer.hpp"

#include <algorithm>

#include "actors/protocol/messages.hpp"
#include "actors/serving/balancer.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

front_placer::front_placer(entrypoint_actor::pointer self, peer_links& links, const entrypoint_options& options,
                           front_schedulers& schedulers, std::array<uint8_t, 2> timer_kinds, rows_of rows)
    : self_(self),
      links_(links),
      options_(options),
      schedulers_(schedulers),
      rows_(std::move(rows)),
      again_(timer_kinds[0]),
      renew_(timer_kinds[1]) {
  balancers_[0].what = role::prefill;
  balancers_[1].what = role::decode;
}

// -- the balancers ------------------------------------------------------------------------------------------------

void front_placer::follow(const cluster_view& view) {
  if (view.balancer == seat_) return;
  seat_ = view.balancer;
  for (auto& b : balancers_) {
    lost(b, "another one is active");
    attach(b);
  }
}

void front_placer::lost(balancer& b, const std::string& why) {
  if (b.at == balancer::state::attached)
    log::info("entrypoint: the {} balancer is gone ({}): this front places by itself", to_string(b.what), why);
  links_.unwatch(b.handle);
  b.handle = nullptr;
  b.at = balancer::state::unknown;
}

void front_placer::attach(balancer& b) {
  if (b.at != balancer::state::unknown || seat_.node == node_number{}) return;
  b.at = balancer::state::resolving;
  const auto again = [this, &b, term = seat_.term](const std::string& why) {
    if (term != seat_.term || b.at != balancer::state::resolving) return;
    log::debug("entrypoint: the {} balancer: {}", to_string(b.what), why);
    b.at = balancer::state::unknown;
    if (!again_.armed()) again_.arm(self_, options_.attach_retry);
  };
  links_.ask(
      self_, options_.directory, options_.ask_timeout,
      resolve_request{{seat_.node, seat_.inc, balancer_name(seat_.seat, b.what)}},
      [this, &b, again, term = seat_.term](const resolve_reply& r) {
        if (!r.outcome.ok()) return again(r.outcome.text);
        if (term != seat_.term) return;
        auto handle = caf::actor_cast<balancer_actor>(r.handle);
        links_.ask(
            self_, handle, options_.ask_timeout, everything(b.what),
            [this, &b, again, term, handle](const ack& a) {
              if (!a.outcome.ok()) return again(a.outcome.text);
              if (term != seat_.term || b.at != balancer::state::resolving) return;
              b.at = balancer::state::attached;
              b.handle = handle;
              links_.watch(handle, [this, &b, handle](const error& e) {
                if (b.handle != handle) return;
                lost(b, e.message);
                if (!again_.armed()) again_.arm(self_, options_.attach_retry);
              });
              renew(b);  // what has been placed since
            },
            [again](const error& e) { again(e.message); });
      },
      [again](const error& e) { again(e.message); });
}

lease_update front_placer::everything(role what) {
  lease_update m{options_.identity.epoch, seat_.term, front_key(options_), {}, {}};
  for (auto& [number, l] : held_) {
    if (l.what != what) continue;
    if (l.asked) {
      m.asked.push_back(number);
      continue;
    }
    if (what == role::decode) {  // what it has generated is no more to come
      const uint32_t both = l.wish.kv_tokens + l.wish.growth_tokens;
      l.wish.kv_tokens = std::max(l.wish.kv_tokens, rows_(l.who));
      l.wish.growth_tokens = both > l.wish.kv_tokens ? both - l.wish.kv_tokens : 0;
    }
    m.held.push_back({number, l.target, l.wish});
  }
  return m;
}

void front_placer::renew(balancer& b) {
  if (!renew_.armed()) renew_.arm(self_, options_.renew_every);
  links_.ask(
      self_, b.handle, options_.ask_timeout, everything(b.what),
      [this, &b, term = seat_.term](const ack& a) {
        if (a.outcome.ok() || term != seat_.term || b.at != balancer::state::attached) return;
        lost(b, a.outcome.text);
        if (!again_.armed()) again_.arm(self_, options_.attach_retry);
      },
      [](const error&) {});  // the next one, or the next place, finds out
}

bool front_placer::ticked(const tick& t) {
  if (again_.fired(t)) {
    for (auto& b : balancers_) attach(b);
    return true;
  }
  if (!renew_.fired(t)) return false;
  if (!held_.empty())
    for (auto& b : balancers_)
      if (b.at == balancer::state::attached) renew(b);
  return true;
}

// -- places -------------------------------------------------------------------------------------------------------

lease_number front_placer::open(role what, request_number who, const place_wish& wish) {
  const lease_number number{next_++};
  held_.emplace(number, lease{what, who, wish, {}, true});
  return number;
}

void front_placer::find(lease_number number, const std::vector<actor_key>& avoid, on_found done) {
  const auto& l = held_.at(number);
  auto& b = of(l.what);
  if (b.at != balancer::state::attached) return choose_alone(number, avoid, done);
  if (!renew_.armed()) renew_.arm(self_, options_.renew_every);
  place_request m{options_.identity.epoch, seat_.term, front_key(options_), number, l.wish, avoid};
  for (auto& key : schedulers_.unusable(l.what)) m.avoid.push_back(std::move(key));
  links_.ask(
      self_, b.handle, options_.place_timeout, std::move(m),
      [this, &b, number, avoid, done, term = seat_.term](const place_reply& r) {
        auto it = held_.find(number);
        if (it == held_.end()) {  // ended meanwhile
          if (r.outcome.ok()) tell_end(b.what, number, {}, 0);
          return;
        }
        if (r.outcome.code == errc::stale) {
          if (term == seat_.term && b.at == balancer::state::attached) lost(b, r.outcome.text);
          if (!again_.armed()) again_.arm(self_, options_.attach_retry);
          return choose_alone(number, avoid, done);
        }
        if (!r.outcome.ok()) {
          held_.erase(it);
          return done({r.outcome, number, {}, r.retry_after_ms});
        }
        it->second.asked = false;
        it->second.target = r.target;
        const auto* t = schedulers_.find(r.target);
        if (!t || !t->usable()) {  // not attached yet, or not any more
          end(number);
          return done({{errc::unavailable, "the chosen rank cannot be reached yet"}, number, {}, 0});
        }
        ++balanced_;
        done({{}, number, r.target, 0});
      },
      [this, &b, number, avoid, done, handle = b.handle](const error& e) {
        if (b.handle == handle) lost(b, e.message);
        if (!again_.armed()) again_.arm(self_, options_.attach_retry);
        if (held_.contains(number)) choose_alone(number, avoid, done);
      });
}

void front_placer::choose_alone(lease_number number, const std::vector<actor_key>& avoid, const on_found& done) {
  auto& l = held_.at(number);
  const auto key = schedulers_.next(l.what, avoid);
  if (key == actor_key{}) {
    const auto text = fmt::format("no {} rank can be used now", to_string(l.what));
    held_.erase(number);
    return done({{errc::unavailable, text}, number, {}, 0});
  }
  l.asked = false;
  l.target = key;
  ++alone_;
  done({{}, number, key, 0});
}

void front_placer::end(lease_number number, errc why, uint32_t retry_after_ms) {
  auto it = held_.find(number);
  if (it == held_.end()) return;
  const auto l = it->second;
  held_.erase(it);
  if (!l.asked) tell_end(l.what, number, why, retry_after_ms);
}

void front_placer::tell_end(role what, lease_number number, errc why, uint32_t retry_after_ms) {
  auto& b = of(what);
  if (b.at != balancer::state::attached) return;
  links_.ask(
      self_, b.handle, options_.ask_timeout,
      lease_end{options_.identity.epoch, seat_.term, front_key(options_), number, why, retry_after_ms},
      [](const ack&) {}, [](const error&) {});  // one that is lost is made up for by the next lease_update
}

}  // namespace troupe::actors
