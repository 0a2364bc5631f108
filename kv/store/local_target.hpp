// A storage target in this process.
#pragma once

#include <memory>

#include "kv/store/executor.hpp"
#include "kv/store/target.hpp"

namespace troupe::kv {

/// Runs the blocking calls of a shard_store on a worker and answers on an executor. A full worker answers exhausted.
/// All three must outlive the target and every reply.
class local_target final : public target {
 public:
  local_target(target_id id, shard_store& store, worker& blocking, executor& home)
      : id_(id), store_(store), blocking_(blocking), home_(home) {}
  target_id id() const override { return id_; }
  void put(put_shard request, reply<void> done) override;
  void read(read_shard request, reply<void> done) override;
  void remove(std::vector<shard_key> shards, reply<void> done) override;
  void list(std::optional<shard_key> after, size_t limit, reply<std::vector<shard_footer>> done) override;
  void check(shard_key at, reply<void> done) override;
  void usage(reply<shard_usage> done) override;

 private:
  template <class T, class F>
  void run(reply<T> done, F work);

  const target_id id_;
  shard_store& store_;
  worker& blocking_;
  executor& home_;
};

/// A target that is not there: every call is answered with unavailable, which names it and the reason.
class absent_target final : public target {
 public:
  absent_target(target_id id, std::string reason, executor& home) : id_(id), reason_(std::move(reason)), home_(home) {}
  target_id id() const override { return id_; }
  void put(put_shard, reply<void> done) override { refuse<void>(std::move(done)); }
  void read(read_shard, reply<void> done) override { refuse<void>(std::move(done)); }
  void remove(std::vector<shard_key>, reply<void> done) override { refuse<void>(std::move(done)); }
  void list(std::optional<shard_key>, size_t, reply<std::vector<shard_footer>> done) override {
    refuse<std::vector<shard_footer>>(std::move(done));
  }
  void check(shard_key, reply<void> done) override { refuse<void>(std::move(done)); }
  void usage(reply<shard_usage> done) override { refuse<shard_usage>(std::move(done)); }

 private:
  template <class T>
  void refuse(reply<T> done) {
    home_.post([done = std::move(done), id = id_, reason = reason_] {
      done(fail(errc::unavailable, "target {}: {}", id.value, reason));
    });
  }

  const target_id id_;
  const std::string reason_;
  executor& home_;
};

}  // namespace troupe::kv
