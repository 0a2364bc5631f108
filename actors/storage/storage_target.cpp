#include "actors/storage/storage_target.hpp"

#include <map>
#include <set>
#include <utility>

#include "actors/protocol/messages.hpp"
#include "actors/storage/actor_executor.hpp"
#include "actors/storage/staging.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum target_timer : uint8_t { target_tick = 1, target_drain_timer = 2, target_hold_timer = 3 };

// Lives as long as work on the pool does.
struct target_body {
  target_body(caf::local_actor* self, const storage_target_options& o, transport::region_ptr region)
      : keep(o.keep),
        home(std::make_shared<actor_executor>(self, target_tick)),
        work(*o.blocking),
        room(std::move(region), o.waiting_max),
        target(o.id, *o.store, work, *home) {}
  std::shared_ptr<void> keep;            // first: goes last
  std::shared_ptr<actor_executor> home;  // completions of the transport hold nothing else
  kept_worker work;
  staging room;
  kv::local_target target;
};

// A put or a read under way.
struct transfer {
  promise<ack> put;
  promise<kv_read_reply> read;
  kv::put_shard shard;
  uint32_t crc = 0;
  staging_slot slot;
  caf::actor_addr client;
};

// A read whose bytes wait to be pulled.
struct staged {
  staging_slot slot;
  nanoseconds until{0};
  caf::actor_addr client;
};

class storage_target_state {
 public:
  using interface = storage_target_actor;
  static inline const char* name = "storage_target";
  explicit storage_target_state(interface::pointer self) : self_(self), links_(self) {}
  ~storage_target_state() {
    if (!body_) return;
    body_->home->close();
    body_->room.clear();
  }

  interface::behavior_type make_behavior(storage_target_options options, transport::region_ptr region) {
    options_ = std::move(options);
    body_ = std::make_shared<target_body>(self_, options_, std::move(region));
    body_->work.keep(body_);
    region_ = body_->room.region()->descriptor().encode();
    return {
        [this](const kv_put& m) { return put(m); },
        [this](const kv_read& m) { return read(m); },
        [this](const kv_read_done& m) { done(m.ticket); },
        [this](const kv_shard_remove& m) {
          if (auto s = fence_.check(m.from); !s.ok()) return refuse<ack>(s);
          return answer<ack, void>([&](auto back) { target().remove(m.shards, std::move(back)); });
        },
        [this](const kv_shard_list& m) {
          std::optional<kv::shard_key> after;
          if (!m.from_start) after = m.after;
          return answer<kv_shard_list_reply, std::vector<kv::shard_footer>>(
              [&](auto back) { target().list(after, m.limit, std::move(back)); },
              [](kv_shard_list_reply& r, auto& got) { r.shards = std::move(got); });
        },
        [this](const kv_shard_check& m) {
          return answer<ack, void>([&](auto back) { target().check(m.at, std::move(back)); });
        },
        [this](const kv_usage_query&) {
          return answer<kv_usage_reply, kv::shard_usage>([&](auto back) { target().usage(std::move(back)); },
                                                         [this](kv_usage_reply& r, auto& got) {
                                                           r = counts_;
                                                           r.usage = got;
                                                           r.staging_bytes = body_->room.size();
                                                           r.staging_used = body_->room.used();
                                                           r.waiting = static_cast<uint32_t>(body_->room.waiting());
                                                           r.trouble = write_trouble_.empty() ? read_trouble_ : write_trouble_;
                                                         });
        },
        [this](const cluster_view& v) { fence_.follow(v); },
        [this](const drain_request& m) { return drain(m); },
        [this](const tick& t) {
          if (body_->home->run(t)) return;
          if (drain_.fired(t)) drained();
          if (hold_.fired(t)) expire();
        },
    };
  }

 private:
  kv::target& target() { return body_->target; }

  template <class Answer>
  promise<Answer> refuse(status s) {
    auto p = self_->template make_response_promise<promise<Answer>>();
    Answer a{};
    a.outcome = std::move(s);
    p.deliver(std::move(a));
    return p;
  }

  status admit() const {
    if (draining_) return {errc::unavailable, fmt::format("target {} is leaving", options_.id.value)};
    if (open_ >= options_.max_open)
      return {errc::exhausted,
              fmt::format("target {}: {} requests are under way, which is the limit", options_.id.value, open_)};
    return {};
  }

  template <class Answer, class Got, class Call, class Fill>
  promise<Answer> answer(Call call, Fill fill) {
    if (auto full = admit(); !full.ok()) return refuse<Answer>(std::move(full));
    auto p = self_->template make_response_promise<promise<Answer>>();
    ++open_;
    call(kv::reply<Got>([this, p, fill](result<Got> r) mutable {
      Answer a{};
      if constexpr (!std::is_void_v<Got>) {
        if (r) fill(a, *r);
      }
      if (!r) a.outcome = to_status(r.error());
      p.deliver(std::move(a));
      closed();
    }));
    return p;
  }
  template <class Answer, class Got, class Call>
  promise<Answer> answer(Call call) {
    return answer<Answer, Got>(std::move(call), [](auto&&...) {});
  }

  void closed() {
    if (--open_ == 0 && draining_) drained();
  }

  // -- put ------------------------------------------------------------------------------------------------------

  promise<ack> put(const kv_put& m) {
    if (auto s = fence_.check(m.from); !s.ok()) return refused<ack>(std::move(s));
    if (auto full = admit(); !full.ok()) return refused<ack>(std::move(full));
    if (auto bad = kv::validate(m.extent); !bad) return refused<ack>(to_status(bad.error()));
    if (m.shard >= m.extent.shards() || m.bytes != kv::shard_bytes(m.extent))
      return refused<ack>(
          {errc::invalid_argument, fmt::format("shard {} of {} bytes is none of the extent's {} of {}", m.shard,
                                               m.bytes, m.extent.shards(), kv::shard_bytes(m.extent))});
    auto region = transport::remote_region::decode(m.region);
    if (!region) return refused<ack>(to_status(region.error()));
    auto peer = reach(m.address);
    if (!peer) return refused<ack>(to_status(peer.error()));
    auto t = std::make_shared<transfer>();
    t->put = self_->make_response_promise<promise<ack>>();
    t->shard.info = std::make_shared<const kv::extent_info>(m.extent);
    t->shard.shard = m.shard;
    t->crc = m.crc;
    auto p = t->put;
    ++open_;
    // Room for the footer behind the payload, so that it is written in one piece without a copy.
    const bool taken = body_->room.take(
        kv::shard_buffer_bytes(m.bytes),
        [this, t, region = std::move(*region), peer = *peer, offset = m.offset, bytes = m.bytes](staging_slot slot) {
          t->slot = slot;
          pull(t, peer, region, offset, bytes);
        });
    if (!taken) end_put(*t, {errc::exhausted, no_room(m.bytes)});
    return p;
  }

  void pull(const std::shared_ptr<transfer>& t, transport::peer_id peer, const transport::remote_region& region,
            uint64_t offset, uint64_t bytes) {
    // Calls back on the transport's thread: only the executor is touched there.
    auto done = [this, home = body_->home, t, bytes](result<void> r) {
      home->post([this, t, bytes, r = std::move(r)] { pulled(t, bytes, r); });
    };
    auto begun = options_.plane->get(peer, body_->room.region(), t->slot.offset, region, offset, bytes, done);
    if (!begun) pulled(t, bytes, begun);
  }

  void pulled(const std::shared_ptr<transfer>& t, uint64_t bytes, const result<void>& r) {
    if (!r) return end_put(*t, to_status(r.error()));
    counts_.bytes_in += bytes;
    const auto room = body_->room.room(t->slot);
    t->shard.payload = room.first(bytes);
    t->shard.room = room;
    const bool taken = body_->work.submit([this, home = body_->home, t, store = options_.store, id = options_.id] {
      status s;
      if (kv::crc32c(t->shard.payload) != t->crc) {
        s = {errc::corrupt,
             fmt::format("target {}: what was pulled does not hold the checksum that was promised", id.value)};
      } else {
        kv::shard_put one;
        one.extent = t->shard.info.get();
        one.shard = t->shard.shard;
        one.payload = t->shard.payload;
        one.room = t->shard.room;
        if (auto stored = store->put(std::span(&one, 1)); !stored) s = to_status(stored.error());
      }
      home->post([this, t, s = std::move(s)] { end_put(*t, s); });
    });
    if (!taken) end_put(*t, {errc::exhausted, fmt::format("target {}: the I/O queue is full", options_.id.value)});
  }

  void end_put(transfer& t, status s) {
    if (t.slot.bytes > 0) body_->room.give_back(t.slot);
    if (s.ok())
      ++counts_.puts;
    else
      ++counts_.refused;
    note(write_trouble_, s, "written");
    t.put.deliver(ack{std::move(s)});
    closed();
  }

  // -- read -----------------------------------------------------------------------------------------------------

  promise<kv_read_reply> read(const kv_read& m) {
    if (auto full = admit(); !full.ok()) return refused<kv_read_reply>(std::move(full));
    if (m.bytes == 0 || m.bytes > body_->room.size())
      return refused<kv_read_reply>(
          {errc::invalid_argument, fmt::format("target {}: a read of {} bytes; 1 to {} are possible", options_.id.value,
                                               m.bytes, body_->room.size())});
    auto t = std::make_shared<transfer>();
    t->client = caf::actor_cast<caf::actor_addr>(self_->current_sender());
    watch(self_->current_sender());
    t->read = self_->make_response_promise<promise<kv_read_reply>>();  // takes the sender away
    auto p = t->read;
    ++open_;
    const bool taken = body_->room.take(m.bytes, [this, t, at = m.at, offset = m.offset](staging_slot slot) {
      t->slot = slot;
      const bool submitted = body_->work.submit(
          [this, home = body_->home, t, store = options_.store, at, offset, into = body_->room.bytes(slot)] {
            auto got = store->read(at.extent, at.shard, offset, into);
            const uint32_t crc = got ? kv::crc32c(into) : 0;
            home->post([this, t, got = std::move(got), crc] { end_read(*t, got, crc); });
          });
      if (!submitted) end_read(*t, fail(errc::exhausted, "target {}: the I/O queue is full", options_.id.value), 0);
    });
    if (!taken) end_read(*t, fail(errc::exhausted, "{}", no_room(m.bytes)), 0);
    return p;
  }

  void end_read(transfer& t, const result<void>& got, uint32_t crc) {
    kv_read_reply r;
    if (got) {
      ++counts_.reads;
      counts_.bytes_out += t.slot.bytes;
      r.region = region_;
      r.offset = t.slot.offset;
      r.crc = crc;
      r.ticket = next_ticket_++;
      staged_[r.ticket] = {t.slot, now(self_) + options_.staging_hold, t.client};
      if (!hold_.armed()) hold_.arm(self_, options_.staging_hold);
    } else {
      ++counts_.refused;
      if (t.slot.bytes > 0) body_->room.give_back(t.slot);
      r.outcome = to_status(got.error());
    }
    note(read_trouble_, r.outcome, "read");
    t.read.deliver(std::move(r));
    closed();
  }

  // Failures of the disk itself, for the log and the report; of many in a row the first is logged.
  void note(std::string& trouble, const status& s, const char* what) {
    if (s.ok()) return trouble.clear();
    if (s.code != errc::io) return;
    if (trouble.empty()) log::warn("target {}: cannot be {}: {}", options_.id.value, what, s.text);
    trouble = s.text;
  }

  void done(uint64_t ticket) {
    auto it = staged_.find(ticket);
    if (it == staged_.end()) return;  // its time was over
    const auto slot = it->second.slot;
    staged_.erase(it);
    body_->room.give_back(slot);
  }

  // What was not pulled in time: its client has given up.
  void expire() {
    const auto t = now(self_);
    std::vector<uint64_t> over;
    for (const auto& [ticket, s] : staged_)
      if (s.until <= t) over.push_back(ticket);
    for (uint64_t ticket : over) {
      ++counts_.expired;
      done(ticket);
    }
    if (!staged_.empty()) hold_.arm(self_, staged_.begin()->second.until - t);
  }

  // -- peers ----------------------------------------------------------------------------------------------------

  template <class Answer>
  promise<Answer> refused(status s) {
    ++counts_.refused;
    return refuse<Answer>(std::move(s));
  }

  std::string no_room(uint64_t bytes) const {
    return fmt::format("target {}: no room to move {} bytes, and {} requests wait; send less at a time",
                       options_.id.value, bytes, body_->room.waiting());
  }

  // The client's place on the data plane; forgotten with the client.
  result<transport::peer_id> reach(const std::string& address) {
    const auto& who = self_->current_sender();
    watch(who);
    TROUPE_TRY(auto peer, options_.plane->add_peer(address));
    if (who) clients_[caf::actor_cast<caf::actor_addr>(who)].insert(peer);
    return peer;
  }

  void watch(const any_handle& client) {
    if (!client) return;
    const auto address = caf::actor_cast<caf::actor_addr>(client);
    if (clients_.contains(address)) return;
    clients_[address];
    links_.watch(client, [this, address](const error&) { gone(address); });
  }

  void gone(const caf::actor_addr& client) {
    std::vector<uint64_t> tickets;
    for (const auto& [ticket, s] : staged_)
      if (s.client == client) tickets.push_back(ticket);
    for (uint64_t ticket : tickets) done(ticket);
    auto it = clients_.find(client);
    if (it == clients_.end()) return;
    for (auto peer : it->second) options_.plane->remove_peer(peer);
    clients_.erase(it);
  }

  // -- leaving --------------------------------------------------------------------------------------------------

  promise<drain_reply> drain(const drain_request& m) {
    auto p = self_->make_response_promise<promise<drain_reply>>();
    drains_.push_back(p);
    draining_ = true;
    if (open_ == 0)
      drained();
    else
      drain_.arm(self_, std::chrono::milliseconds(m.deadline_ms));
    return p;
  }

  void drained() {
    for (auto& p : drains_) p.deliver(drain_reply{{open_ ? errc::timeout : errc{}, ""}, open_});
    drains_.clear();
    drain_.stop();
  }

  interface::pointer self_;
  peer_links links_;
  storage_target_options options_;
  std::shared_ptr<target_body> body_;
  std::string region_;  // of the staging room
  kv_fence fence_;
  std::map<uint64_t, staged> staged_;                                // by ticket, so by age too; bounded by the room
  std::map<caf::actor_addr, std::set<transport::peer_id>> clients_;  // alive ones
  uint64_t next_ticket_ = 1;
  uint32_t open_ = 0;  // at most max_open
  kv_usage_reply counts_;
  std::string write_trouble_, read_trouble_;
  bool draining_ = false;
  std::vector<promise<drain_reply>> drains_;
  timer drain_{target_drain_timer}, hold_{target_hold_timer};
};

}  // namespace

storage_target_actor spawn_storage_target(caf::local_actor* parent, storage_target_options options,
                                          transport::region_ptr region) {
  return spawn<storage_target_state>(parent, std::move(options), std::move(region));
}

}  // namespace troupe::actors
