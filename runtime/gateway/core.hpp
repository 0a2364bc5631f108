// What all connections of a server share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/gateway/keys.hpp"
#include "runtime/gateway/server.hpp"
#include "runtime/observe/request_metrics.hpp"

namespace troupe::gateway {

/// How many answers are owed: requests taken whose answer has not been handed to the kernel in full. Any thread.
class answers_owed {
 public:
  void add(int n) {
    std::lock_guard lock(mutex_);
    owed_ += n;
    if (owed_ == 0) none_.notify_all();
  }
  uint32_t count() const {
    std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(owed_);
  }
  /// Waits until none is owed, at most `limit`; false when some still are.
  bool wait_none(nanoseconds limit) {
    std::unique_lock lock(mutex_);
    return none_.wait_for(lock, limit, [this] { return owed_ == 0; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable none_;
  int64_t owed_ = 0;  // by mutex_
};

/// Members are constant after construction, atomic, or guarded as said.
struct core {
  core(const options& o, std::shared_ptr<const recipe::recipe> r, generator& g, observe::metrics& m,
       const clock_source& c, rng random)
      : opts(o), recipe(std::move(r)), gen(g), registry(m), metrics(m), clock(c), ids_(random) {
    model = o.model_name.empty() ? g.facts().name : o.model_name;
  }

  const options opts;
  std::string model;
  const std::shared_ptr<const recipe::recipe> recipe;
  generator& gen;
  observe::metrics& registry;
  observe::request_metrics metrics;
  const clock_source& clock;
  std::optional<key_ring> keys;
  const client local = local_client();
  const int64_t created = wall_seconds();

  std::atomic<uint32_t> connections{0};  // served ones
  std::atomic<uint32_t> refused{0};      // connections over the limit that are being told so
  answers_owed owed;
  std::atomic<uint32_t> running{0};  // generations, from admission to their last event
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> requests{0};  // makes ids of the process's requests unique

  /// Runs work on the encoding pool; set by the server. Work that comes after stop is dropped.
  std::function<void(std::function<void()>)> on_encoder;

  /// The seed of a request that names none: the same at every front, so that a client whose front is lost can have the
  /// answer go on at another one, by its request id. Below 2^53, so that JavaScript clients can read it.
  static uint64_t seed_of(const std::string& tenant, const std::string& request_id) {
    uint64_t h = 14695981039346656037ull;  // FNV-1a
    auto mix = [&](const std::string& text) {
      for (unsigned char c : text) h = (h ^ c) * 1099511628211ull;
      h = (h ^ 0xff) * 1099511628211ull;  // no byte of UTF-8
    };
    mix(tenant);
    mix(request_id);
    return rng(h).next() >> 11;
  }
  /// A fresh request id.
  std::string draw_id() {
    std::lock_guard lock(mutex_);
    uint64_t high = ids_.next();
    return fmt::format("{:016x}{:016x}", high, ids_.next());
  }

 private:
  std::mutex mutex_;
  rng ids_;  // by mutex_
};

}  // namespace troupe::gateway
