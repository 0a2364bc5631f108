// A question to an actor from outside of the actors: asked once, the answer is kept.
#pragma once

#include <memory>
#include <optional>

#include "actors/protocol/caf.hpp"
#include "actors/protocol/cluster.hpp"

namespace troupe::sim {

/// Asks when it is spawned, stores answer or error in `out`, and ends.
template <class Handle, class Query, class Answer>
class probe_state {
 public:
  using interface = actors::actor_type<actors::takes<actors::tick>>;
  static inline const char* name = "probe";
  explicit probe_state(interface::pointer self) : self_(self), links_(self) {}
  interface::behavior_type make_behavior(Handle to, Query q, std::shared_ptr<std::optional<result<Answer>>> out) {
    links_.ask(
        self_, to, std::chrono::seconds(5), q,
        [this, out](const Answer& a) {
          out->emplace(a);
          self_->quit();
        },
        [this, out](const error& e) {
          out->emplace(fail(e));
          self_->quit();
        });
    return {[](const actors::tick&) {}};
  }

 private:
  interface::pointer self_;
  actors::peer_links links_;
};

}  // namespace troupe::sim
