// What a rank needs from its process: the engine, its memory and its way to the group. The runtime implements it with
// the real engine and transport; tests hand in a stand-in. No CAF.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "actors/protocol/cluster.hpp"
#include "actors/protocol/handoff.hpp"
#include "actors/protocol/prefix.hpp"
#include "kernels/engine/engine.hpp"

namespace troupe::actors {

/// The pages of a rank, one after the other; `keep` holds the memory as long as somebody uses it.
struct page_memory {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> keep;
};

/// Where tiers find what is in the snapshot memory of a rank; no region: nobody can reach it.
struct snapshot_memory {
  std::string address;  // on the data plane
  std::string region;   // transport::remote_region, encoded; place p begins at p * facts.snapshot_bytes
};

/// Thread rules: all functions are called from the rank's handlers and must not block; slow work happens elsewhere and
/// ends with the callback, from any thread (in a simulation from the agenda). A call of open or regroup is made only
/// after the previous one's callback. The callbacks and the sink may outlive the actor: they post to it, and hold a
/// reference to it until `stop`.
class rank_host {
 public:
  virtual ~rank_host() = default;

  /// Loads the checkpoint and opens this rank's end of the group's data plane; `done` gets the address by which other
  /// ranks reach it. `sink` is for the engine, once there is one.
  virtual void open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) = 0;

  /// Makes the engine for the first view, or moves it to a newer one (engine::regroup), with the expert placement that
  /// follows from the view.
  virtual void regroup(const group_view& view, std::function<void(result<void>)> done) = 0;

  /// Null before the first regroup has succeeded. The pointer stays valid until the host is destroyed.
  virtual kernels::engine* engine() = 0;

  /// Where peers find this rank's pages and handoff memory, once `open` has succeeded; without an address nobody can.
  virtual peer_memory memory() const { return {}; }

  /// The pages themselves, once `open` has succeeded; empty: nobody but the engine reaches them.
  virtual page_memory pages() { return {}; }

  /// Pulls the pages of the grant into `pages` and its state into place `place`, and compares the checksums. `done`
  /// gets the bytes moved, or corrupt, stale, peer_lost, ...; until then the transport may write into the pages.
  /// Several may be under way.
  virtual void pull(const transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
                    std::function<void(result<uint64_t>)> done) {
    (void)from, (void)pages, (void)place;
    done(fail(errc::unsupported, "this rank has no way to pull"));
  }

  /// Where peers find this rank's snapshot memory, once `open` has succeeded.
  virtual snapshot_memory snapshots() const { return {}; }

  /// Pulls a snapshot into place `place` and compares its checksum; until `done` the transport may write there.
  virtual void pull_snapshot(const snapshot_source& from, uint32_t place, std::function<void(result<void>)> done) {
    (void)from, (void)place;
    done(fail(errc::unsupported, "this rank has no way to pull"));
  }

  /// Ends the engine and drops the callbacks, in the background. Idempotent.
  virtual void stop() = 0;
};

}  // namespace troupe::actors
