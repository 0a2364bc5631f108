// Actors on a thread of their own: for what computes long enough to be in the way of the others of its process.
#pragma once

#include "actors/protocol/caf.hpp"

namespace troupe::actors {

/// As spawn, but on a thread of its own, which ends with the actor. Never in a simulation, whose scheduler it escapes.
template <class State, class... Args>
typename State::interface spawn_on_own_thread(caf::local_actor* parent, Args&&... args) {
  using interface = typename State::interface;
  using impl = typename interface::template stateful_base<State>;
  auto init = [](impl* self, std::decay_t<Args>... xs) ->
      typename interface::behavior_type { return self->state.make_behavior(std::move(xs)...); };
  auto& system = parent->home_system();
  caf::actor_config config{system.dummy_execution_unit()};
  config.flags |= caf::abstract_actor::is_detached_flag;
  caf::detail::init_fun_factory<impl, decltype(init)> factory;
  config.init_fun = factory(init, std::forward<Args>(args)...);
  auto handle = caf::make_actor<impl>(system.next_actor_id(), parent->node(), &system, config);
  static_cast<impl*>(caf::actor_cast<caf::abstract_actor*>(handle))->launch(config.host, false, false);
  return handle;
}

}  // namespace troupe::actors
