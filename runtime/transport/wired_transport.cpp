#include "runtime/transport/wired_transport.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::transport {
namespace {

constexpr nanoseconds spin_time = std::chrono::microseconds(20);
constexpr nanoseconds yield_time = std::chrono::microseconds(200);

}  // namespace

tcp_wire_options wire_options(const options& o) {
  tcp_wire_options w;
  w.interface = o.interface;
  // A peer may have larger limits than this side's.
  w.max_payload = std::max({w.max_payload, o.max_message, uint64_t{o.max_pages} * sizeof(wire_piece)});
  w.max_incoming = size_t{o.max_peers} * 4;  // the old ones of a peer may not have been found out yet
  return w;
}

wired_transport::wired_transport(const options& o, std::unique_ptr<wire> wire)
    : options_(o), identity_(entropy_seed()), host_(host_identity()), wire_(std::move(wire)) {
  arena_ = std::make_shared<arena>(o.shared_memory, identity_);
  endpoint_address a;
  a.identity = identity_;
  a.host = host_;
  a.messages = wire_->address();
  a.shares = arena_->shares();
  address_ = a.encode();
  wire_->on_frame([this](std::span<const std::byte> header, std::span<const std::byte> payload) {
    frame_header h;
    if (header.size() != sizeof h) {
      ++count_.stale;
      return;
    }
    std::memcpy(&h, header.data(), sizeof h);
    take(h, payload);
  });
  thread_ = std::thread([this] { loop(); });
}

wired_transport::~wired_transport() {
  TROUPE_CHECK(std::this_thread::get_id() != thread_.get_id(), "a transport is destroyed by its own thread");
  {
    std::lock_guard lock(commands_mutex_);
    stop_ = true;
  }
  wire_->signal();
  thread_.join();
}

result<peer_state*> wired_transport::known(const endpoint_address& where) {
  if (where.identity == identity_) return fail(errc::invalid_argument, "add_peer: this is the transport's own address");
  std::lock_guard lock(peers_mutex_);
  auto& p = peers_[where.identity];
  if (p) return p.get();
  if (peers_.size() > options_.max_peers) {
    peers_.erase(where.identity);
    return fail(errc::exhausted, "{} peers are known, the limit", options_.max_peers);
  }
  p = std::make_unique<peer_state>();
  p->id = peer_id{next_peer_++};
  p->where = where;
  by_id_[p->id.value] = p.get();
  ++peers_version_;
  return p.get();
}

result<peer_id> wired_transport::add_peer(std::string_view address) {
  TROUPE_TRY(const auto where, endpoint_address::decode(address));
  TROUPE_TRY(peer_state* const p, known(where));
  return p->id;
}

void wired_transport::remove_peer(peer_id peer) {
  {
    std::lock_guard lock(commands_mutex_);
    removals_.push_back(peer);
  }
  poke();
}

void wired_transport::poke() {
  if (sleeping_.load(std::memory_order_seq_cst)) wire_->signal();
}

result<void> wired_transport::post(std::unique_ptr<operation> op) {
  {
    std::lock_guard lock(peers_mutex_);
    if (!by_id_.contains(op->peer.value)) return fail(errc::not_found, "peer {} is not known", op->peer.value);
  }
  if (outstanding_.fetch_add(1) >= options_.max_operations) {
    --outstanding_;
    ++count_.refused;
    return fail(errc::exhausted, "{} operations are outstanding, the limit", options_.max_operations);
  }
  {
    std::lock_guard lock(commands_mutex_);
    commands_.push_back(std::move(op));
  }
  poke();
  return {};
}

result<void> wired_transport::move(operation::kind what, peer_id peer, region_ptr local, const remote_region& remote,
                                   uint64_t page_bytes, const std::vector<page_move>& pages, completion done) {
  if (!local) return fail(errc::invalid_argument, "no local region");
  {
    std::lock_guard lock(peers_mutex_);
    const auto p = by_id_.find(peer.value);
    if (p == by_id_.end()) return fail(errc::not_found, "peer {} is not known", peer.value);
    if (p->second->where.identity != remote.owner)
      return fail(errc::invalid_argument, "region {} does not belong to peer {}", remote.id, peer.value);
  }
  auto op = std::make_unique<operation>();
  op->what = what;
  op->peer = peer;
  TROUPE_TRY(op->pieces, cut_pieces(*local, remote, page_bytes, pages, piece_bytes));
  op->local = std::move(local);
  op->remote = remote;
  op->done = std::move(done);
  return post(std::move(op));
}

result<void> wired_transport::get(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                                  uint64_t remote_offset, uint64_t length, completion done) {
  ++count_.gets;
  return move(operation::kind::move_in, peer, std::move(local), remote, length, {{remote_offset, local_offset}},
              std::move(done));
}

result<void> wired_transport::put(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                                  uint64_t remote_offset, uint64_t length, completion done) {
  ++count_.puts;
  return move(operation::kind::move_out, peer, std::move(local), remote, length, {{remote_offset, local_offset}},
              std::move(done));
}

result<void> wired_transport::pull(peer_id peer, region_ptr local, const remote_region& remote, uint64_t page_bytes,
                                   std::vector<page_move> pages, completion done) {
  ++count_.pulls;
  if (pages.size() > options_.max_pages)
    return fail(errc::invalid_argument, "pull: {} pages, the limit is {}", pages.size(), options_.max_pages);
  count_.pages += pages.size();
  return move(operation::kind::move_in, peer, std::move(local), remote, page_bytes, pages, std::move(done));
}

result<void> wired_transport::send(peer_id peer, channel_id channel, std::vector<std::byte> bytes, completion done) {
  ++count_.sends;
  if (bytes.size() > options_.max_message)
    return fail(errc::invalid_argument, "send: {} B, the limit is {}", bytes.size(), options_.max_message);
  auto op = std::make_unique<operation>();
  op->peer = peer;
  op->channel = channel;
  op->message = std::move(bytes);
  op->done = std::move(done);
  return post(std::move(op));
}

void wired_transport::on_message(channel_id channel, message_handler handler) {
  std::lock_guard lock(handlers_mutex_);
  if (handler)
    handlers_[channel] = std::move(handler);
  else
    handlers_.erase(channel);
}

void wired_transport::on_peer_lost(peer_lost_handler handler) {
  std::lock_guard lock(handlers_mutex_);
  lost_handler_ = std::move(handler);
}

counters wired_transport::stats() const {
  const auto& c = count_;
  return {c.gets,      c.puts,   c.sends,       c.pulls, c.pages,   c.bytes_in,
          c.bytes_out, c.served, c.connections, c.lost,  c.refused, c.stale};
}

void wired_transport::refresh_peers() {
  if (version_ == peers_version_.load()) return;
  std::lock_guard lock(peers_mutex_);
  version_ = peers_version_;
  active_.clear();
  for (auto& [identity, p] : peers_) active_.push_back(p.get());
}

bool wired_transport::take_commands() {
  std::vector<std::unique_ptr<operation>> ops;
  std::vector<peer_id> removals;
  {
    std::lock_guard lock(commands_mutex_);
    ops.swap(commands_);
    removals.swap(removals_);
  }
  for (auto& op : ops) begin(std::move(op));
  for (const peer_id p : removals) forget(p);
  return !ops.empty() || !removals.empty();
}

void wired_transport::forget(peer_id peer) {
  std::unique_ptr<peer_state> gone;
  {
    std::lock_guard lock(peers_mutex_);
    const auto found = by_id_.find(peer.value);
    if (found == by_id_.end()) return;
    const auto state = peers_.find(found->second->where.identity);
    gone = std::move(state->second);
    peers_.erase(state);
    by_id_.erase(found);
    ++peers_version_;
  }
  end_connection(*gone, errc::peer_lost, "the peer was removed");
}

void wired_transport::begin(std::unique_ptr<operation> op) {
  peer_state* p = nullptr;
  {
    std::lock_guard lock(peers_mutex_);
    if (const auto found = by_id_.find(op->peer.value); found != by_id_.end()) p = found->second;
  }
  if (!p) return finish(std::move(op), fail(errc::peer_lost, "the peer was removed"));
  if (p->operations.empty()) p->progressed = now_;
  op->id = next_operation_++;
  operation& o = *op;
  p->operations[o.id] = std::move(op);
  if (o.what == operation::kind::message) {
    frame_header h;
    h.kind = frame::message;
    h.operation = o.id;
    h.a = o.channel.value;
    queue(*p, h, std::exchange(o.message, {}));
  } else if (o.pieces.empty()) {
    finish(*p, o.id, {});
  } else if (arena_->shares() && p->where.shares && p->where.host == host_ && !o.remote.key.empty()) {
    p->direct.push_back(o.id);
  } else {
    start_by_messages(*p, o);
  }
}

void wired_transport::start_by_messages(peer_state& p, operation& op) {
  if (op.what == operation::kind::move_out) {
    p.puts.push_back(op.id);
    return;
  }
  op.next = op.finished = 0;
  op.arrived.assign(op.pieces.size(), false);
  std::vector<std::byte> list(op.pieces.size() * sizeof(wire_piece));
  for (size_t i = 0; i < op.pieces.size(); ++i) {
    const wire_piece w{op.pieces[i].remote_offset, op.pieces[i].length};
    std::memcpy(list.data() + i * sizeof w, &w, sizeof w);
  }
  frame_header h;
  h.kind = frame::pull;
  h.operation = op.id;
  h.region = op.remote.id;
  h.generation = op.remote.generation;
  queue(p, h, std::move(list));
}

void wired_transport::finish(std::unique_ptr<operation> op, result<void> r) {
  --outstanding_;
  if (r) {
    uint64_t bytes = 0;
    for (const auto& piece : op->pieces) bytes += piece.length;
    if (op->what == operation::kind::move_in) count_.bytes_in += bytes;
    if (op->what == operation::kind::move_out) count_.bytes_out += bytes;
  }
  if (op->done) op->done(std::move(r));
}

void wired_transport::finish(peer_state& p, uint64_t id, result<void> r) {
  const auto found = p.operations.find(id);
  if (found == p.operations.end()) return;
  auto op = std::move(found->second);
  p.operations.erase(found);
  finish(std::move(op), std::move(r));
}

// Copies through shared memory, a slice at a time. A region that cannot be mapped or is not the one that was meant is
// asked for by messages: its owner knows whether it is gone.
bool wired_transport::run_direct(peer_state& p) {
  if (p.direct.empty()) return false;
  size_t budget = direct_slice;
  while (!p.direct.empty() && budget > 0) {
    const uint64_t id = p.direct.front();
    const auto listed = p.operations.find(id);
    if (listed == p.operations.end()) {  // ended by an answer that the peer should not have given
      p.direct.pop_front();
      continue;
    }
    operation& op = *listed->second;
    auto& map = p.mappings[{op.remote.id, op.remote.generation}];
    if (!map) {
      if (p.mappings.size() > max_mappings) {
        // Any but this one; an operation that still needs it maps it again.
        auto other = p.mappings.begin();
        if (other->second == map) ++other;
        p.mappings.erase(other);
      }
      auto made = arena_->map(op.remote);
      if (!made) {
        p.mappings.erase({op.remote.id, op.remote.generation});
        p.direct.pop_front();
        op.next = 0;
        start_by_messages(p, op);
        continue;
      }
      map = std::move(*made);
    }
    std::byte* const theirs = map->data() + region_header_bytes;
    std::byte* const ours = op.local->bytes().data();
    while (op.next < op.pieces.size() && budget > 0) {
      const piece& m = op.pieces[op.next++];
      if (op.what == operation::kind::move_in)
        std::memcpy(ours + m.local_offset, theirs + m.remote_offset, m.length);
      else
        std::memcpy(theirs + m.remote_offset, ours + m.local_offset, m.length);
      budget -= std::min<size_t>(budget, m.length);
    }
    p.progressed = now_;
    if (op.next < op.pieces.size()) break;
    p.direct.pop_front();
    const auto* h = reinterpret_cast<const region_header*>(map->data());
    if (h->alive.load(std::memory_order_seq_cst) == 0) {
      p.mappings.erase({op.remote.id, op.remote.generation});
      finish(p, id, fail(errc::stale, "region {} of the peer was freed", op.remote.id));
    } else {
      finish(p, id, {});
    }
  }
  return true;
}

bool wired_transport::pump(peer_state& p) {
  if (p.restarted) {
    // Its operations are in doomed_ already, and what has come since belongs to the new connection.
    close(p);
    p.restarted = p.dead = false;
    p.mappings.clear();
    ++count_.lost;
    std::lock_guard lock(handlers_mutex_);
    if (lost_handler_) lost_handler_(p.id, "the peer has begun a new connection");
  }
  if (p.dead || (p.out && p.out->lost())) {
    end_connection(p, errc::peer_lost, "the connection was closed by the peer or its process has ended");
    return true;
  }
  if (!p.out && (p.wanted || !p.operations.empty() || !p.outbox.empty()) && !connect(p)) {
    end_connection(p, errc::peer_lost, "no connection to the peer can be made");
    return true;
  }
  if (!p.out) return false;
  p.flying.advance(p.out->sent());
  bool busy = false;
  while (!p.outbox.empty() && p.flying.control.size() < control_window) {
    auto f = std::move(p.outbox.front());
    p.outbox.pop_front();
    fly(p, std::move(f), p.flying.control);
    busy = true;
  }
  busy |= pump_servings(p);
  busy |= pump_puts(p);
  busy |= run_direct(p);
  return busy || p.out->lost();
}

nanoseconds wired_transport::check_timers() {
  nanoseconds next = std::chrono::seconds(60);
  const auto ms = [](nanoseconds d) { return d.count() / 1'000'000; };
  for (peer_state* p : active_) {
    if (!p->out) continue;
    const nanoseconds silent = now_ - p->heard;
    const nanoseconds stuck = p->operations.empty() ? nanoseconds(0) : now_ - p->progressed;
    if (silent >= options_.deadline || stuck >= options_.deadline) {
      end_connection(*p, errc::peer_lost,
                     silent >= options_.deadline ? fmt::format("no sign of life for {} ms", ms(silent))
                                                 : fmt::format("no progress for {} ms", ms(stuck)));
      continue;
    }
    const nanoseconds theirs = p->their_deadline.count() > 0 ? p->their_deadline : options_.deadline;
    const nanoseconds every = std::min(options_.deadline, theirs) / 4;
    if (now_ - p->beat >= every) {
      p->beat = now_;
      queue(*p, {}, {});
      next = nanoseconds(0);
    }
    next = std::min({next, options_.deadline - silent, p->beat + every - now_});
    if (!p->operations.empty()) next = std::min(next, options_.deadline - stuck);
  }
  return std::max(next, nanoseconds(0));
}

void wired_transport::loop() {
  const clock_source& clock = steady_clock();
  nanoseconds idle_since{-1};
  for (;;) {
    now_ = clock.now();
    bool busy = take_commands();
    for (int i = 0; i < 64 && wire_->progress() != 0; ++i) busy = true;
    for (auto& op : std::exchange(doomed_, {}))
      finish(std::move(op), fail(errc::peer_lost, "the peer has begun a new connection"));
    refresh_peers();
    for (peer_state* p : active_) busy |= pump(*p);
    const nanoseconds next = check_timers();
    {
      std::lock_guard lock(commands_mutex_);
      if (stop_) break;
    }
    if (busy || next.count() == 0) {
      idle_since = nanoseconds(-1);
      continue;
    }
    if (idle_since.count() < 0) idle_since = now_;
    if (now_ - idle_since < spin_time) continue;
    if (now_ - idle_since < yield_time) {
      sched_yield();
      continue;
    }
    // Announced first, looked at the queue after: a post either is seen here or sees the announcement.
    sleeping_.store(true, std::memory_order_seq_cst);
    if (!take_commands()) wire_->sleep(next);
    sleeping_.store(false, std::memory_order_seq_cst);
  }
  {
    std::lock_guard lock(handlers_mutex_);
    handlers_.clear();
    lost_handler_ = {};
  }
  take_commands();
  for (auto& op : std::exchange(doomed_, {})) finish(std::move(op), fail(errc::cancelled, "the transport was stopped"));
  refresh_peers();
  for (peer_state* p : active_) end_connection(*p, errc::cancelled, "the transport was stopped");
}

}  // namespace troupe::transport
