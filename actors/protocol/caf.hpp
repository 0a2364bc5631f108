// Everything that differs between CAF 0.17.6 and 1.x, and the few ways in which our actors use CAF: interfaces, spawn,
// tell, ask, later, watch. Actor sources use these and no other form of the same.
#pragma once

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/detail/init_fun_factory.hpp>
#include <caf/make_actor.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/scoped_execution_unit.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::actors {

// -- interfaces ---------------------------------------------------------------------------------------------------

/// A typed actor that understands the listed messages: `using echo_actor = actor_type<takes<poke>, answers<ping,
/// pong>>;`
template <class... Signatures>
using actor_type = caf::typed_actor<Signatures...>;
/// A message without an answer.
template <class Message>
using takes = caf::reacts_to<Message>;
/// A request and its answer. Refusals are part of the answer (a `status` field), never a CAF error.
template <class Request, class Answer>
using answers = typename caf::replies_to<Request>::template with<Answer>;
/// An answer that is given later: `promise<pong> p = self->make_response_promise<promise<pong>>();` Deliver on every
/// path.
template <class Answer>
using promise = caf::typed_response_promise<Answer>;

/// A handle of any type, as it travels in messages.
using any_handle = caf::strong_actor_ptr;

// -- spawn --------------------------------------------------------------------------------------------------------

/// Spawns an actor whose state class is `State` on `node`; `unit` may be null. State has: `using interface =
/// actor_type<…>`, `static inline const char* name`, a constructor from `interface::pointer`, and
/// `make_behavior(args...)` that returns `interface::behavior_type`. For the roots of a process or of a virtual node;
/// actors use the overload below.
template <class State, class... Args>
typename State::interface spawn_on(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                                   Args&&... args) {
  using interface = typename State::interface;
  using impl = typename interface::template stateful_base<State>;
  auto init = [](impl* self, std::decay_t<Args>... xs) ->
      typename interface::behavior_type { return self->state.make_behavior(std::move(xs)...); };
  caf::actor_config config{unit ? unit : system.dummy_execution_unit()};
  caf::detail::init_fun_factory<impl, decltype(init)> factory;
  config.init_fun = factory(init, std::forward<Args>(args)...);
  auto handle = caf::make_actor<impl>(system.next_actor_id(), node, &system, config);
  static_cast<impl*>(caf::actor_cast<caf::abstract_actor*>(handle))->launch(config.host, false, false);
  return handle;
}

/// Spawns a child on its parent's node, so that in a simulation it belongs to the parent's virtual node.
template <class State, class... Args>
typename State::interface spawn(caf::local_actor* parent, Args&&... args) {
  return spawn_on<State>(parent->home_system(), parent->node(), parent->context(), std::forward<Args>(args)...);
}

// -- sending ------------------------------------------------------------------------------------------------------

/// Sends a message that has no answer. A null handle is ignored.
template <class Self, class Handle, class Message>
void tell(Self* self, const Handle& to, Message&& message) {
  if (to) self->send(to, std::forward<Message>(message));
}

/// Sends from a thread that is not an actor (an engine's, a server's). Thread safe.
template <class Handle, class Message>
void post(const Handle& to, Message&& message) {
  caf::anon_send(to, std::forward<Message>(message));
}

/// Tells an actor of this process to end (reason: user shutdown). Its state is destroyed when it gets there.
void end_actor(const any_handle& handle);

/// Delivers `message` to `self` after `delay` on the actor clock. It cannot be taken back: carry a ticket (see timer).
template <class Message>
void later(caf::local_actor* self, nanoseconds delay, Message message) {
  auto when = self->clock().now() + std::chrono::duration_cast<caf::actor_clock::duration_type>(delay);
  self->clock().schedule_message(
      when, caf::strong_actor_ptr{self->ctrl()},
      caf::make_mailbox_element(nullptr, caf::make_message_id(), caf::no_stages, std::move(message)));
}

/// Time on the actor clock: virtual in a simulation.
inline nanoseconds now(caf::local_actor* self) {
  return std::chrono::duration_cast<nanoseconds>(self->clock().now().time_since_epoch());
}

/// Kind of a CAF error as one of ours, in words for people: a timeout is errc::timeout, everything else means that the
/// peer is gone. The only place where CAF's errors become text.
error from_caf(const caf::error& e);

/// What an actor knows about its peers: whom it watches and which of its requests are open. One per actor, held in the
/// state. It owns the actor's down handler. Used only from the actor's own handlers.
class peer_links {
 public:
  using on_down = std::function<void(const error& why)>;

  explicit peer_links(caf::scheduled_actor* self);
  peer_links(const peer_links&) = delete;
  peer_links& operator=(const peer_links&) = delete;

  /// Calls `handler` once when the actor behind `handle` ends or its node is lost; open requests to it have been failed
  /// by then. A second watch of the same actor replaces the first. A null handle is ignored.
  template <class Handle>
  void watch(const Handle& handle, on_down handler) {
    if (handle) watch_address(caf::actor_cast<caf::actor_addr>(handle), std::move(handler));
  }

  /// Stops watching.
  template <class Handle>
  void unwatch(const Handle& handle) {
    if (handle) unwatch_address(caf::actor_cast<caf::actor_addr>(handle));
  }

  /// Sends a request. Exactly one of `ok(const Answer&)` and `bad(const error&)` is called later, `bad` after `timeout`
  /// at the latest and at once when the peer's end is noticed. Neither is called after the actor has quit. A null
  /// handle fails.
  template <class Self, class Handle, class Request, class Ok, class Bad>
  void ask(Self* self, const Handle& to, nanoseconds timeout, Request request, Ok ok, Bad bad) {
    using answer = caf::detail::tl_head_t<caf::response_type_t<typename Handle::signatures, Request>>;
    if (to) need_down(caf::actor_cast<caf::actor_addr>(to));
    auto pending =
        self->request(to, std::chrono::duration_cast<std::chrono::microseconds>(timeout), std::move(request));
    auto id = pending.id();
    if (to) open_.emplace(id.integer_value(), open_request{id, caf::actor_cast<caf::actor_addr>(to)});
    pending.then(
        [this, id, ok = std::move(ok)](const answer& a) mutable {
          closed(id);
          ok(a);
        },
        [this, id, bad = std::move(bad)](caf::error& e) mutable {
          closed(id);
          bad(from_caf(e));
        });
  }

  /// Fails every open request to an actor of `node` (it is suspected, though CAF has not noticed). The handles stay
  /// watched.
  void fail_node(const caf::node_id& node);

  /// Number of requests without an answer.
  size_t open() const { return open_.size(); }

 private:
  struct address_less {
    bool operator()(const caf::actor_addr& a, const caf::actor_addr& b) const;
  };
  void watch_address(const caf::actor_addr& address, on_down handler);
  void unwatch_address(const caf::actor_addr& address);
  void need_down(const caf::actor_addr& address);  // monitors an actor of another node
  void closed(caf::message_id id);                 // CAF itself never cancels the timer of an answered request
  void down(const caf::down_msg& m);
  void fail_request(caf::message_id id, const caf::error& why);
  struct open_request {
    caf::message_id id;
    caf::actor_addr peer;
  };

  caf::scheduled_actor* self_;
  std::map<uint64_t, open_request> open_;                     // by request id: in order of sending
  std::map<caf::actor_addr, on_down, address_less> watched_;  // an empty handler: only for open requests
};

// -- registration -------------------------------------------------------------------------------------------------

/// Registers every message type; call before the actor_system is made.
void register_messages(caf::actor_system_config& config);

/// Settings that every process uses: the `sharing` scheduler with `threads` workers (the default policy polls while
/// idle).
void use_house_scheduler(caf::actor_system_config& config, size_t threads);

}  // namespace troupe::actors
