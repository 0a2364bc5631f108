// A store as the commands of `troupe kv` see it: in a directory, or of a running cluster.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/store/directory.hpp"
#include "runtime/cli/kv_common.hpp"

namespace troupe::node {
class cluster_store;
}

namespace troupe::cli {

/// The calls that both have; see kv/store/directory.hpp.
class kv_any_store {
 public:
  virtual ~kv_any_store() = default;
  virtual const kv::store_layout& layout() const = 0;
  virtual std::string dir() const = 0;
  virtual std::vector<std::string> notes() = 0;
  virtual std::vector<kv::target_id> absent() = 0;
  /// How each target that is there is reached.
  virtual std::vector<std::string> disks() = 0;
  virtual result<kv::put_chain_reply> put(kv::put_chain_request request) = 0;
  virtual result<kv::get_chain_reply> get(kv::get_chain_request request) = 0;
  virtual result<uint64_t> match(std::vector<kv::block_hash> chain) = 0;
  /// The same, with the window snapshots that a cluster's storage nodes keep of these blocks.
  virtual result<kv::chain_match> find(std::vector<kv::block_hash> chain) = 0;
  virtual result<std::vector<uint32_t>> lengths(const std::vector<kv::block_hash>& chain) = 0;
  virtual result<kv::scrub_report> scrub(const kv::scrub_options& options) = 0;
  virtual result<kv::reclaim_report> maintain() = 0;
  virtual kv::shard_usage usage() = 0;
  virtual kv::index_stats stats() = 0;
  virtual result<void> each_extent(const std::function<bool(const kv::index_change&)>& each) = 0;
  /// Null for a cluster's.
  virtual kv::directory_store* directory() { return nullptr; }
};

/// Opens the store that the options name. `where` is their resolve(), changed as the command needs it; it does not
/// matter for a cluster. `look`: see kv_open_to_look. Errors also: invalid_argument for options that a cluster's store
/// does not take.
result<std::unique_ptr<kv_any_store>> kv_open(const kv_store_options& options, const kv::directory_options& where,
                                              bool look);

/// The same for what only a cluster's has. Errors also: invalid_argument for options that it does not take.
result<std::unique_ptr<node::cluster_store>> kv_open_cluster(const kv_store_options& options,
                                                             const kv::directory_options& where);

/// Prints what opening the store found, to stderr.
void kv_notes(const std::string& command, kv_any_store& store);

}  // namespace troupe::cli
