// The store of a running cluster, from outside: what `troupe kv --join` works on. The same calls as a store in a
// directory has (kv/store/directory.hpp).
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/storage/store_client.hpp"
#include "kv/store/directory.hpp"
#include "runtime/config/config.hpp"
#include "runtime/node/actor_net.hpp"

namespace troupe::node {

/// Which cluster, and what its store is expected to be.
struct cluster_store_options {
  config::address director;
  std::optional<uint32_t> block_tokens;
  std::optional<std::array<uint8_t, 32>> fingerprint;
  config::transport_section transport;
  nanoseconds hedge_after{0};
  uint64_t window = 64ull << 20;
  uint32_t threads = 2;                                 // that check and copy
  nanoseconds ready_within = std::chrono::seconds(15);  // for the storage nodes to be met
};

/// A client of the cluster's store. The calls block and may come from any thread but actors'; they must have returned
/// before the destructor.
class cluster_store {
 public:
  /// Errors: unavailable (no director there, no storage nodes, none that answers: says which and why), unsupported (the
  /// store has another block size or fingerprint: names both).
  static result<std::unique_ptr<cluster_store>> open(const cluster_store_options& options);
  ~cluster_store();

  /// The code, the hash scheme, the number of targets, the storage epoch of then; chunk and capacity are each node's
  /// own business.
  const kv::store_layout& layout() const { return layout_; }
  std::string dir() const { return "the cluster at " + options_.director.text(); }
  /// Storage nodes that are away, for people.
  std::vector<std::string> notes();
  /// Targets that are not there.
  std::vector<kv::target_id> absent();
  /// Where each target that is there lies.
  std::vector<std::string> disk_names();

  result<kv::put_chain_reply> put(kv::put_chain_request request);
  result<kv::get_chain_reply> get(kv::get_chain_request request);
  result<uint64_t> match(std::vector<kv::block_hash> chain);
  result<kv::chain_match> find(std::vector<kv::block_hash> chain);
  /// True bytes of each block of the chain up to the first that is not there.
  result<std::vector<uint32_t>> lengths(const std::vector<kv::block_hash>& chain);
  /// Runs on the storage nodes, each over its own extents, all at once; adds up what they say. options.progress and
  /// stop are obeyed; window is each node's own.
  result<kv::scrub_report> scrub(const kv::scrub_options& options);
  /// What the last repairing scrub gave back before it began. The nodes do that by themselves all the time.
  result<kv::reclaim_report> maintain() { return kv::reclaim_report{}; }
  kv::shard_usage usage();
  /// Every target: how full, or nothing while it is away; where it lies, or why it is away.
  struct target_line {
    kv::target_id id;
    std::optional<kv::shard_usage> usage;
    std::string text;
  };
  std::vector<target_line> targets();
  /// Each record counts once, whatever its copies. While a node is away what is visible is counted one by one, and what
  /// has expired is approximate.
  kv::index_stats stats();
  /// Everything the index knows, each extent once, in pages; `each` returns false to end.
  result<void> each_extent(const std::function<bool(const kv::index_change&)>& each);

 private:
  explicit cluster_store(const cluster_store_options& options);
  result<void> connect();
  template <class T>
  result<T> wait(std::function<void(actors::store_state&, kv::reply<T>)> call) {
    auto promise = std::make_shared<std::promise<result<T>>>();
    auto future = promise->get_future();
    session_->post([promise, call = std::move(call)](actors::store_state& s) {
      if (!s.client) return promise->set_value(fail(errc::unavailable, "no storage node answers"));
      call(s, [promise](result<T> r) { promise->set_value(std::move(r)); });
    });
    return future.get();
  }
  template <class T>
  T snapshot(std::function<T(actors::store_state&)> look) {
    auto r = wait<T>([look](actors::store_state& s, kv::reply<T> back) { back(look(s)); });
    return r ? std::move(*r) : T{};
  }

  struct latch;
  const cluster_store_options options_;
  kv::store_layout layout_;
  actor_net net_;
  std::shared_ptr<latch> users_;
  std::unique_ptr<kv::io_pool> pool_;
  std::shared_ptr<transport::transport> plane_;
  actors::directory_actor directory_;
  std::shared_ptr<actors::store_session> session_;
};

}  // namespace troupe::node
