// Memory regions of a transport between processes: allocation, the header that marks them alive, and lookup by peers'
// requests.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "runtime/transport/memory.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::transport {

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
  /// Not `shares`: regions are private memory, reached by messages only.
  arena(bool shares, uint64_t identity) : shares_(shares), identity_(identity) {}

  result<region_ptr> allocate(size_t bytes);
  /// The region that a peer names, if it lives.
  region_ptr find(uint64_t id, uint64_t generation);
  /// Maps a peer's region; checks its header. stale when it is another region or gone.
  result<std::unique_ptr<mapping>> map(const remote_region& remote);
  bool shares() const { return shares_; }

 private:
  friend class arena_region;
  const bool shares_;
  const uint64_t identity_;
  std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::weak_ptr<memory_region>> regions_;
};

}  // namespace troupe::transport
