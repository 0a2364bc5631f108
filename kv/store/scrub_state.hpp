// Inside of scrub: what its parts share.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kv/store/flow.hpp"
#include "kv/store/scrub.hpp"
#include "kv/store/walk.hpp"

namespace troupe::kv::detail {

/// An extent that lacks shards: where good ones are, and which are to be made.
struct damage {
  index_change record;
  std::vector<owner*> owners;                          // that hold the record
  std::vector<std::pair<target_id, uint32_t>> good;    // target, shard
  std::vector<uint32_t> lost;                          // shards
  std::vector<std::pair<target_id, uint32_t>> rotten;  // to be removed where their shard is made elsewhere
};

/// One run.
struct scrubbing {
  scrubbing(members w, scrub_options o, executor& h, const unix_clock& c)
      : who(std::move(w)), options(std::move(o)), home(h), wall(c), gate(options.window), group(h) {}
  members who;
  scrub_options options;
  executor& home;
  const unix_clock& wall;
  byte_gate gate;
  wait_group group;
  scrub_report out;
  std::vector<damage> damaged;
  std::shared_ptr<extent_walk> walk;
  nanoseconds due{0};    // when the bytes let in so far are within bytes_per_s
  bool restore = false;  // options.restore, or records were found damaged
  // Shards without a record whose blocks another extent has; removed at the end if nothing was found lost. Bounded:
  // what finds no room waits for the next run.
  std::vector<std::pair<target_id, shard_key>> duplicates;
  static constexpr size_t duplicates_max = 65'536;

  void note(std::string text) {
    if (out.notes.size() < 100) out.notes.push_back(std::move(text));
  }
  bool away(owner_id o) const { return std::find(who.away.begin(), who.away.end(), o) != who.away.end(); }
  bool stop() const { return options.stop && options.stop->load(); }
};

/// Looks at one extent that was met; counts, removes orphans, adds to `damaged`. Leaves the gate and the group.
flow inspect(std::shared_ptr<scrubbing> s, found_extent found, uint64_t gate_bytes);

/// Copies good shards that lie on targets which get no new ones to others: shard written -> index told -> old one
/// removed. `d` stays valid until `done`, and says then where they are.
flow relocate(std::shared_ptr<scrubbing> s, damage* d, std::function<void()> done);

/// Rebuilds what is in `damaged` and empties it.
flow repair_all(std::shared_ptr<scrubbing> s, std::function<void()> done);

/// Where the index says the shards are now, told to all owners that hold the record.
void tell_moved(const std::shared_ptr<scrubbing>& s, const std::vector<owner*>& owners, index_change record,
                std::function<void()> done);

}  // namespace troupe::kv::detail
