// A storage target of which a test decides when and how it answers.
#pragma once

#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kv/store/executor.hpp"
#include "kv/store/target.hpp"

namespace troupe::kv {

/// Keeps shards in memory. Answers after `delay`; fails with `broken` if set; holds answers back while `held`.
class scripted_target final : public target {
 public:
  scripted_target(target_id id, executor& home) : id_(id), home_(home) {}

  std::map<shard_key, std::vector<std::byte>> shards;
  nanoseconds delay{0};
  std::optional<error> broken;  // of every call
  bool held = false;
  uint64_t reads = 0, bytes_read = 0, puts = 0;

  /// Lets the answers go that were held back.
  void release() {
    held = false;
    for (auto& t : waiting_) home_.post(std::move(t));
    waiting_.clear();
  }

  target_id id() const override { return id_; }
  void put(put_shard r, reply<void> done) override {
    ++puts;
    answer<void>(std::move(done), [this, r]() -> result<void> {
      shards[{r.info->id, r.shard}].assign(r.payload.begin(), r.payload.end());
      return {};
    });
  }
  void read(read_shard r, reply<void> done) override {
    ++reads;
    for (const auto& s : r.into) bytes_read += s.size();
    answer<void>(std::move(done), [this, r]() -> result<void> {
      auto it = shards.find(r.at);
      if (it == shards.end()) return fail(errc::not_found, "no such shard");
      auto copy = [&] {
        const std::byte* from = it->second.data() + r.offset;
        for (const auto& s : r.into) std::memcpy(s.data(), from, s.size()), from += s.size();
      };
      if (r.guard)
        r.guard->deliver(copy);
      else
        copy();
      return {};
    });
  }
  void remove(std::vector<shard_key> keys, reply<void> done) override {
    answer<void>(std::move(done), [this, keys]() -> result<void> {
      for (const auto& k : keys) shards.erase(k);
      return {};
    });
  }
  void list(std::optional<shard_key>, size_t, reply<std::vector<shard_footer>> done) override {
    answer<std::vector<shard_footer>>(std::move(done), [] { return std::vector<shard_footer>{}; });
  }
  void check(shard_key, reply<void> done) override {
    answer<void>(std::move(done), []() -> result<void> { return {}; });
  }
  void usage(reply<shard_usage> done) override {
    answer<shard_usage>(std::move(done), []() -> result<shard_usage> { return shard_usage{}; });
  }

 private:
  template <class T, class F>
  void answer(reply<T> done, F work) {
    task t = [this, done = std::move(done), work = std::move(work)] {
      if (broken) return done(fail(*broken));
      done(work());
    };
    if (held) return waiting_.push_back(std::move(t));
    home_.post_after(delay, std::move(t));
  }

  const target_id id_;
  executor& home_;
  std::vector<task> waiting_;
};

}  // namespace troupe::kv
