// Memory regions of a transport between processes: allocation, the header that marks them alive, and lookup by peers'
// requests.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "runtime/transport/transport.hpp"

namespace troupe::transport {

/// Memory that other processes of this host can map. Must go before its space.
class shared_block {
 public:
  virtual ~shared_block() = default;
  virtual std::span<std::byte> bytes() const = 0;
  /// What a peer needs to map it.
  virtual const std::string& key() const = 0;
};

/// A peer's block, mapped here. Must go before its space.
class shared_mapping {
 public:
  virtual ~shared_mapping() = default;
  virtual std::byte* data() const = 0;
  virtual size_t size() const = 0;
};

/// Where blocks come from. One thread at a time.
class shared_space {
 public:
  virtual ~shared_space() = default;
  /// Bytes by which peers find its blocks.
  virtual const std::string& address() const = 0;
  /// exhausted when the system has none.
  virtual result<std::unique_ptr<shared_block>> allocate(size_t bytes) = 0;
  /// `base`: address of the block's bytes in the peer. unavailable if it cannot be mapped, stale if something else is
  /// there now, corrupt for a key that no block gave.
  virtual result<std::unique_ptr<shared_mapping>> map(const std::string& peer_address, const std::string& key,
                                                      uint64_t base) = 0;
};

/// First bytes of every region, hidden from its user: lets a peer that has it mapped see that it is the region that its
/// descriptor names and still alive. The data begin one page later.
struct region_header {
  uint64_t magic;
  uint64_t id;
  uint64_t generation;
  std::atomic<uint64_t> alive;
};
inline constexpr uint64_t region_header_magic = 0x54'52'4f'55'50'45'4d'31;
inline constexpr size_t region_header_bytes = 4096;

/// Shared by a transport and its regions, so that a region may outlive the transport. All members: any thread.
class arena : public std::enable_shared_from_this<arena> {
 public:
  /// `shared` null: regions are private memory, reached by messages only.
  arena(std::unique_ptr<shared_space> shared, uint64_t identity) : shared_(std::move(shared)), identity_(identity) {}

  result<region_ptr> allocate(size_t bytes);
  /// The region that a peer names, if it lives.
  region_ptr find(uint64_t id, uint64_t generation);
  /// Maps a peer's region; checks its header. stale when it is another region or gone.
  result<std::unique_ptr<shared_mapping>> map(const std::string& peer_shared_address, const remote_region& remote);
  /// Unmaps.
  void unmap(std::unique_ptr<shared_mapping> mapping);
  bool shares() const { return shared_ != nullptr; }
  const std::string& shared_address() const { return shared_->address(); }

 private:
  friend class arena_region;
  const std::unique_ptr<shared_space> shared_;  // used under mutex_
  const uint64_t identity_;
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::weak_ptr<memory_region>> regions_;
};

}  // namespace troupe::transport
