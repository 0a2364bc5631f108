// A kv::client of the cluster's store, in an actor. It follows the cluster view, introduces itself to the storage nodes
// and makes their targets and index owners members; the client above works as it does on a directory.
//
//   users (any thread) -- session.post(task) --> store_client: runs it with the state below
//
// A node of the view that is ready is dialled and asked (kv_hello); one that is gone, or silent, is away: its targets
// answer `unavailable` at once, reads go on through the code. It is tried again as long as it is in the view.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/role_factory.hpp"
#include "actors/protocol/storage.hpp"
#include "kv/store/client.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::actors {

/// Targets and index of this very process, which are used without messages.
struct local_storage {
  uint32_t seat = 0;
  std::map<kv::target_id, kv::shard_store*> targets;
  kv::block_index* index = nullptr;
  kv::worker* blocking = nullptr;
};

/// What a client is told at its start. What is pointed to must outlive the actor and everything under way.
struct store_client_options {
  std::shared_ptr<void> keep;  // held as long as anything of the client lives; owners of the rest wait for it
  node_identity identity;      // node 0: not a member of the cluster
  directory_actor directory;
  director_actor director;  // asked for the view, by a client that is no member; null: views come from the node agent
  std::shared_ptr<transport::transport> plane;
  kv::worker* compute = nullptr;
  const kv::unix_clock* wall = nullptr;
  std::optional<kv::hash_scheme> scheme;  // that the store must have; nothing: whatever it has
  kv::client_options client;              // data, parity and scheme are the store's; the seed must be given
  std::optional<local_storage> local;
  uint64_t staging_bytes = 64ull << 20;           // memory for what is pulled; at least one shard
  uint32_t waiting_max = 8192;                    // reads that may wait for room in it
  nanoseconds timeout{std::chrono::seconds(10)};  // of one question
  nanoseconds retry{std::chrono::milliseconds(200)};
  nanoseconds poll{std::chrono::milliseconds(500)};  // of the view, where a director is given
};

class snapshot_client;

/// What users of a session see, inside their task.
struct store_state {
  struct node {
    uint32_t seat = 0;
    bool up = false;
    std::string why;  // unless up
    scrubber_actor scrubber;
    std::vector<kv_target_entry> targets;
    std::vector<std::string> notes;
  };
  kv::client* client = nullptr;          // null before the first node has answered
  snapshot_client* snapshots = nullptr;  // snapshot_client.hpp; the same
  kv::executor* home = nullptr;
  kv::hash_scheme scheme;
  uint32_t data = 0, parity = 0, seats = 0, disks = 0;
  storage_epoch epoch;
  std::vector<node> nodes;  // by seat
};

/// The way to a client from outside of its actor. Any thread; it may outlive the actor, then tasks are dropped unrun.
class store_session {
 public:
  /// Runs `f` in the actor.
  void post(std::function<void(store_state&)> f);
  /// Calls `f` in the actor once every storage node that the view shows as ready has answered, or could not: success
  /// when at least one is there. After `limit`: the error that says why not (unavailable; unsupported: another scheme).
  void when_ready(nanoseconds limit, std::function<void(result<void>, store_state&)> f);
  /// Stops following and asking. Wait for the client's idle() before, where answers matter.
  void close();

 private:
  friend class store_client_state;
  std::mutex mutex_;
  std::shared_ptr<kv::executor> home_;         // null before the start and after the end; protected by mutex_
  std::vector<kv::task> early_;                // posted before the start; protected by mutex_
  class store_client_state* state_ = nullptr;  // used in the actor only
  any_handle self_;                            // protected by mutex_
  bool ended_ = false;                         // protected by mutex_
};

/// Spawns it as a root actor on `node`; `unit` may be null. `session` is given by the caller, new.
store_client_actor spawn_store_client(caf::actor_system& system, const caf::node_id& node, caf::execution_unit* unit,
                                      std::shared_ptr<store_session> session, store_client_options options);
/// The same as a child of `parent`.
store_client_actor spawn_store_client(caf::local_actor* parent, std::shared_ptr<store_session> session,
                                      store_client_options options);

}  // namespace troupe::actors
