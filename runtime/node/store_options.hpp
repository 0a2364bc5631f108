// What the configuration says to the parts of the block store, the same in live processes and in simulations.
#pragma once

#include "actors/serving/prefix_store.hpp"
#include "actors/storage/storage_host.hpp"
#include "actors/storage/storage_node.hpp"
#include "kv/index/block_index.hpp"
#include "runtime/config/config.hpp"

namespace troupe::node {

/// Of a client: lives of blocks, hedging. Windows and the seed are the caller's.
kv::client_options client_options_of(const config::storage_section& s);

/// Of the index of a storage node.
kv::index_options index_options_of(const config::storage_section& s);

/// Fills in what follows from the configuration: code, seat, limits, the node's own client. Pointers, scheme, targets,
/// snapshots and the client's seed are the caller's.
void describe_storage(const config::storage_section& s, uint32_t seat, actors::opened_storage& out);

/// Times of a storage node's background work.
actors::storage_times storage_times_of(const config::storage_section& s);

/// What the configuration says of the cache; store and scheme are the caller's.
actors::prefix_options prefix_options_of(const config::settings& s);

/// The hash scheme that a cluster with these settings stores blocks under: the model's window and weights, or what the
/// storage section says. Errors: those of reading the checkpoint.
result<kv::hash_scheme> storage_scheme(const config::settings& s);

}  // namespace troupe::node
