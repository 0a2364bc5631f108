#include "actors/serving/balancer.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "actors/protocol/messages.hpp"
#include "actors/serving/balance_book.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum balancer_timer : uint8_t { load_timer = 1, expiry_timer = 2, report_timer = 3 };

class balancer_state {
 public:
  using interface = balancer_actor;
  static inline const char* name = "balancer";
  explicit balancer_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(balancer_options options) {
    options_ = std::move(options);
    book_ = std::make_unique<balance_book>(options_.what);
    return {
        [this](const place_request& m) { return place(m); },
        [this](const lease_end& m) {
          auto outcome = check(m.epoch, m.term, m.front);
          if (outcome.ok()) book_->end(m, now(self_));
          return ack{std::move(outcome)};
        },
        [this](const lease_update& m) {
          auto outcome = check(m.epoch, m.term, m.front);
          if (outcome.ok()) {
            book_->update(m, now(self_));
            keep_going();
          }
          return ack{std::move(outcome)};
        },
        [this](const cluster_view& m) { follow(m); },
        [this](const balancer_query&) {
          balancer_report r;
          r.what = options_.what;
          r.active = active_;
          r.term = term_;
          book_->describe(r);
          r.stale = stale_;
          return r;
        },
        [this](const tick& t) {
          if (load_.fired(t)) ask_loads();
          if (report_.fired(t)) report_load();
          if (expiry_.fired(t)) {
            for (auto inc : book_->expire(now(self_) - options_.lease_life)) forget(inc, "was not heard");
            keep_going();
          }
        },
    };
  }

 private:
  struct scheduler {
    scheduler_actor handle;
    bool asked = false;  // for itself or for its load
  };

  // -- fronts -----------------------------------------------------------------------------------------------------

  place_reply place(const place_request& m) {
    place_reply reply;
    reply.outcome = check(m.epoch, m.term, m.front);
    if (!reply.outcome.ok()) return reply;
    reply = book_->place(m, now(self_));
    log::debug("{} balancer: lease {} of node {}: {}", to_string(options_.what), m.lease.value, m.front.node.value,
               reply.reason);
    keep_going();
    return reply;
  }

  // Whether to obey. Incarnations grow from node to node: one that is not above all that were seen, and is not there,
  // has been given up.
  status check(cluster_epoch epoch, balancer_term term, const actor_key& front) {
    const auto stale = [&](const char* text) {
      ++stale_;
      return status{errc::stale, text};
    };
    if (epoch != options_.identity.epoch) return stale("another cluster epoch");
    if (!active_ || term != term_) return stale("not the active balancer of this term");
    if (front.inc <= newest_ && !alive_.contains(front.inc)) return stale("this front was given up");
    if (book_->knows(front.inc)) return {};
    if (book_->fronts() >= options_.max_fronts)
      return {errc::exhausted, fmt::format("{} fronts place here", book_->fronts())};
    auto handle = self_->current_sender();
    watched_[front.inc] = handle;
    links_.watch(handle, [this, inc = front.inc](const error& e) {
      watched_.erase(inc);
      forget(inc, e.message);
    });
    return {};
  }

  void forget(incarnation front, const std::string& why) {
    if (auto it = watched_.find(front); it != watched_.end()) {
      links_.unwatch(it->second);
      watched_.erase(it);
    }
    if (book_->knows(front))
      log::info("{} balancer: front incarnation {} is gone ({})", to_string(options_.what), front.value, why);
    book_->drop(front);
  }

  // -- the view ---------------------------------------------------------------------------------------------------

  void follow(const cluster_view& view) {
    if (view.version <= view_version_) return;
    view_version_ = view.version;
    alive_.clear();
    for (const auto& n : view.nodes) {
      alive_.insert(n.inc);
      newest_ = std::max(newest_, n.inc);
    }
    const bool mine = view.balancer.node == options_.identity.node && view.balancer.inc == options_.identity.inc;
    if (active_ && (!mine || view.balancer.term != term_)) {
      while (!watched_.empty()) forget(watched_.begin()->first, "another balancer is active");
      book_->clear();
    }
    if (mine && (!active_ || view.balancer.term != term_))
      log::info("{} balancer: active, term {}", to_string(options_.what), view.balancer.term.value);
    active_ = mine;
    term_ = view.balancer.term;
    std::vector<incarnation> gone;
    for (const auto& [inc, handle] : watched_)
      if (inc <= newest_ && !alive_.contains(inc)) gone.push_back(inc);
    for (auto inc : gone) forget(inc, "given up");
    book_->follow(scheduler_seats(view));
    const auto ready = book_->ready();
    std::erase_if(schedulers_, [&](auto& s) {
      if (std::binary_search(ready.begin(), ready.end(), s.first)) return false;
      links_.unwatch(s.second.handle);
      return true;
    });
    if (active_) ask_loads();
    if (active_ && options_.agent && !report_.armed()) {
      reported_ = now(self_);
      report_.arm(self_, options_.report_every);
    }
  }

  void report_load() {
    if (!active_) return;
    const auto t = now(self_);
    pool_load m;
    m.term = term_;
    m.what = options_.what;
    book_->measure(m, t - std::exchange(reported_, t));
    tell(self_, options_.agent, m);
    report_.arm(self_, options_.report_every);
  }

  // -- loads ------------------------------------------------------------------------------------------------------

  // While somebody has placed something, or a rank has not said yet what it can hold.
  void keep_going() {
    if (!active_) return;
    if (!load_.armed() && (book_->leases() > 0 || !book_->complete())) load_.arm(self_, options_.load_every);
    if (!expiry_.armed() && book_->fronts() > 0) expiry_.arm(self_, options_.lease_life / 4);
  }

  void ask_loads() {
    for (const auto& key : book_->ready()) {
      auto& s = schedulers_[key];
      if (s.asked) continue;
      s.asked = true;
      s.handle ? ask_load(key, s.handle) : resolve(key);
    }
    keep_going();
  }

  void resolve(const actor_key& key) {
    links_.ask(
        self_, options_.directory, options_.ask_timeout, resolve_request{key},
        [this, key](const resolve_reply& r) {
          auto it = schedulers_.find(key);
          if (it == schedulers_.end()) return;
          if (!r.outcome.ok()) return failed(key, r.outcome.text);
          it->second.handle = caf::actor_cast<scheduler_actor>(r.handle);
          links_.watch(it->second.handle, [this, key](const error& e) { failed(key, e.message); });
          ask_load(key, it->second.handle);
        },
        [this, key](const error& e) { failed(key, e.message); });
  }

  void ask_load(const actor_key& key, const scheduler_actor& handle) {
    links_.ask(
        self_, handle, options_.ask_timeout, rank_load_query{options_.identity.epoch},
        [this, key](const rank_load& m) {
          auto it = schedulers_.find(key);
          if (it == schedulers_.end()) return;
          it->second.asked = false;
          book_->load(key, m);
        },
        [this, key](const error& e) { failed(key, e.message); });
  }

  // Its seat says that it is ready, so it stays a candidate; whoever is sent there finds out.
  void failed(const actor_key& key, const std::string& why) {
    auto it = schedulers_.find(key);
    if (it == schedulers_.end()) return;
    log::debug("{} balancer: {} of node {}: {}", to_string(options_.what), key.name, key.node.value, why);
    links_.unwatch(it->second.handle);
    it->second = {};
  }

  interface::pointer self_;
  peer_links links_;
  balancer_options options_;
  std::unique_ptr<balance_book> book_;
  bool active_ = false;
  balancer_term term_;
  uint64_t view_version_ = 0, stale_ = 0;
  std::set<incarnation> alive_;                // of the newest view
  incarnation newest_;                         // of any view
  std::map<incarnation, any_handle> watched_;  // the fronts of the book, bounded by max_fronts
  std::map<actor_key, scheduler> schedulers_;  // of the ready ranks
  timer load_{load_timer}, expiry_{expiry_timer}, report_{report_timer};
  nanoseconds reported_{0};
};

}  // namespace

balancer_actor spawn_balancer(caf::local_actor* parent, balancer_options options) {
  return spawn<balancer_state>(parent, std::move(options));
}

}  // namespace troupe::actors
