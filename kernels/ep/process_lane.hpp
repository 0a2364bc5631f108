// The lane between processes: one wire and shared memory per rank process, shared by the groups of its epochs.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/ep/exchange_group.hpp"
#include "runtime/transport/address.hpp"
#include "runtime/transport/memory.hpp"
#include "runtime/transport/wire.hpp"

namespace troupe::kernels::ep {

/// The connection to one peer process. It lasts over epochs, so that a rank that moves on to a new epoch first does not
/// look dead to the others. Used under `endpoint_core::serial`.
struct peer_link {
  explicit peer_link(std::string who) : address(std::move(who)) {}

  struct outgoing {
    std::vector<std::byte> bytes;  // slot header, then payload
    uint64_t number = 0;           // of the frame that has it; free for reuse once the link has sent that
  };
  static constexpr size_t ring = 4;  // messages to one peer that may be on their way
  std::string address;               // blob of the peer's endpoint
  transport::endpoint_address where;
  std::unique_ptr<transport::link> link;
  std::shared_ptr<std::array<outgoing, ring>> out = std::make_shared<std::array<outgoing, ring>>();
  size_t next = 0;
  bool dead = false;
  /// Whether the last message of `o` is still on its way.
  bool under_way(const outgoing& o) const { return !link->lost() && o.number > link->sent(); }
};

/// What a peer says about its inbox region of an epoch.
struct peer_hello {
  slot_header header;
  std::string blob;
};

class process_lane;

/// What the groups of one endpoint share. Everything but `wire->signal` and the counters is used under `serial`.
struct endpoint_core {
  std::recursive_mutex serial;
  std::unique_ptr<transport::wire> wire;  // outlives the links
  bool shares = false;                    // memory of peers on this host is mapped
  uint64_t identity = 0, host = 0, incarnation = 0;
  std::shared_ptr<atomic_counters> counters = std::make_shared<atomic_counters>();
  std::map<uint64_t, std::shared_ptr<peer_link>> links;  // by identity; members of the newest view only
  std::map<uint64_t, peer_hello> hellos;                 // newest of each peer, at most `max_hellos`
  process_lane* current = nullptr;
  uint64_t deaths = 0;  // links that have died

  static constexpr size_t max_hellos = 1024;
  ~endpoint_core();
  /// Opens the contexts and the handler of messages.
  result<void> open(const ep_endpoint_options& options);
  /// The link to a peer, made if there is none that lives.
  result<std::shared_ptr<peer_link>> link(const std::string& address);
  /// Runs the wire; messages go to `current`.
  void progress();
  /// Room for a message of `bytes` after the header; null when the peer is dead or `limit` passes.
  std::byte* buffer(peer_link& to, size_t bytes, nanoseconds limit);
  void post(peer_link& to, const slot_header& header, size_t bytes);

 private:
  void receive(std::span<const std::byte> header, std::span<const std::byte> payload);
  void note_deaths();
};

/// The lane over a wire and shared memory; see lane.hpp for the contract.
class process_lane final : public lane {
 public:
  /// Allocates the inbox region of `view` and becomes the core's current lane. Under `serial`.
  static result<std::shared_ptr<process_lane>> make(std::shared_ptr<endpoint_core> core, const group_view& view);
  ~process_lane() override;

  /// Meets the members; on peer_lost `missing` holds the ranks that did not answer. Under `serial`.
  result<void> connect(const group_view& view, std::vector<uint32_t>& missing);

  std::recursive_mutex& serial() override { return core_->serial; }
  std::byte* inbox() override { return inbox_; }
  std::byte* peer_inbox(uint32_t rank) override { return direct_[rank] ? direct_[rank]->data() : nullptr; }
  bool has_message_peers() const override { return has_message_peers_; }
  std::byte* buffer(uint32_t rank, size_t bytes, nanoseconds limit, lane_sink& sink) override;
  void post(uint32_t rank, const slot_header& header, size_t bytes) override;
  void progress(lane_sink& sink) override;
  void sleep(nanoseconds limit) override { core_->wire->sleep(limit); }
  void signal() override { core_->wire->signal(); }
  void flush(nanoseconds limit, lane_sink& sink) override;

  /// A message for this lane, from the core's handler.
  void deliver(const slot_header& header, std::span<const std::byte> payload);

 private:
  process_lane() = default;
  bool accept_hello(const group_view& view, uint32_t rank);
  result<void> send_hello(const group_view& view, uint32_t rank);
  result<void> open_link(const group_view& view, uint32_t rank);
  bool idle() const;

  struct early_message {
    slot_header header;
    std::vector<std::byte> payload;
  };
  std::shared_ptr<endpoint_core> core_;
  std::unique_ptr<transport::memory> shared_;
  std::shared_ptr<void> private_;
  std::byte* inbox_ = nullptr;
  size_t inbox_bytes_ = 0;
  uint32_t rank_ = 0;
  std::vector<std::shared_ptr<peer_link>> links_;  // by rank; own: null
  std::vector<std::unique_ptr<transport::mapping>> direct_;
  std::vector<bool> reported_;
  bool has_message_peers_ = false;
  uint64_t deaths_seen_ = 0;
  lane_sink* sink_ = nullptr;         // while progress runs
  std::vector<early_message> early_;  // came before the group's first progress; at most 4 per rank
};

}  // namespace troupe::kernels::ep
