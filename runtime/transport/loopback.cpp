#include "runtime/transport/loopback.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/transport/codec.hpp"
#include "runtime/transport/detail.hpp"

namespace troupe::transport {
namespace {

constexpr uint64_t address_magic = 0x31'4b'43'41'42'50'4f'4f;  // "OOPBACK1"

class loopback_transport;

/// One thing that will happen, at one endpoint, unless the connection that it belongs to has ended by then.
struct event {
  uint64_t at = 0;  // identity of the endpoint
  uint64_t a = 0, b = 0;
  uint64_t connection = 0;
  std::function<void(loopback_transport&)> run;
};

class network final : public loopback_network {
 public:
  network(const clock_source& clock, uint64_t seed, pacer* paced) : clock_(clock), rng_(seed), pacer_(paced) {}
  ~network() override { *alive_ = false; }

  result<std::unique_ptr<transport>> make(const options& o, endpoint_owner owner) override;
  bool step() override;
  void kill(const std::string& address) override;
  void stall(const std::string& address, bool stalled) override;
  void kill_all(endpoint_owner owner, bool silent) override;
  void stall_all(endpoint_owner owner, bool stalled) override;
  void sever(endpoint_owner a, endpoint_owner b, const std::string& why) override;

  struct seat {
    loopback_transport* transport = nullptr;  // null: dead
    bool stalled = false;
    nanoseconds since{};  // of the stall
    endpoint_owner owner = 0;
  };
  /// The connection of a pair; number 0: none.
  struct link {
    uint64_t number = 0;
    nanoseconds since{};
  };
  using pair = std::pair<uint64_t, uint64_t>;
  static pair key(uint64_t a, uint64_t b) { return {std::min(a, b), std::max(a, b)}; }

  link& connect(uint64_t a, uint64_t b) {
    link& l = links_[key(a, b)];
    if (l.number == 0) l = {next_++, clock_.now()};
    return l;
  }
  bool is_dead(uint64_t identity) { return seats_[identity].transport == nullptr; }
  /// `from`: the endpoint that causes it; `bytes`: that it carries.
  void post(event e, uint64_t from, uint64_t bytes = 0) {
    if (!pacer_) return events_.push_back(std::move(e));
    const auto to = seats_[e.at].owner;
    pacer_->carry(seats_[from].owner, to, bytes, [this, alive = alive_, e = std::move(e)]() mutable {
      if (!*alive) return;
      const seat& s = seats_[e.at];
      if (s.transport && s.stalled)
        events_.push_back(std::move(e));
      else
        happen(std::move(e));
    });
  }
  void end(uint64_t a, uint64_t b, const std::string& why);
  void died(uint64_t identity);
  uint64_t draw() { return rng_.next() | 1; }

 private:
  bool expire();
  void happen(event now);
  void stall_seat(seat& s, bool stalled) {
    s.stalled = stalled;
    s.since = clock_.now();
  }
  const clock_source& clock_;
  rng rng_;
  pacer* const pacer_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // what is carried may arrive after the network
  uint64_t next_ = 1;
  std::map<uint64_t, seat> seats_;
  std::map<pair, link> links_;
  std::deque<event> events_;
};

class loopback_region final : public memory_region {
 public:
  loopback_region(void* memory, size_t bytes, remote_region d)
      : size_(bytes), data_(static_cast<std::byte*>(memory)), descriptor_(std::move(d)) {}
  ~loopback_region() override { ::munmap(data_, size_); }
  std::span<std::byte> bytes() const override { return {data_, size_}; }
  const remote_region& descriptor() const override { return descriptor_; }

 private:
  const size_t size_;
  std::byte* const data_;
  remote_region descriptor_;
};

class loopback_transport final : public transport {
 public:
  loopback_transport(network& n, const options& o) : network_(n), options_(o), identity_(n.draw()) {
    address_ = blob_writer().number(address_magic).number(identity_).finish();
  }
  ~loopback_transport() override {
    network_.died(identity_);
    cancel_all();
  }

  uint64_t identity() const { return identity_; }
  const options& limits() const { return options_; }
  const std::string& address() const override { return address_; }

  result<region_ptr> allocate(size_t bytes) override {
    if (bytes == 0) return fail(errc::invalid_argument, "a region of 0 B");
    // Zeroed and page aligned, as the contract says; a simulation holds many regions of which little is ever touched.
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return fail(errc::exhausted, "no memory for a region of {} B", bytes);
    remote_region d;
    d.owner = identity_;
    d.id = next_region_++;
    d.generation = network_.draw();
    d.length = bytes;
    auto r = std::make_shared<loopback_region>(memory, bytes, d);
    regions_[d.id] = r;
    return r;
  }

  result<peer_id> add_peer(std::string_view address) override {
    blob_reader in(address);
    const bool magic = in.number() == address_magic;
    const uint64_t identity = in.number();
    if (!magic || !in.complete())
      return fail(errc::corrupt, "an address blob of {} B is truncated or of another transport", address.size());
    if (identity == identity_) return fail(errc::invalid_argument, "add_peer: this is the transport's own address");
    return known(identity);
  }

  void remove_peer(peer_id peer) override {
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    const uint64_t identity = found->second;
    network_.end(identity_, identity, "the peer was removed");
    peers_.erase(peer);
    ids_.erase(identity);
  }

  result<void> get(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                   uint64_t remote_offset, uint64_t length, completion done) override {
    ++count_.gets;
    return move(true, peer, std::move(local), remote, length, {{remote_offset, local_offset}}, std::move(done));
  }
  result<void> put(peer_id peer, region_ptr local, uint64_t local_offset, const remote_region& remote,
                   uint64_t remote_offset, uint64_t length, completion done) override {
    ++count_.puts;
    return move(false, peer, std::move(local), remote, length, {{remote_offset, local_offset}}, std::move(done));
  }
  result<void> pull(peer_id peer, region_ptr local, const remote_region& remote, uint64_t page_bytes,
                    std::vector<page_move> pages, completion done) override {
    ++count_.pulls;
    if (pages.size() > options_.max_pages)
      return fail(errc::invalid_argument, "pull: {} pages, the limit is {}", pages.size(), options_.max_pages);
    count_.pages += pages.size();
    return move(true, peer, std::move(local), remote, page_bytes, std::move(pages), std::move(done));
  }

  result<void> send(peer_id peer, channel_id channel, std::vector<std::byte> bytes, completion done) override {
    ++count_.sends;
    if (bytes.size() > options_.max_message)
      return fail(errc::invalid_argument, "send: {} B, the limit is {}", bytes.size(), options_.max_message);
    TROUPE_TRY(const uint64_t to, target(peer));
    const uint64_t op = begin(to, std::move(done));
    const uint64_t size = bytes.size();
    at_peer(to, size, [channel, bytes = std::move(bytes), op, me = identity_](loopback_transport& there) {
      const auto found = there.handlers_.find(channel);
      if (found == there.handlers_.end())
        return there.answer(
            me, op, fail(errc::not_found, "peer {} has no handler of channel {}", there.identity_, channel.value));
      const message_handler handler = found->second;
      if (auto from = there.known(me)) handler(*from, bytes);
      there.answer(me, op, {});
    });
    return {};
  }

  void on_message(channel_id channel, message_handler handler) override {
    if (handler)
      handlers_[channel] = std::move(handler);
    else
      handlers_.erase(channel);
  }
  void on_peer_lost(peer_lost_handler handler) override { lost_ = std::move(handler); }
  counters stats() const override { return count_; }

  /// The connection to `identity` has ended: its operations complete.
  void lost(uint64_t identity, const std::string& why) {
    std::vector<completion> dones;
    std::erase_if(operations_, [&](auto& o) {
      if (o.second.peer != identity) return false;
      dones.push_back(std::move(o.second.done));
      return true;
    });
    ++count_.peers_lost;
    for (auto& d : dones)
      if (d) d(fail(errc::peer_lost, "{}", why));
    if (lost_)
      if (auto id = ids_.find(identity); id != ids_.end()) lost_(id->second, why);
  }
  void drop_stale() { ++count_.stale_dropped; }
  /// Dead: nothing completes any more.
  void silence() {
    operations_.clear();
    dead_ = true;
  }

 private:
  struct running {
    uint64_t peer = 0;
    completion done;
  };

  result<peer_id> known(uint64_t identity) {
    if (const auto found = ids_.find(identity); found != ids_.end()) return found->second;
    if (ids_.size() >= options_.max_peers)
      return fail(errc::exhausted, "{} peers are known, the limit", options_.max_peers);
    const peer_id id{next_peer_++};
    ids_[identity] = id;
    peers_[id] = identity;
    return id;
  }

  result<uint64_t> target(peer_id peer) {
    if (dead_) return fail(errc::unavailable, "this endpoint was killed");
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return fail(errc::not_found, "peer {} is not known", peer.value);
    if (operations_.size() >= options_.max_operations) {
      ++count_.refused;
      return fail(errc::exhausted, "{} operations are outstanding, the limit", options_.max_operations);
    }
    return found->second;
  }

  uint64_t begin(uint64_t to, completion done) {
    const uint64_t op = next_operation_++;
    operations_[op] = {to, std::move(done)};
    return op;
  }

  void at_peer(uint64_t to, uint64_t bytes, std::function<void(loopback_transport&)> f) {
    const auto number = network_.connect(identity_, to).number;
    if (std::exchange(connected_[to], number) != number) ++count_.connections;
    network_.post({to, identity_, to, number, std::move(f)}, identity_, bytes);
  }

  /// Completes operation `op` of `to`, there.
  void answer(uint64_t to, uint64_t op, result<void> r, uint64_t bytes = 0) {
    network_.post({to, identity_, to, network_.connect(identity_, to).number,
                   [op, r = std::move(r)](loopback_transport& there) mutable {
                     const auto found = there.operations_.find(op);
                     if (found == there.operations_.end()) return;
                     completion done = std::move(found->second.done);
                     there.operations_.erase(found);
                     if (done) done(std::move(r));
                   }},
                  identity_, bytes);
  }

  result<void> move(bool in, peer_id peer, region_ptr local, const remote_region& remote, uint64_t page_bytes,
                    std::vector<page_move> pages, completion done) {
    if (!local) return fail(errc::invalid_argument, "no local region");
    TROUPE_TRY(const uint64_t to, target(peer));
    if (remote.owner != to)
      return fail(errc::invalid_argument, "region {} does not belong to peer {}", remote.id, peer.value);
    TROUPE_TRY(auto pieces, cut_pieces(*local, remote, page_bytes, pages, 1u << 30));
    const uint64_t op = begin(to, std::move(done));
    uint64_t total = 0;
    for (const piece& p : pieces) total += p.length;
    at_peer(to, in ? 0 : total,
            [=, this, me = identity_, id = remote.id, generation = remote.generation,
             pieces = std::move(pieces)](loopback_transport& there) {
              // `this` lives: the event belongs to a connection, which ends with either endpoint.
              const auto found = there.regions_.find(id);
              const auto region = found == there.regions_.end() ? nullptr : found->second.lock();
              if (!region || region->descriptor().generation != generation)
                return there.answer(me, op, fail(errc::stale, "region {} of the peer is gone", id));
              const size_t have = region->bytes().size();
              for (const piece& p : pieces) {
                if (p.length > have || p.remote_offset > have - p.length)
                  return there.answer(me, op,
                                      fail(errc::invalid_argument, "a descriptor of region {} lies about it", id));
                std::byte* theirs = region->bytes().data() + p.remote_offset;
                std::byte* ours = local->bytes().data() + p.local_offset;
                std::memcpy(in ? ours : theirs, in ? theirs : ours, p.length);
                (in ? count_.bytes_in : count_.bytes_out) += p.length;
                if (in) there.count_.served_bytes += p.length;
              }
              there.answer(me, op, {}, in ? total : 0);
            });
    return {};
  }

  void cancel_all() {
    for (auto& [op, o] : std::exchange(operations_, {}))
      if (o.done) o.done(fail(errc::cancelled, "the transport was stopped"));
  }

  network& network_;
  const options options_;
  const uint64_t identity_;
  std::string address_;
  std::map<peer_id, uint64_t> peers_;
  std::map<uint64_t, peer_id> ids_;
  std::map<uint64_t, uint64_t> connected_;  // newest connection with each peer
  std::map<uint64_t, running> operations_;
  std::map<uint64_t, std::weak_ptr<memory_region>> regions_;
  std::map<channel_id, message_handler> handlers_;
  peer_lost_handler lost_;
  counters count_;
  uint64_t next_region_ = 1, next_operation_ = 1;
  uint32_t next_peer_ = 1;
  bool dead_ = false;
};

result<std::unique_ptr<transport>> network::make(const options& o, endpoint_owner owner) {
  if (auto ok = check_options(o); !ok) return fail(ok.error());
  auto t = std::make_unique<loopback_transport>(*this, o);
  seats_[t->identity()] = {t.get(), false, {}, owner};
  return t;
}

// The connection is over for both. The side that found out learns now, the other when it runs.
void network::end(uint64_t a, uint64_t b, const std::string& why) {
  link& l = links_[key(a, b)];
  if (l.number == 0) return;
  l.number = 0;
  if (!is_dead(b)) post({b, 0, 0, 0, [a, why](loopback_transport& t) { t.lost(a, why); }}, a);
  if (!is_dead(a)) seats_[a].transport->lost(b, why);
}

void network::died(uint64_t identity) {
  auto& s = seats_[identity];
  if (!s.transport) return;
  s.transport = nullptr;
  for (auto& [pair, l] : links_) {
    if (l.number == 0 || (pair.first != identity && pair.second != identity)) continue;
    l.number = 0;
    const uint64_t other = pair.first == identity ? pair.second : pair.first;
    post({other, 0, 0, 0, [identity](loopback_transport& t) { t.lost(identity, "the peer's process has ended"); }},
         identity);
  }
}

void network::kill(const std::string& address) {
  for (auto& [identity, s] : seats_)
    if (s.transport && s.transport->address() == address) {
      loopback_transport* const t = s.transport;
      died(identity);
      t->silence();
      return;
    }
}

void network::stall(const std::string& address, bool stalled) {
  for (auto& [identity, s] : seats_)
    if (s.transport && s.transport->address() == address) stall_seat(s, stalled);
}

void network::kill_all(endpoint_owner owner, bool silent) {
  for (auto& [identity, s] : seats_) {
    if (!s.transport || s.owner != owner) continue;
    loopback_transport* const t = s.transport;
    if (silent)
      s.transport = nullptr;
    else
      died(identity);
    t->silence();
  }
}

void network::stall_all(endpoint_owner owner, bool stalled) {
  for (auto& [identity, s] : seats_)
    if (s.transport && s.owner == owner) stall_seat(s, stalled);
}

void network::sever(endpoint_owner a, endpoint_owner b, const std::string& why) {
  for (auto& [pair, l] : links_) {
    const auto x = seats_[pair.first].owner, y = seats_[pair.second].owner;
    if (l.number == 0 || !((x == a && y == b) || (x == b && y == a))) continue;
    l.number = 0;
    for (const auto& [me, other] : {std::pair{pair.first, pair.second}, std::pair{pair.second, pair.first}})
      if (!is_dead(me)) seats_[me].transport->lost(other, why);
  }
}

// A connection whose other side has stood still for the deadline, seen from a side that has not.
bool network::expire() {
  for (auto& [pair, l] : links_) {
    if (l.number == 0) continue;
    for (const auto& [me, other] : {std::pair{pair.first, pair.second}, std::pair{pair.second, pair.first}}) {
      const seat& mine = seats_[me];
      const seat& theirs = seats_[other];
      if (!mine.transport || mine.stalled || !theirs.stalled) continue;
      if (clock_.now() - std::max(theirs.since, l.since) < mine.transport->limits().deadline) continue;
      end(me, other, "no sign of life from the peer within the deadline");
      return true;
    }
  }
  return false;
}

bool network::step() {
  if (expire()) return true;
  for (auto e = events_.begin(); e != events_.end(); ++e) {
    const seat& s = seats_[e->at];
    if (s.transport && s.stalled) continue;
    event now = std::move(*e);
    events_.erase(e);
    happen(std::move(now));
    return true;
  }
  return false;
}

void network::happen(event now) {
  if (now.connection != 0 && is_dead(now.at)) {
    // The process at the other end was gone before the connection was made.
    return end(now.a == now.at ? now.b : now.a, now.at, "the peer's process has ended");
  }
  const seat& s = seats_[now.at];
  if (!s.transport) return;
  if (now.connection != 0 && links_[key(now.a, now.b)].number != now.connection)
    s.transport->drop_stale();
  else
    now.run(*s.transport);
}

}  // namespace

std::unique_ptr<loopback_network> make_loopback_network(const clock_source& clock, uint64_t seed, pacer* paced) {
  return std::make_unique<network>(clock, seed, paced);
}

}  // namespace troupe::transport
