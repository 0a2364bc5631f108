#include "kernels/ep/thread_group.hpp"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "kernels/ep/checks.hpp"
#include "kernels/ep/exchange_group.hpp"

namespace troupe::kernels::ep {
namespace {

constexpr size_t queue_limit = 256;  // messages waiting at a rank; a sender waits beyond, as on a full socket

struct message {
  slot_header header;
  std::vector<std::byte> payload;
};

// What threads share: each rank's inbox memory and message queue.
struct hub {
  struct seat {
    std::shared_ptr<void> memory;
    std::byte* inbox = nullptr;  // 64-byte aligned, in memory
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<message> queue;
    std::vector<uint32_t> dead;  // notices not yet delivered
    bool signalled = false;
    atomic_counters counters;
  };
  std::vector<std::unique_ptr<seat>> seats;
  std::vector<std::atomic<bool>> killed;
  explicit hub(uint32_t ranks) : killed(ranks) {}
};

class thread_lane final : public lane {
 public:
  thread_lane(std::shared_ptr<hub> h, uint32_t rank, bool messages)
      : hub_(std::move(h)), rank_(rank), messages_(messages), out_(hub_->seats.size()) {}

  std::recursive_mutex& serial() override { return serial_; }
  std::byte* inbox() override { return hub_->seats[rank_]->inbox; }
  std::byte* peer_inbox(uint32_t rank) override { return messages_ ? nullptr : hub_->seats[rank]->inbox; }
  bool has_message_peers() const override { return messages_; }

  std::byte* buffer(uint32_t rank, size_t bytes, nanoseconds limit, lane_sink& sink) override {
    const nanoseconds until = steady_clock().now() + limit;
    for (;;) {
      if (hub_->killed[rank] || hub_->killed[rank_]) return nullptr;
      {
        std::lock_guard lock(hub_->seats[rank]->mutex);
        if (hub_->seats[rank]->queue.size() < queue_limit) break;
      }
      progress(sink);
      if (steady_clock().now() > until) return nullptr;
    }
    out_[rank].resize(bytes + 1);  // never null, also for an empty message
    return out_[rank].data();
  }

  void post(uint32_t rank, const slot_header& header, size_t bytes) override {
    auto& seat = *hub_->seats[rank];
    {
      std::lock_guard lock(seat.mutex);
      seat.queue.push_back({header, {out_[rank].begin(), out_[rank].begin() + static_cast<ptrdiff_t>(bytes)}});
    }
    seat.changed.notify_all();
  }

  void progress(lane_sink& sink) override {
    auto& seat = *hub_->seats[rank_];
    std::deque<message> got;
    std::vector<uint32_t> dead;
    {
      std::lock_guard lock(seat.mutex);
      got.swap(seat.queue);
      dead.swap(seat.dead);
    }
    for (const auto& m : got) sink.on_message(m.header, m.payload);
    for (const uint32_t r : dead) sink.on_dead(r);
  }

  void sleep(nanoseconds limit) override {
    auto& seat = *hub_->seats[rank_];
    std::unique_lock lock(seat.mutex);
    seat.changed.wait_for(lock, limit, [&] { return seat.signalled || !seat.queue.empty() || !seat.dead.empty(); });
    seat.signalled = false;
  }

  void signal() override {
    auto& seat = *hub_->seats[rank_];
    {
      std::lock_guard lock(seat.mutex);
      seat.signalled = true;
    }
    seat.changed.notify_all();
  }

  void flush(nanoseconds, lane_sink&) override {}

 private:
  const std::shared_ptr<hub> hub_;
  const uint32_t rank_;
  const bool messages_;
  std::recursive_mutex serial_;
  std::vector<std::vector<std::byte>> out_;
};

class control final : public thread_group_control {
 public:
  explicit control(std::shared_ptr<hub> h) : hub_(std::move(h)) {}

  void kill(uint32_t rank) override {
    hub_->killed[rank] = true;
    for (uint32_t r = 0; r < hub_->seats.size(); ++r) {
      auto& seat = *hub_->seats[r];
      {
        std::lock_guard lock(seat.mutex);
        if (r == rank) {
          for (uint32_t other = 0; other < hub_->seats.size(); ++other)
            if (other != rank) seat.dead.push_back(other);
        } else {
          seat.dead.push_back(rank);
        }
      }
      seat.changed.notify_all();
    }
  }

  void inject(uint32_t, uint32_t to, std::vector<std::byte> bytes) override {
    message m;
    if (bytes.size() < sizeof m.header) return;
    std::memcpy(&m.header, bytes.data(), sizeof m.header);
    m.payload.assign(bytes.begin() + sizeof m.header, bytes.end());
    auto& seat = *hub_->seats[to];
    {
      std::lock_guard lock(seat.mutex);
      seat.queue.push_back(std::move(m));
    }
    seat.changed.notify_all();
  }

  ep_counters counters(uint32_t rank) const override { return hub_->seats[rank]->counters.read(); }

 private:
  const std::shared_ptr<hub> hub_;
};

}  // namespace

result<thread_group> make_thread_group(const group_shape& shape, const thread_group_options& options) {
  if (auto ok = check_shape(shape); !ok) return fail(ok.error());
  auto shared = std::make_shared<hub>(shape.ranks);
  const inbox_layout layout(shape);
  for (uint32_t r = 0; r < shape.ranks; ++r) {
    auto seat = std::make_unique<hub::seat>();
    // calloc: the untouched parts of a large region cost nothing.
    size_t room = layout.total + 64;
    void* bytes = std::calloc(room, 1);
    if (!bytes) return fail(errc::exhausted, "{} B for the inbox of a rank", layout.total);
    seat->memory = std::shared_ptr<void>(bytes, std::free);
    seat->inbox = static_cast<std::byte*>(std::align(64, layout.total, bytes, room));
    shared->seats.push_back(std::move(seat));
  }
  thread_group out;
  for (uint32_t r = 0; r < shape.ranks; ++r) {
    exchange_group::parts parts;
    parts.shape = shape;
    parts.epoch = options.epoch;
    parts.rank = r;
    for (uint32_t i = 0; i < shape.ranks; ++i) parts.incarnations.push_back(i + 1);
    parts.deadline = options.deadline;
    parts.wait = options.wait;
    parts.link = std::make_shared<thread_lane>(shared, r, options.messages);
    parts.counters = std::shared_ptr<atomic_counters>(shared, &shared->seats[r]->counters);
    out.ranks.push_back(std::make_unique<exchange_group>(std::move(parts)));
  }
  out.control = std::make_shared<control>(shared);
  return out;
}

}  // namespace troupe::kernels::ep
