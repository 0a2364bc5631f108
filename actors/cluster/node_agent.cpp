#include "actors/cluster/node_agent.hpp"

#include <algorithm>
#include <deque>
#include <map>

#include "actors/protocol/messages.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum agent_timer : uint8_t { join_timer = 1, heartbeat_timer = 2 };

class node_agent_state {
 public:
  using interface = node_agent_actor;
  static inline const char* name = "node_agent";
  explicit node_agent_state(interface::pointer self) : self_(self), links_(self) {}
  ~node_agent_state() { end_roles(); }

  interface::behavior_type make_behavior(node_agent_options options) {
    options_ = std::move(options);
    wait_ = options_.retry;
    find_director();
    return {
        [this](const cluster_view& m) { follow(m); },
        [this](const assign_roles& m) {
          if (at_ == phase::serving && m.inc == identity_.inc && m.epoch == identity_.epoch && m.term == term_)
            m.retire_ms > 0 ? retire(std::chrono::milliseconds(m.retire_ms)) : start(m.roles);
        },
        [this](const role_update& m) { update(m); },
        [this](const suspects_found& m) { suspect(m); },
        [this](pool_load m) {
          if (at_ == phase::joining || !director_) return;
          m.epoch = identity_.epoch;
          m.node = identity_.node;
          m.inc = identity_.inc;
          tell(self_, director_, m);
        },
        [this](const lookup_request& m) { return lookup(m); },
        [this](const stop_request& m) { return stop(m); },
        [this](const dial_request& m) {
          if (m.to == identity_.node) tell(self_, options_.directory, m);
        },
        [this](const agent_query&) {
          return agent_report{at_ != phase::joining, identity_.node, identity_.inc, reports(), text_};
        },
        [this](const tick& t) {
          if (join_.fired(t)) find_director();
          if (heartbeat_.fired(t)) beat();
        },
    };
  }

 private:
  enum class phase : uint8_t { joining, serving, draining, left };
  struct running_role {
    role_report report;
    role_actors actors;
  };

  // -- joining --------------------------------------------------------------------------------------------------

  void again(const std::string& why) {
    text_ = why;
    log::info("node agent: not in the cluster yet: {}", why);
    director_ = nullptr;
    join_.arm(self_, wait_);
    // A new director waits only so long for the nodes that run.
    wait_ = std::min(at_ == phase::joining ? options_.retry_limit : options_.rejoin_limit, wait_ * 2);
  }

  void find_director() {
    if (at_ == phase::left) return;
    if (options_.director) return use(options_.director);
    links_.ask(
        self_, options_.directory, options_.ask_timeout, resolve_request{{{}, {}, "director"}},
        [this](const resolve_reply& r) { r.outcome.ok() ? use(r.handle) : again(r.outcome.text); },
        [this](const error& e) { again(e.message); });
  }

  void use(const any_handle& handle) {
    director_ = caf::actor_cast<director_actor>(handle);
    links_.watch(director_, [this](const error& e) {
      // The last view stays in force; the roles go on while the director is looked for.
      again("connection to the director lost: " + e.message);
    });
    if (at_ == phase::joining)
      join();
    else
      beat();
  }

  void join() {
    links_.ask(
        self_, director_, options_.ask_timeout, options_.self,
        [this](const join_reply& r) {
          if (at_ != phase::joining) return;
          if (!r.outcome.ok()) return lose_director("it refuses this node: " + r.outcome.text);
          if (r.term < term_) return lose_director(older(r.term));
          at_ = phase::serving;
          wait_ = options_.retry;
          identity_ = {r.epoch, r.node, r.inc};
          term_ = r.term;
          heartbeat_every_ = std::chrono::milliseconds(std::max<int64_t>(1, r.heartbeat_ms));
          text_ = "joined";
          log::info("node agent: node {} incarnation {}", r.node.value, r.inc.value);
          start(r.roles);
          beat();
        },
        [this](const error& e) { lose_director(e.message); });
  }

  std::string older(director_term t) const {
    return fmt::format("director {} is older than {}, which has led this node", t.value, term_.value);
  }

  // Another director answers, which knows nobody: the roles go on under it, if it takes them.
  void rejoin() {
    if (rejoining_) return;
    rejoining_ = true;
    links_.ask(
        self_, director_, options_.ask_timeout,
        rejoin_request{options_.self, identity_.epoch, identity_.node, identity_.inc, term_, reports(), view_},
        [this, inc = identity_.inc](const join_reply& r) {
          rejoining_ = false;
          if (inc != identity_.inc || at_ == phase::left) return;
          if (r.outcome.ok()) {
            term_ = r.term;
            wait_ = options_.retry;
            log::info("node agent: director {} has taken over", term_.value);
            beat();
          } else if (r.outcome.code != errc::stale) {
            lose_director(r.outcome.text);
          } else if (at_ == phase::serving) {
            give_up(r.outcome.text);
          }
        },
        [this](const error&) { rejoining_ = false; });  // the next heartbeat comes here again
  }

  void lose_director(const std::string& why) {
    links_.unwatch(director_);
    again(why);
  }

  // This incarnation is over: roles end, and the node joins as a new one.
  void give_up(const std::string& why) {
    log::warn("node agent: incarnation {} was given up: {}", identity_.inc.value, why);
    end_roles();
    heartbeat_.stop();
    to_drain_.clear();
    retiring_ = false;
    at_ = phase::joining;
    identity_ = {};
    view_ = {};
    lose_director(why);
  }

  // -- roles ----------------------------------------------------------------------------------------------------

  void start(const std::vector<role_assignment>& roles) {
    interface me = caf::actor_cast<interface>(self_);
    for (const auto& a : roles) {
      const auto seat = a.seat();
      if (roles_.contains(seat)) continue;
      auto& r = roles_[seat];
      r.report.assignment = a;
      auto started = options_.roles->start(self_, a, identity_, me, options_.directory);
      if (!started) {
        r.report.state = role_state::failed;
        r.report.text = started.error().message;
        log::error("node agent: {} did not start: {}", seat, r.report.text);
        continue;
      }
      r.actors = std::move(*started);
      for (auto& h : r.actors.all) links_.watch(h, [this, seat](const error& e) { role_ended(seat, e); });
      if (view_.version > 0)
        for (auto& v : r.actors.viewers) tell(self_, v, view_);
    }
  }

  // An actor of a role ended by itself: the state of the whole node is in doubt, so it becomes a new incarnation.
  void role_ended(const std::string& seat, const error& e) {
    if (at_ == phase::serving) {
      give_up(fmt::format("an actor of {} ended: {}", seat, e.message));
    } else if (auto it = roles_.find(seat); it != roles_.end()) {
      it->second.report.state = role_state::failed;
      it->second.report.text = e.message;
    }
  }

  void end_roles() {
    for (auto& [seat, r] : roles_) {
      for (auto& h : r.actors.all) {
        links_.unwatch(h);
        end_actor(h);
      }
      options_.roles->stopped(r.report.assignment);
    }
    roles_.clear();
  }

  void update(const role_update& m) {
    auto it = roles_.find(m.seat);
    if (it == roles_.end()) return;
    auto& r = it->second.report;
    r.state = m.state;
    r.ep_address = m.ep_address;
    r.group = m.group;
    r.text = m.text;
    if (at_ == phase::serving || at_ == phase::draining) beat();
  }

  std::vector<role_report> reports() const {
    std::vector<role_report> out;
    for (auto& [seat, r] : roles_) out.push_back(r.report);
    return out;
  }

  // -- reporting ------------------------------------------------------------------------------------------------

  void beat() {
    if (at_ == phase::joining || at_ == phase::left) return;
    heartbeat_.arm(self_, heartbeat_every_);
    if (!director_) return;
    heartbeat m{identity_.epoch, identity_.node, identity_.inc, view_.version, reports()};
    links_.ask(
        self_, director_, options_.ask_timeout, std::move(m),
        [this, inc = identity_.inc](const heartbeat_reply& r) {
          if (inc == identity_.inc && r.term < term_) {
            lose_director(older(r.term));
          } else if (r.outcome.ok()) {
            wait_ = options_.retry;
          } else if (inc == identity_.inc && r.term > term_) {
            rejoin();
          } else if (inc == identity_.inc && at_ == phase::serving) {
            give_up(r.outcome.text);
          }
        },
        [](const error&) {});  // the next one tries again; a lost connection is noticed by the watch
  }

  void follow(const cluster_view& m) {
    if (at_ == phase::joining || m.epoch != identity_.epoch || m.term < term_ || m.version <= view_.version) return;
    view_ = m;
    tell(self_, options_.directory, view_);
    for (auto& [seat, r] : roles_)
      for (auto& v : r.actors.viewers) tell(self_, v, view_);
  }

  void suspect(const suspects_found& m) {
    if (at_ == phase::joining || !director_) return;
    links_.ask(
        self_, director_, options_.ask_timeout,
        suspect_report{identity_.epoch, identity_.node, identity_.inc, m.group, m.view, m.ranks}, [](const ack&) {},
        [](const error&) {});  // the director's own detection covers a report that is lost
  }

  lookup_reply lookup(const lookup_request& m) const {
    if (m.inc != incarnation{} && m.inc != identity_.inc)
      return {{errc::stale, fmt::format("incarnation {} runs here", identity_.inc.value)}, nullptr};
    if (m.name == "node_agent") return {{}, caf::strong_actor_ptr{self_->ctrl()}};
    for (auto& [seat, r] : roles_) {
      auto it = r.actors.named.find(m.name);
      if (it != r.actors.named.end()) return {{}, it->second};
    }
    return {{errc::not_found, fmt::format("no actor '{}' here", m.name)}, nullptr};
  }

  // -- leaving --------------------------------------------------------------------------------------------------

  caf::result<stop_reply> stop(const stop_request& m) {
    if (at_ == phase::left || at_ == phase::draining) return stop_reply{{errc::unavailable, "already stopping"}, 0};
    auto p = self_->make_response_promise<promise<stop_reply>>();
    stop_ = p;
    deadline_ = now(self_) + std::chrono::milliseconds(std::max<int64_t>(0, m.grace_ms));
    if (at_ == phase::joining) {
      leave();
      return p;
    }
    at_ = phase::draining;
    retiring_ = false;
    drain_all();
    return p;
  }

  // The director wants something else of this node: as a new incarnation, when what it does is done.
  void retire(nanoseconds within) {
    if (retiring_ || roles_.empty()) return;
    retiring_ = true;
    deadline_ = now(self_) + within;
    log::info("node agent: the roles are drained, for others");
    drain_all();
  }

  void drain_all() {
    to_drain_.clear();
    for (auto& [seat, r] : roles_) {
      r.report.state = role_state::draining;
      for (auto& d : r.actors.drain_order) to_drain_.push_back(d);
    }
    beat();
    drain_next();
  }

  void drain_next() {
    if (to_drain_.empty()) {
      if (!retiring_) return leave();
      retiring_ = false;
      return give_up("its roles are over, as the director wanted");
    }
    auto next = to_drain_.front();
    to_drain_.pop_front();
    const auto left = std::max(nanoseconds{0}, deadline_ - now(self_));
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    // A stop, or the end of the incarnation, may come while a role retires: the drain that ran before is over then.
    const auto still = [this, inc = identity_.inc, retiring = retiring_] {
      return at_ != phase::left && inc == identity_.inc && retiring == retiring_;
    };
    links_.ask(
        self_, next, left + options_.ask_timeout, drain_request{ms},
        [this, still](const drain_reply& r) {
          if (!still()) return;
          left_ += r.left;
          drain_next();
        },
        [this, still](const error&) {
          if (still()) drain_next();
        });
  }

  void leave() {
    const bool member = at_ == phase::draining && director_;
    at_ = phase::left;
    heartbeat_.stop();
    join_.stop();
    if (!member) return done();
    links_.ask(
        self_, director_, options_.ask_timeout, leave_request{identity_.epoch, identity_.node, identity_.inc},
        [this](const ack&) { done(); }, [this](const error&) { done(); });
  }

  void done() {
    end_roles();
    stop_.deliver(stop_reply{{left_ ? errc::timeout : errc{}, left_ ? "requests were cut off" : ""}, left_});
    self_->quit();
  }

  interface::pointer self_;
  peer_links links_;
  node_agent_options options_;
  phase at_ = phase::joining;
  director_actor director_;
  node_identity identity_;
  director_term term_;  // of the newest director that was obeyed
  bool rejoining_ = false, retiring_ = false;
  nanoseconds heartbeat_every_{std::chrono::milliseconds(500)}, wait_{0}, deadline_{0};
  cluster_view view_;
  std::map<std::string, running_role> roles_;  // by seat; one today
  std::string text_;
  std::deque<drainable_actor> to_drain_;
  uint32_t left_ = 0;
  promise<stop_reply> stop_;
  timer join_{join_timer}, heartbeat_{heartbeat_timer};
};

}  // namespace

node_agent_actor spawn_node_agent(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                                  node_agent_options options) {
  return spawn_on<node_agent_state>(system, node, unit, std::move(options));
}

}  // namespace troupe::actors
