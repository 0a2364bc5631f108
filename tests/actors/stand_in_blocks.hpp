// What the stand-in's pages hold, and a stand-in for the block store.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/serving/prefix_store.hpp"
#include "kernels/engine/engine.hpp"
#include "runtime/base/check.hpp"
#include "runtime/sim/agenda.hpp"

namespace troupe::actors {

/// Of each page of a sequence of `rows` tokens in place: a number that depends on all tokens up to the page's last.
inline std::vector<uint64_t> contents_of(const std::function<kernels::token_id(uint32_t)>& token, uint32_t rows,
                                         uint32_t window) {
  std::vector<uint64_t> out;
  uint64_t h = 14695981039346656037u;
  for (uint32_t p = 0; p < rows; ++p) {
    h = (h ^ static_cast<uint32_t>(token(p))) * 1099511628211u;
    if ((p + 1) % window == 0 || p + 1 == rows) out.push_back(h | 1);
  }
  return out;
}

/// A block store in virtual time whose behaviour a test chooses. It checks what it is given: blocks of one key have the
/// same bytes whenever and by whom they are written.
class stand_in_store final : public prefix_store {
 public:
  explicit stand_in_store(sim::agenda& a) : agenda_(a) {
    scheme.block_tokens = 16;
    scheme.fingerprint[0] = 7;
  }
  kv::hash_scheme scheme;
  nanoseconds match_time{std::chrono::microseconds(300)}, read_time{std::chrono::microseconds(500)},
      write_time{std::chrono::milliseconds(1)};
  bool obeys_deadlines = true;  // false: reads end, and write into memory, when they do
  bool away = false;
  std::function<result<void>()> read_fails, write_fails;        // asked at the end
  std::function<uint64_t(uint64_t)> holes;                      // blocks that a read of so many brings
  uint64_t matches = 0, reads = 0, writes = 0, late_reads = 0;  // asked for
  std::map<kv::block_hash, std::vector<std::byte>> blocks;

  // Window snapshots, of hosts' memory.
  std::map<kv::block_hash, uint64_t> snapshots;
  std::map<kv::block_hash, uint64_t> taken_by;           // request of each
  std::function<uint64_t(const snapshot_source&)> peek;  // what lies there; set by whoever knows the hosts
  nanoseconds snapshot_time{std::chrono::microseconds(400)};
  std::function<result<void>()> open_fails, put_fails;
  bool rots = false;  // what is read differs from what was written
  uint64_t snapshot_puts = 0, snapshot_opens = 0, snapshot_closes = 0;

  void put_snapshot(snapshot_offer o, std::function<void(result<void>)> done) override {
    ++snapshot_puts;
    agenda_.after(snapshot_time, [=, this] {
      if (away) return done(fail(errc::unavailable, "away"));
      if (auto r = put_fails ? put_fails() : result<void>{}; !r) return done(fail(r.error()));
      const uint64_t bytes = peek(o.source);
      if (static_cast<uint32_t>(bytes) != o.source.crc) return done(fail(errc::corrupt, "not what was promised"));
      auto [it, added] = snapshots.emplace(o.where.at, bytes);
      TROUPE_CHECK(it->second == bytes, "a snapshot was written with other bytes before");
      if (added) taken_by[o.where.at] = o.request;
      if (const auto old = taken_by.find(o.older.at); old != taken_by.end() && old->second == o.request) {
        snapshots.erase(old->first);
        taken_by.erase(old);
      }
      done({});
    });
  }

  void open_snapshot(snapshot_key key, std::function<void(result<snapshot_source>)> done) override {
    ++snapshot_opens;
    agenda_.after(snapshot_time, [=, this] {
      if (away) return done(fail(errc::unavailable, "away"));
      if (auto r = open_fails ? open_fails() : result<void>{}; !r) return done(fail(r.error()));
      const auto it = snapshots.find(key.at);
      if (it == snapshots.end()) return done(fail(errc::not_found, "gone"));
      done(snapshot_source{"store", "", it->second ^ (rots ? 1 : 0), 8, static_cast<uint32_t>(it->second), 0, 1});
    });
  }
  void close_snapshot(uint32_t, uint64_t) override { ++snapshot_closes; }

  void match(std::vector<kv::block_hash> chain, std::function<void(result<prefix_match>)> done) override {
    ++matches;
    agenda_.after(match_time, [this, chain, done] {
      if (away) return done(fail(errc::unavailable, "away"));
      uint64_t n = 0;
      while (n < chain.size() && blocks.contains(chain[n])) ++n;
      prefix_match m{n, {}};
      for (uint64_t b = n; b-- > 0 && m.snapshots.size() < 3;)
        if (snapshots.contains(chain[b])) m.snapshots.push_back(static_cast<uint32_t>(b + 1));
      done(m);
    });
  }

  void read(std::vector<kv::block_hash> chain, std::vector<std::span<std::byte>> into, kv::traffic_class,
            nanoseconds deadline, std::shared_ptr<const void> keep,
            std::function<void(result<uint64_t>)> done) override {
    ++reads;
    const bool late = read_time > deadline;
    late_reads += late;
    agenda_.after(late && obeys_deadlines ? deadline : read_time, [=, this] {
      (void)keep;
      if (late && obeys_deadlines) return done(fail(errc::timeout, "late"));
      if (away) return done(fail(errc::unavailable, "away"));
      uint64_t n = 0;
      while (n < into.size() && blocks.contains(chain[n])) ++n;
      if (holes) n = std::min(n, holes(n));
      for (uint64_t i = 0; i < n; ++i) std::memcpy(into[i].data(), blocks[chain[i]].data(), into[i].size());
      if (auto r = read_fails ? read_fails() : result<void>{}; !r) {
        for (auto s : into) std::memset(s.data(), 0xee, s.size());  // nothing of use
        return done(fail(r.error()));
      }
      if (n == 0) return done(fail(errc::not_found, "no block is there"));
      done(n);
    });
  }

  void write(std::vector<kv::block_hash> chain, uint64_t first, std::vector<std::span<const std::byte>> from,
             kv::traffic_class, std::shared_ptr<const void> keep, std::function<void(result<uint64_t>)> done) override {
    ++writes;
    agenda_.after(write_time, [=, this] {
      (void)keep;
      if (away) return done(fail(errc::unavailable, "away"));
      if (auto r = write_fails ? write_fails() : result<void>{}; !r) return done(fail(r.error()));
      uint64_t fresh = 0;
      for (size_t i = 0; i < from.size(); ++i) {
        std::vector<std::byte> bytes(from[i].begin(), from[i].end());
        auto [it, added] = blocks.emplace(chain.at(first + i), bytes);
        fresh += added;
        TROUPE_CHECK(it->second == bytes, "block {} was written with other bytes before", first + i);
      }
      done(fresh);
    });
  }

 private:
  sim::agenda& agenda_;
};

}  // namespace troupe::actors
