// The part of a rank that moves window snapshots: places of the engine's snapshot memory, from a tier before a prompt
// starts, to a tier behind a step. Nothing here is waited for: what does not come in time is replayed or computed, what
// finds no place is not kept.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/serving/rank.hpp"

namespace troupe::actors {

/// Owned by a rank actor and used from its handlers only; ends with it. A place belongs to whoever took it: a plan
/// (until its result), a read (until it is used or let go, and nothing can write there any more), a put.
class rank_snapshots {
 public:
  /// `read`: the read of this number has its snapshot, or will not have it. Called once unless it is dropped before,
  /// never inside `begin`.
  using read_over = std::function<void(uint64_t number, bool here)>;
  rank_snapshots(rank_actor::pointer self, const rank_options& options, read_over read)
      : self_(self), options_(options), read_(std::move(read)) {}

  /// Once the engine is there.
  void configure(uint32_t places, uint64_t bytes);

  // -- plans ------------------------------------------------------------------------------------------------------

  /// Names the places of what the steps of the plan shall take; what finds none is left out. They are the plan's.
  void prepare(kernels::step_plan& plan, std::vector<uint32_t>& places);
  /// What was taken stays for snapshot_write and is the plan's no longer.
  void taken(const kernels::step_result& r, std::vector<uint32_t>& places);
  void free(uint32_t place);
  void free(const std::vector<uint32_t>& places);
  void used() { ++counts_.used; }

  // -- messages ---------------------------------------------------------------------------------------------------

  void write(const snapshot_write& m);
  /// False: there is no place for it now, or no way to it.
  bool begin(uint64_t number, const snapshot_key& key);
  /// Nobody waits for it any more; `late`: because it took too long.
  void drop(uint64_t number, bool late = false);
  /// The place of one that is here is the caller's from now on.
  std::optional<uint32_t> take(uint64_t number);
  void finished(const snapshot_event& m);

  snapshot_counts counts() const;

 private:
  struct reading {
    uint32_t place = 0;
    bool wanted = true, here = false;
    snapshot_source source;
  };
  std::optional<uint32_t> take_place(uint32_t but);
  void ended(std::map<uint64_t, reading>::iterator it, const status& outcome);

  rank_actor::pointer self_;
  const rank_options& options_;
  const read_over read_;
  uint64_t bytes_ = 0;
  std::vector<bool> in_use_;  // by place
  uint32_t free_ = 0;
  std::map<uint64_t, reading> reads_;  // bounded by the places; so the next
  std::set<uint32_t> writes_;          // places
  snapshot_counts counts_;
};

}  // namespace troupe::actors
