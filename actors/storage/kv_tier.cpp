#include "actors/storage/kv_tier.hpp"

#include <map>
#include <set>
#include <utility>

#include "actors/protocol/messages.hpp"

namespace troupe::actors {

std::vector<size_t> tier_entries::newest(std::span<const kv::block_hash> chain, size_t limit) const {
  std::lock_guard lock(mutex_);
  return tier_.newest(chain, limit, time());
}

namespace {

enum tier_timer : uint8_t { sweep_timer = 1, tier_hold_timer = 2 };
constexpr size_t chain_max = 65'536;

// A snapshot on its way in.
struct arrival {
  promise<ack> answer;
  uint64_t request = 0;
  kv::block_hash at;
  uint32_t crc = 0;
  std::span<std::byte> bytes;
};

// An entry that somebody reads.
struct reading {
  uint64_t pin = 0;
  nanoseconds until{0};
  caf::actor_addr reader;
};

class kv_tier_state {
 public:
  using interface = kv_tier_actor;
  static inline const char* name = "kv_tier";
  explicit kv_tier_state(interface::pointer self) : self_(self), links_(self) {}

  interface::behavior_type make_behavior(kv_tier_options options, std::shared_ptr<tier_entries> entries) {
    options_ = std::move(options);
    entries_ = std::move(entries);
    region_ = entries_->region()->descriptor().encode();
    sweep_.arm(self_, options_.sweep);
    return {
        [this](const tier_put& m) { return put(m); },
        [this](const tier_find& m) {
          tier_found out;
          if (m.chain.size() > chain_max) {
            out.outcome = {errc::invalid_argument, fmt::format("a chain of {} hashes", m.chain.size())};
            return out;
          }
          const auto found = entries_->newest(m.chain, m.limit);
          out.positions.assign(found.begin(), found.end());
          return out;
        },
        [this](const tier_open& m) { return open(m); },
        [this](const tier_close& m) { close(m.ticket); },
        [this](const tier_forget& m) {
          entries_->with([&](kv::snapshot_tier& t, nanoseconds) { t.forget(m.request); });
        },
        [this](const tier_drop& m) {
          entries_->with([&](kv::snapshot_tier& t, nanoseconds) { t.release(m.request, m.at); });
        },
        [this](const tier_query&) { return report(); },
        [this](const tier_pulled& m) { pulled(m); },
        [this](const drain_request&) {
          draining_ = true;
          return drain_reply{{}, 0};  // nothing here is worth waiting for
        },
        [this](const tick& t) {
          if (sweep_.fired(t)) {
            entries_->with([](kv::snapshot_tier& tier, nanoseconds now) { tier.sweep(now); });
            sweep_.arm(self_, options_.sweep);
          }
          if (hold_.fired(t)) expire();
        },
    };
  }

 private:
  promise<ack> put(const tier_put& m) {
    const any_handle sender = self_->current_sender();  // the promise takes it away
    arrival a;
    a.answer = self_->make_response_promise<promise<ack>>();
    auto p = a.answer;
    const auto refuse = [&](status why) {
      ++refused_;
      p.deliver(ack{std::move(why)});
      return p;
    };
    if (draining_) return refuse({errc::unavailable, "snapshot tier: it is leaving"});
    if (m.bytes != options_.tier.entry_bytes)
      return refuse({errc::invalid_argument, fmt::format("snapshot tier: an entry of {} bytes where {} are set",
                                                         m.bytes, options_.tier.entry_bytes)});
    if (entries_->with([&](kv::snapshot_tier& t, nanoseconds now) { return t.renew(m.request, m.at, now); })) {
      p.deliver(ack{});  // another request has left the same bytes
      return p;
    }
    auto remote = transport::remote_region::decode(m.region);
    if (!remote) return refuse(to_status(remote.error()));
    watch(sender);
    auto peer = options_.plane->add_peer(m.address);
    if (!peer) return refuse(to_status(peer.error()));
    if (sender) clients_[caf::actor_cast<caf::actor_addr>(sender)].insert(*peer);
    auto room = entries_->with([](kv::snapshot_tier& t, nanoseconds now) { return t.begin(now); });
    if (!room) return refuse(to_status(room.error()));
    a.request = m.request;
    a.at = m.at;
    a.crc = m.crc;
    a.bytes = room->bytes;
    arriving_.emplace(room->id, std::move(a));
    const auto offset = static_cast<uint64_t>(room->bytes.data() - entries_->region()->bytes().data());
    // Calls back on the transport's thread; the handle keeps the actor until then.
    auto done = [me = caf::actor_cast<interface>(any_handle{self_->ctrl()}), id = room->id](result<void> r) {
      post(me, tier_pulled{id, r ? status{} : to_status(r.error())});
    };
    const auto begun = options_.plane->get(*peer, entries_->region(), offset, *remote, m.offset, m.bytes, done);
    if (!begun) pulled({room->id, to_status(begun.error())});
    return p;
  }

  void pulled(const tier_pulled& m) {
    const auto it = arriving_.find(m.room);
    if (it == arriving_.end()) return;
    arrival a = std::move(it->second);
    arriving_.erase(it);
    status outcome = m.outcome;
    if (outcome.ok() && kv::crc32c(a.bytes) != a.crc)
      outcome = {errc::corrupt, "snapshot tier: what was pulled does not hold the checksum that was promised"};
    entries_->with([&](kv::snapshot_tier& t, nanoseconds now) {
      if (!outcome.ok()) return t.abandon(m.room);
      if (auto kept = t.finish(m.room, a.request, a.at, a.crc, now); !kept) outcome = to_status(kept.error());
    });
    if (!outcome.ok()) ++refused_;
    a.answer.deliver(ack{std::move(outcome)});
  }

  tier_opened open(const tier_open& m) {
    tier_opened out;
    auto pin = entries_->with([&](kv::snapshot_tier& t, nanoseconds now) { return t.pin(m.at, now); });
    if (!pin) {
      out.outcome = to_status(pin.error());
      return out;
    }
    watch(self_->current_sender());
    out.region = region_;
    out.offset = static_cast<uint64_t>(pin->bytes.data() - entries_->region()->bytes().data());
    out.bytes = pin->bytes.size();
    out.crc = pin->crc;
    out.ticket = next_ticket_++;
    readings_[out.ticket] = {pin->id, now(self_) + options_.hold,
                             caf::actor_cast<caf::actor_addr>(self_->current_sender())};
    if (!hold_.armed()) hold_.arm(self_, options_.hold);
    return out;
  }

  void close(uint64_t ticket) {
    const auto it = readings_.find(ticket);
    if (it == readings_.end()) return;  // its time was over
    entries_->with([&](kv::snapshot_tier& t, nanoseconds) { (void)t.unpin(it->second.pin); });
    readings_.erase(it);
  }

  // Readers that have given up; the tickets are in the order of their ends.
  void expire() {
    const auto t = now(self_);
    while (!readings_.empty() && readings_.begin()->second.until <= t) close(readings_.begin()->first);
    if (!readings_.empty()) hold_.arm(self_, readings_.begin()->second.until - t);
  }

  tier_report report() {
    const auto s = entries_->with([](kv::snapshot_tier& t, nanoseconds) { return t.stats(); });
    tier_report r;
    r.entry_bytes = options_.tier.entry_bytes;
    r.memory_bytes = entries_->region()->bytes().size();
    r.entries = s.entries;
    r.capacity = s.capacity;
    r.reading = s.pinned;
    r.writing = s.writing;
    r.puts = s.puts;
    r.hits = s.hits;
    r.misses = s.misses;
    r.expired = s.expired;
    r.evicted = s.evicted;
    r.superseded = s.superseded;
    r.refused = refused_;
    return r;
  }

  void watch(const any_handle& client) {
    if (!client) return;
    const auto address = caf::actor_cast<caf::actor_addr>(client);
    if (!clients_.emplace(address, std::set<transport::peer_id>{}).second) return;
    links_.watch(client, [this, address](const error&) { gone(address); });
  }

  void gone(const caf::actor_addr& client) {
    std::vector<uint64_t> tickets;
    for (const auto& [ticket, r] : readings_)
      if (r.reader == client) tickets.push_back(ticket);
    for (const uint64_t t : tickets) close(t);
    const auto it = clients_.find(client);
    if (it == clients_.end()) return;
    for (const auto peer : it->second) options_.plane->remove_peer(peer);  // its pulls end, and their room comes back
    clients_.erase(it);
  }

  interface::pointer self_;
  peer_links links_;
  kv_tier_options options_;
  std::shared_ptr<tier_entries> entries_;
  std::string region_;
  std::map<uint64_t, arrival> arriving_;                             // by room; bounded by the tier
  std::map<uint64_t, reading> readings_;                             // by ticket, so by end too; bounded by max_pins
  std::map<caf::actor_addr, std::set<transport::peer_id>> clients_;  // alive ones
  uint64_t next_ticket_ = 1, refused_ = 0;
  bool draining_ = false;
  timer sweep_{sweep_timer}, hold_{tier_hold_timer};
};

}  // namespace

kv_tier spawn_kv_tier(caf::local_actor* parent, kv_tier_options options, transport::region_ptr region) {
  auto entries = std::make_shared<tier_entries>(options.tier, std::move(region), parent->clock());
  return {spawn<kv_tier_state>(parent, std::move(options), entries), entries};
}

}  // namespace troupe::actors
