// The way of a front or a rank to the cluster's block store: a client of it with what it needs of the process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "actors/serving/prefix_store.hpp"
#include "actors/serving/roles.hpp"
#include "actors/storage/store_client.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// How the cache of a cluster with these settings names blocks; nothing where it is off, the cluster has no storage
/// nodes, or their blocks are not the model's pages (storage.block_tokens). Errors: those of reading the checkpoint.
result<std::optional<kv::hash_scheme>> cache_scheme(const config::settings& s);

/// Threads, data plane and client of one role. Destroying it waits until everything of the client has ended: not on an
/// actor's thread.
class store_link {
 public:
  /// Errors: those of the data plane.
  static result<std::unique_ptr<store_link>> make(const config::settings& s, const kv::hash_scheme& scheme);
  ~store_link();

  /// Spawns the client as a child of the role's parent and makes it one of the role's actors.
  void start(const actors::role_context& context, actors::role_actors& role);
  /// For the role's actors; also before `start`.
  const actors::prefix_options& options() const { return options_; }

  /// Ends the client. Puts under way are given up.
  void stop();
  /// True once destroying it does not block any more.
  bool stopped() const;

 private:
  struct latch {
    std::mutex mutex;
    std::condition_variable changed;
    size_t count = 0;
  };
  store_link(const config::settings& s, const kv::hash_scheme& scheme);

  const config::settings settings_;
  actors::prefix_options options_;
  const std::shared_ptr<latch> users_ = std::make_shared<latch>();
  const std::shared_ptr<actors::store_session> session_ = std::make_shared<actors::store_session>();
  std::unique_ptr<kv::io_pool> pool_;
  std::shared_ptr<transport::transport> plane_;
};

}  // namespace troupe::node
