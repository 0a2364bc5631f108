#include "runtime/sim/coordinator.hpp"

#include <caf/actor_system_config.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/sec.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::sim {

agenda_clock::time_point agenda_clock::now() const noexcept {
  return time_point{std::chrono::duration_cast<duration_type>(agenda_.now())};
}

void agenda_clock::set_ordinary_timeout(time_point, caf::abstract_actor*, caf::atom_value, uint64_t) {
  TROUPE_CHECK(false, "receive timeouts are not used: arm a timer");
}

void agenda_clock::set_multi_timeout(time_point, caf::abstract_actor*, caf::atom_value, uint64_t) {
  TROUPE_CHECK(false, "streams are not used");
}

void agenda_clock::set_request_timeout(time_point t, caf::abstract_actor* self, caf::message_id id) {
  auto key = std::make_pair(self->id(), id.integer_value());
  auto strong = caf::actor_cast<caf::strong_actor_ptr>(self);
  requests_[key] = agenda_.at(t.time_since_epoch(), [this, key, strong, id] {
    requests_.erase(key);
    strong->enqueue(strong, id, caf::make_message(caf::make_error(caf::sec::request_timeout)), nullptr);
  });
}

void agenda_clock::cancel_request_timeout(caf::abstract_actor* self, caf::message_id id) {
  auto it = requests_.find({self->id(), id.integer_value()});
  if (it == requests_.end()) return;
  agenda_.cancel(it->second);
  requests_.erase(it);
}

void agenda_clock::cancel_timeouts(caf::abstract_actor* self) {
  auto it = requests_.lower_bound({self->id(), 0});
  while (it != requests_.end() && it->first.first == self->id()) {
    agenda_.cancel(it->second);
    it = requests_.erase(it);
  }
}

void agenda_clock::schedule_message(time_point t, caf::strong_actor_ptr receiver, caf::mailbox_element_ptr content) {
  auto held = std::make_shared<caf::mailbox_element_ptr>(std::move(content));  // std::function copies
  agenda_.at(t.time_since_epoch(), [receiver, held] { receiver->enqueue(std::move(*held), nullptr); });
}

void agenda_clock::schedule_message(time_point, caf::group, caf::strong_actor_ptr, caf::message) {
  TROUPE_CHECK(false, "groups are not used");
}

void agenda_clock::cancel_all() {
  agenda_.clear();
  requests_.clear();
}

coordinator::coordinator(caf::actor_system& system, agenda& a, uint64_t seed)
    : abstract_coordinator(system), agenda_(a), clock_(a), random_(seed, 2), unit_(&system, *this) {}

void coordinator::install(caf::actor_system_config& config, agenda& a, uint64_t seed) {
  config.module_factories.push_back(
      [&a, seed](caf::actor_system& system) -> caf::actor_system::module* { return new coordinator(system, a, seed); });
}

coordinator& coordinator::of(caf::actor_system& system) { return dynamic_cast<coordinator&>(system.scheduler()); }

void coordinator::enqueue(caf::resumable* job) {
  if (job->subtype() == caf::resumable::scheduled_actor) {
    auto* actor = static_cast<caf::scheduled_actor*>(job);
    actors_.try_emplace(actor->id(), caf::actor_cast<caf::weak_actor_ptr>(actor->ctrl()));
  }
  jobs_.push_back(job);
}

void coordinator::hold(const caf::node_id& node, bool on) {
  std::erase(held_nodes_, node);
  if (on) return held_nodes_.push_back(node);
  for (auto* job : std::exchange(held_, {})) jobs_.push_back(job);  // those of other held nodes come back
}

void coordinator::run_job() {
  const size_t i = random_.below(jobs_.size());
  auto* job = jobs_[i];
  jobs_[i] = jobs_.back();
  jobs_.pop_back();
  if (!held_nodes_.empty() && job->subtype() == caf::resumable::scheduled_actor) {
    const auto& node = static_cast<caf::scheduled_actor*>(job)->node();
    if (std::find(held_nodes_.begin(), held_nodes_.end(), node) != held_nodes_.end()) {
      ++held_times_;
      return held_.push_back(job);
    }
  }
  ++handled_;
  auto mix = [this](uint64_t x) { hash_ = (hash_ ^ x) * 1099511628211ull; };
  mix(static_cast<uint64_t>(agenda_.now().count()));
  if (job->subtype() == caf::resumable::scheduled_actor) mix(static_cast<caf::scheduled_actor*>(job)->id());
  switch (job->resume(&unit_, 1)) {
    case caf::resumable::resume_later:
      jobs_.push_back(job);
      break;
    case caf::resumable::done:
    case caf::resumable::awaiting_message:
      intrusive_ptr_release(job);
      break;
    case caf::resumable::shutdown_execution_unit:
      break;
  }
}

void coordinator::drop_jobs(const std::vector<caf::resumable*>& which) {
  auto drop = [&](caf::resumable* job) {
    if (std::find(which.begin(), which.end(), job) == which.end()) return false;
    intrusive_ptr_release(job);
    return true;
  };
  std::erase_if(jobs_, drop);
  std::erase_if(held_, drop);
}

void coordinator::stop() {
  clock_.cancel_all();
  held_nodes_.clear();
  for (auto* job : std::exchange(held_, {})) jobs_.push_back(job);
  while (has_job()) run_job();  // what ended actors still have in their mailboxes
  clock_.cancel_all();
  actors_.clear();
}

}  // namespace troupe::sim
