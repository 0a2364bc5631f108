#include "runtime/node/actor_net.hpp"

#include <caf/actor_system_config.hpp>
#include <caf/scoped_actor.hpp>

#include <set>

#include "runtime/base/log.hpp"
#include "runtime/node/dial_failure.hpp"

namespace troupe::node {

struct actor_net::parts {
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
};

actor_net::actor_net(const net_options& options) : parts_(std::make_unique<parts>()) {
  auto& c = parts_->config;
  actors::register_messages(c);
  actors::use_house_scheduler(c, options.threads);
  if (options.network) {
    c.load<caf::io::middleman>();
    c.set("middleman.heartbeat-interval", caf::timespan(options.heartbeat));
    c.set("middleman.connection-timeout", caf::timespan(options.connection_timeout));
    c.set("middleman.enable-automatic-connections", false);
  }
  parts_->system = std::make_unique<caf::actor_system>(c);
  system_ = parts_->system.get();
}

actor_net::~actor_net() = default;

std::string dial_failure(const caf::error& e) {
  // A process that hangs takes the connection and says nothing.
  if (e == caf::sec::request_timeout || e == caf::sec::connection_timeout)
    return "no answer in time: the process there hangs, or is very busy";
  if (e == caf::sec::cannot_connect_to_node) return "nobody listens there; is it up, and is this its address?";
  log::debug("connect: {}", caf::to_string(e));
  return "it ended the connection: it is going down, or what listens there is no node of Troupe, an HTTP port perhaps";
}

result<void> actor_net::may_listen(const config::address& where) {
  if (where.loopback()) return {};
  return fail(errc::invalid_argument,
              "{} is not a loopback address: the actor network has no encryption and no authentication in this "
              "version, so it listens on "
              "this machine only",
              where.text());
}

result<caf::strong_actor_ptr> actor_net::dial_any(const config::address& where, nanoseconds limit) {
  caf::scoped_actor self{*system_};
  result<caf::strong_actor_ptr> out = fail(errc::unavailable, "nobody answers at {}", where.text());
  std::string host = where.host == "localhost" ? "127.0.0.1" : where.host;
  self->request(system_->middleman().actor_handle(), std::chrono::duration_cast<std::chrono::microseconds>(limit),
                caf::connect_atom_v, host, where.port)
      .receive(
          [&](caf::node_id&, caf::strong_actor_ptr& pointer, std::set<std::string>&) {
            if (pointer)
              out = pointer;
            else
              out = fail(errc::unavailable, "{} is a node that publishes no actor", where.text());
          },
          [&](caf::error& e) {
            out = fail(actors::from_caf(e).code == errc::timeout ? errc::timeout : errc::unavailable,
                       "cannot reach {}: {}{}", where.text(), dial_failure(e), where_directors_listen);
          });
  return out;
}

}  // namespace troupe::node
