// The schedulers that a front can reach: it attaches to each that is in the view, again when the connection was lost.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "actors/protocol/rank.hpp"
#include "actors/serving/entrypoint.hpp"

namespace troupe::actors {

/// A scheduler somewhere.
struct front_target {
  enum class state : uint8_t { unknown, resolving, attached };
  role what = role::none;
  state at = state::unknown;
  bool admits = false;  // its seat was ready in the last view
  scheduler_actor handle;
  attach_reply facts;
  bool usable() const { return at == state::attached && admits; }
};

/// "<seat>/entrypoint" of the front that was given these options.
inline actor_key front_key(const entrypoint_options& o) {
  return {o.identity.node, o.identity.inc, o.assignment.seat() + "/entrypoint"};
}

/// Part of an entrypoint: used from its handlers only.
class front_schedulers {
 public:
  struct events {
    std::function<void(const actor_key&, const error& why)> lost;  // the handle is dead, what ran there goes elsewhere
    std::function<void()> changed;                                 // another one can be used
  };
  /// `timer_kind`: a kind of tick that nobody else in the actor uses.
  front_schedulers(entrypoint_actor::pointer self, peer_links& links, const entrypoint_options& options,
                   uint8_t timer_kind, events e)
      : self_(self), links_(links), options_(options), events_(std::move(e)), again_(timer_kind) {}

  /// The schedulers of a newer view.
  void follow(const cluster_view& view);
  /// True when the tick was for this.
  bool ticked(const tick& t);
  /// The scheduler does not know this front, or its connection has ended: attach again.
  void lost(const actor_key& key, const error& why);
  /// Attaches, a little later, to what is not attached.
  void attach_soon();

  front_target* find(const actor_key& key);
  uint32_t usable(role what) const;
  /// Those of a role that cannot be used now.
  std::vector<actor_key> unusable(role what) const;
  /// Round robin over the usable ones of a role that are not in `avoid`; an empty key when there is none.
  actor_key next(role what, const std::vector<actor_key>& avoid);
  /// Of the model, from the first decode scheduler that was attached.
  const kernels::model_facts& facts() const { return facts_; }

 private:
  void attach_all();
  void attach(const actor_key& key, front_target& t);
  void attached(const actor_key& key, const scheduler_actor& handle, const attach_reply& reply);

  entrypoint_actor::pointer self_;
  peer_links& links_;
  const entrypoint_options& options_;
  events events_;
  std::map<actor_key, front_target> targets_;  // bounded by the nodes of the view
  std::map<role, size_t> last_;                // chosen by next()
  kernels::model_facts facts_;
  timer again_;
};

}  // namespace troupe::actors
