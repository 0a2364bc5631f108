#include "actors/serving/front_schedulers.hpp"

#include <algorithm>

#include "actors/protocol/messages.hpp"
#include "actors/serving/scheduler_seats.hpp"
#include "policies/placement.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

void front_schedulers::follow(const cluster_view& view) {
  const auto seen = scheduler_seats(view);
  for (const auto& [key, seat] : seen) {
    auto it = targets_.find(key);
    if (it == targets_.end() && seat.ready) it = targets_.emplace(key, front_target{seat.what}).first;
    if (it != targets_.end()) it->second.admits = seat.ready;
  }
  std::vector<actor_key> gone;
  for (auto& [key, t] : targets_)
    if (!seen.contains(key)) gone.push_back(key);
  for (auto& key : gone) {
    lost(key, {errc::peer_lost, "its node was given up"});
    targets_.erase(key);
  }
  attach_all();
}

bool front_schedulers::ticked(const tick& t) {
  if (!again_.fired(t)) return false;
  attach_all();
  return true;
}

void front_schedulers::attach_soon() {
  if (!again_.armed()) again_.arm(self_, options_.attach_retry);
}

void front_schedulers::attach_all() {
  for (auto& [key, t] : targets_)
    if (t.at == front_target::state::unknown) attach(key, t);
}

void front_schedulers::attach(const actor_key& key, front_target& t) {
  t.at = front_target::state::resolving;
  auto again = [this, key](const std::string& why) {
    auto* t = find(key);
    if (!t || t->at != front_target::state::resolving) return;
    log::debug("entrypoint: {} of node {}: {}", key.name, key.node.value, why);
    t->at = front_target::state::unknown;
    attach_soon();
  };
  links_.ask(
      self_, options_.directory, options_.ask_timeout, resolve_request{key},
      [this, key, again](const resolve_reply& r) {
        if (!r.outcome.ok()) return again(r.outcome.text);
        auto handle = caf::actor_cast<scheduler_actor>(r.handle);
        links_.ask(
            self_, handle, options_.ask_timeout, attach_front{options_.identity.epoch, front_key(options_)},
            [this, key, handle, again](const attach_reply& reply) {
              if (!reply.outcome.ok()) return again(reply.outcome.text);
              attached(key, handle, reply);
            },
            [again](const error& e) { again(e.message); });
      },
      [again](const error& e) { again(e.message); });
}

void front_schedulers::attached(const actor_key& key, const scheduler_actor& handle, const attach_reply& reply) {
  auto* t = find(key);
  if (!t || t->at != front_target::state::resolving) return;
  t->at = front_target::state::attached;
  t->handle = handle;
  t->facts = reply;
  if (t->what == role::decode) facts_ = reply.facts;
  links_.watch(handle, [this, key](const error& e) {
    lost(key, e);
    attach_soon();
  });
  log::info("entrypoint: attached to {} of node {}", key.name, key.node.value);
  events_.changed();
}

void front_schedulers::lost(const actor_key& key, const error& why) {
  auto* t = find(key);
  if (!t) return;
  links_.unwatch(t->handle);
  t->handle = nullptr;
  t->at = front_target::state::unknown;
  events_.lost(key, why);
}

front_target* front_schedulers::find(const actor_key& key) {
  auto it = targets_.find(key);
  return it == targets_.end() ? nullptr : &it->second;
}

uint32_t front_schedulers::usable(role what) const {
  return static_cast<uint32_t>(std::count_if(targets_.begin(), targets_.end(),
                                             [what](auto& t) { return t.second.what == what && t.second.usable(); }));
}

std::vector<actor_key> front_schedulers::unusable(role what) const {
  std::vector<actor_key> out;
  for (const auto& [key, t] : targets_)
    if (t.what == what && !t.usable()) out.push_back(key);
  return out;
}

actor_key front_schedulers::next(role what, const std::vector<actor_key>& avoid) {
  std::vector<actor_key> keys;
  policies::placement_input in;
  for (const auto& [key, t] : targets_) {
    if (t.what != what) continue;
    keys.push_back(key);
    in.usable.push_back(t.usable() && std::find(avoid.begin(), avoid.end(), key) == avoid.end());
  }
  auto& last = last_.try_emplace(what, SIZE_MAX).first->second;
  in.last = last;
  const auto choice = policies::plan_placement(in).choice;
  if (choice == SIZE_MAX) return {};
  last = choice;
  return keys[choice];
}

}  // namespace troupe::actors
