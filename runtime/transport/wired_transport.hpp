// The transport over a wire and shared memory: the calls (any thread), and the thread that owns the wire.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "runtime/transport/tcp_wire.hpp"
#include "runtime/transport/wired_state.hpp"

namespace troupe::transport {

/// The bounds that a wire over TCP needs to carry the frames of a transport.
tcp_wire_options wire_options(const options& o);

/// See transport.hpp for the contract and the thread rules.
class wired_transport final : public transport {
 public:
  /// Starts the thread.
  wired_transport(const options& o, std::unique_ptr<wire> wire);
  ~wired_transport() override;

  const std::string& address() const override { return address_; }
  result<region_ptr> allocate(size_t bytes) override { return arena_->allocate(bytes); }
  result<peer_id> add_peer(std::string_view address) override;
  void remove_peer(peer_id peer) override;
  result<void> get(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                   uint64_t remote_offset, uint64_t length, completion done) override;
  result<void> put(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                   uint64_t remote_offset, uint64_t length, completion done) override;
  result<void> pull(peer_id peer, region_ptr local, const remote_region& remote, uint64_t page_bytes,
                    std::vector<page_move> pages, completion done) override;
  result<void> send(peer_id peer, channel_id channel, std::vector<std::byte> bytes, completion done) override;
  void on_message(channel_id channel, message_handler handler) override;
  void on_peer_lost(peer_lost_handler handler) override;
  counters stats() const override;

 private:
  // Calls: wired_transport.cpp.
  result<void> move(operation::kind what, peer_id peer, region_ptr local, const remote_region& remote,
                    uint64_t page_bytes, const std::vector<page_move>& pages, completion done);
  result<void> post(std::unique_ptr<operation> op);
  result<peer_state*> known(const endpoint_address& where);
  void poke();

  // The thread: wired_transport.cpp.
  void loop();
  bool take_commands();
  bool pump(peer_state& p);
  bool run_direct(peer_state& p);
  nanoseconds check_timers();  // how long until the next is due
  void forget(peer_id peer);
  void begin(std::unique_ptr<operation> op);
  void finish(std::unique_ptr<operation> op, result<void> r);
  void finish(peer_state& p, uint64_t id, result<void> r);
  void start_by_messages(peer_state& p, operation& op);
  void refresh_peers();

  // Connections and frames: wired_frames.cpp.
  bool connect(peer_state& p);
  void close(peer_state& p);
  void end_connection(peer_state& p, errc code, const std::string& why);
  void queue(peer_state& p, frame_header h, std::vector<std::byte> payload);
  void fly(peer_state& p, std::shared_ptr<flight> f, std::deque<uint64_t>& flying);
  bool pump_servings(peer_state& p);
  bool pump_puts(peer_state& p);
  void take(const frame_header& h, std::span<const std::byte> payload);
  void take_hello(const frame_header& h, std::span<const std::byte> payload);
  void take_message(peer_state& p, const frame_header& h, std::span<const std::byte> payload);
  void take_pull(peer_state& p, const frame_header& h, std::span<const std::byte> payload);
  void take_page(peer_state& p, const frame_header& h, std::span<const std::byte> payload);
  void take_put(peer_state& p, const frame_header& h, std::span<const std::byte> payload);
  void take_put_done(peer_state& p, const frame_header& h);

  // Constant after construction.
  const options options_;
  uint64_t identity_ = 0, host_ = 0;
  std::string address_;
  const std::unique_ptr<wire> wire_;
  std::shared_ptr<arena> arena_;

  // Protected by peers_mutex_ (the states themselves belong to the thread).
  mutable std::mutex peers_mutex_;
  std::map<uint64_t, std::unique_ptr<peer_state>> peers_;  // by identity
  std::unordered_map<uint32_t, peer_state*> by_id_;
  uint32_t next_peer_ = 1;

  // Protected by commands_mutex_.
  std::mutex commands_mutex_;
  std::vector<std::unique_ptr<operation>> commands_;
  std::vector<peer_id> removals_;
  bool stop_ = false;

  // Protected by handlers_mutex_; recursive: a handler may set handlers.
  std::recursive_mutex handlers_mutex_;
  std::map<channel_id, message_handler> handlers_;
  peer_lost_handler lost_handler_;

  // Owned by the thread.
  uint64_t next_operation_ = 1, next_connection_ = 1;
  std::vector<std::unique_ptr<operation>> doomed_;  // of connections that peers have ended; completed outside callbacks
  nanoseconds now_{};                               // of this round of the loop
  std::vector<peer_state*> active_;                 // copy of peers_ as of version_
  uint64_t version_ = 0;

  std::atomic<uint64_t> peers_version_{1};
  std::atomic<bool> sleeping_{false};
  std::atomic<uint32_t> outstanding_{0};
  struct {
    std::atomic<uint64_t> gets{0}, puts{0}, sends{0}, pulls{0}, pages{0}, bytes_in{0}, bytes_out{0}, served{0},
        connections{0}, lost{0}, refused{0}, stale{0};
  } count_;
  std::thread thread_;
};

}  // namespace troupe::transport
