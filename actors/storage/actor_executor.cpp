#include "actors/storage/actor_executor.hpp"

#include <utility>

#include "actors/protocol/messages.hpp"

namespace troupe::actors {

actor_executor::actor_executor(caf::local_actor* self, uint8_t kind)
    : kind_(kind), clock_(self->clock()), self_(self->ctrl()) {}

void actor_executor::wake() {
  woken_ = true;
  self_->enqueue(nullptr, caf::make_message_id(), caf::make_message(tick{kind_, 0}), nullptr);
}

void actor_executor::post(kv::task t) {
  std::lock_guard lock(mutex_);
  if (!self_) return;
  queue_.push_back(std::move(t));
  if (!woken_) wake();
}

void actor_executor::post_after(nanoseconds delay, kv::task t) {
  if (delay <= nanoseconds{0}) return post(std::move(t));
  std::lock_guard lock(mutex_);
  if (!self_) return;
  const uint64_t ticket = next_timer_++;
  timers_.emplace(ticket, std::move(t));
  const auto when = clock_.now() + std::chrono::duration_cast<caf::actor_clock::duration_type>(delay);
  clock_.schedule_message(
      when, self_, caf::make_mailbox_element(nullptr, caf::make_message_id(), caf::no_stages, tick{kind_, ticket}));
}

nanoseconds actor_executor::now() const {
  return std::chrono::duration_cast<nanoseconds>(clock_.now().time_since_epoch());
}

bool actor_executor::run(const tick& t) {
  if (t.kind != kind_) return false;
  if (t.ticket != 0) {
    kv::task due;
    {
      std::lock_guard lock(mutex_);
      auto it = timers_.find(t.ticket);
      if (it == timers_.end()) return true;
      due = std::move(it->second);
      timers_.erase(it);
    }
    due();
    return true;
  }
  // What tasks post runs in the next message, so that others get their turn.
  std::deque<kv::task> now;
  {
    std::lock_guard lock(mutex_);
    now.swap(queue_);
    woken_ = false;
  }
  while (!now.empty()) {
    kv::task one = std::move(now.front());
    now.pop_front();
    one();
  }
  return true;
}

void actor_executor::close() {
  std::deque<kv::task> queue;
  std::map<uint64_t, kv::task> timers;
  any_handle self;
  std::lock_guard lock(mutex_);
  queue.swap(queue_);
  timers.swap(timers_);
  self.swap(self_);
}

bool kept_worker::submit(kv::task t) {
  auto held = what_.lock();
  if (!held) return false;
  // One object, so that the task goes before what it uses.
  struct job {
    std::shared_ptr<void> keep;
    kv::task run;
  };
  auto j = std::make_shared<job>(job{std::move(held), std::move(t)});
  return inner_.submit([j] {
    j->run();
    j->run = nullptr;
  });
}

}  // namespace troupe::actors
