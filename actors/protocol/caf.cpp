#include "actors/protocol/caf.hpp"

#include <caf/atom.hpp>
#include <caf/exit_reason.hpp>
#include <caf/sec.hpp>
#include <caf/system_messages.hpp>

#include <vector>

#include "runtime/base/log.hpp"

namespace troupe::actors {

error from_caf(const caf::error& e) {
  if (e == caf::sec::request_timeout) return {errc::timeout, "no answer in time"};
  const char* words = "it failed";
  if (!e || e == caf::exit_reason::normal || e == caf::exit_reason::user_shutdown)
    words = "the actor ended";
  else if (e == caf::exit_reason::remote_link_unreachable || e == caf::sec::request_receiver_down ||
           e == caf::sec::connection_timeout)
    words = "the connection to it was lost";
  else if (e == caf::sec::unexpected_message || e == caf::sec::unexpected_response)
    words = "it does not understand what it was asked: another kind of actor, or another version of troupe";
  else
    log::debug("an actor failed: {}", caf::to_string(e));
  return {errc::peer_lost, words};
}

void end_actor(const any_handle& handle) {
  if (handle)
    handle->enqueue(nullptr, caf::make_message_id(),
                    caf::make_message(caf::exit_msg{handle->address(), caf::exit_reason::user_shutdown}), nullptr);
}

bool peer_links::address_less::operator()(const caf::actor_addr& a, const caf::actor_addr& b) const {
  if (a.id() != b.id()) return a.id() < b.id();
  return a.node().compare(b.node()) < 0;
}

peer_links::peer_links(caf::scheduled_actor* self) : self_(self) {
  self_->set_down_handler([this](caf::down_msg& m) { down(m); });
}

void peer_links::watch_address(const caf::actor_addr& address, on_down handler) {
  need_down(address);
  auto [it, fresh] = watched_.try_emplace(address);
  if (fresh) self_->monitor(address);
  it->second = std::move(handler);
}

void peer_links::unwatch_address(const caf::actor_addr& address) {
  if (watched_.erase(address)) self_->demonitor(address);
}

void peer_links::need_down(const caf::actor_addr& address) {
  if (address.node() == self_->node()) return;  // inside a node CAF answers for an ended actor
  if (watched_.try_emplace(address).second) self_->monitor(address);
}

void peer_links::closed(caf::message_id id) {
  open_.erase(id.integer_value());
  self_->clock().cancel_request_timeout(self_, id);
}

void peer_links::down(const caf::down_msg& m) {
  for (auto& [number, request] : open_)
    if (request.peer == m.source)
      fail_request(request.id, m.reason ? m.reason : caf::make_error(caf::sec::request_receiver_down));
  auto it = watched_.find(m.source);
  if (it == watched_.end()) return;
  auto handler = std::move(it->second);
  watched_.erase(it);
  if (handler) handler(from_caf(m.reason));
}

void peer_links::fail_node(const caf::node_id& node) {
  for (auto& [number, request] : open_)
    if (request.peer.node() == node) fail_request(request.id, caf::make_error(caf::sec::request_receiver_down));
}

void peer_links::fail_request(caf::message_id id, const caf::error& why) {
  // An answer of our own: CAF runs the error handler and forgets the request, so a late true answer is discarded.
  self_->enqueue(nullptr, id, caf::make_message(why), self_->context());
}

void use_house_scheduler(caf::actor_system_config& config, size_t threads) {
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", threads);
}

}  // namespace troupe::actors
