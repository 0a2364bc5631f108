// The part of a rank that moves cached blocks: reads them into pages before a prompt starts, writes them out behind it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/serving/rank.hpp"
#include "actors/serving/rank_snapshots.hpp"
#include "kernels/engine/page_pool.hpp"

namespace troupe::actors {

/// Kind of its timer among those of the rank.
inline constexpr uint8_t rank_prefix_timer = 4;

/// Owned by a rank actor and used from its handlers only; ends with it. A page is held, besides by its request: as a
/// transfer while a read may still write into it, as write-back while a put may still read it.
class rank_prefix {
 public:
  struct ways {
    std::function<void(prefix_done)> done;  // to the scheduler
    std::function<uint32_t()> held;         // pages held, told to the scheduler with the next message
    std::function<void()> freed;            // fewer pages may be held
  };
  /// `snapshots` outlives it, and tells it of reads by snapshot_over.
  rank_prefix(rank_actor::pointer self, const rank_options& options, rank_snapshots& snapshots, ways out);

  /// Once the engine is there.
  void configure(kernels::page_pool& pool, uint32_t page_bytes);

  void read(const prefix_read& m);
  void drop(const prefix_drop& m);
  /// `table`: pages of the slot, by block; empty when the slot is not open.
  void write(const prefix_write& m, std::span<const kernels::page_id> table);
  void finished(const prefix_event& m);
  void ticked(const tick& t);
  void snapshot_over(uint64_t number, bool here);

  /// A read that is here becomes part of a plan: its pages are the caller's from now on (owner request), and so is the
  /// place of its snapshot, if it has one. Nothing for a number that is not here.
  struct brought {
    std::vector<kernels::page_id> pages;
    std::optional<uint32_t> snapshot;
  };
  std::optional<brought> take(uint64_t number);

  /// Pages that reads hold as a request does.
  uint32_t wanted_pages() const;
  /// Pages that the store may still write into.
  uint32_t held_pages() const;
  uint32_t writing() const { return static_cast<uint32_t>(writes_.size()); }
  prefix_counts counts() const;

 private:
  struct reading {
    std::vector<kernels::page_id> pages;
    bool wanted = true, here = false;
    nanoseconds since{0}, backstop{0};
    bool awaits_snapshot = false, has_snapshot = false;
    uint32_t blocks = 0;
    nanoseconds snapshot_until{0};
  };
  std::vector<std::span<std::byte>> memory_of(const std::vector<kernels::page_id>& pages);
  void answer(uint64_t number, status outcome, uint32_t blocks, bool dropped, bool snapshot = false);
  void give_up(uint64_t number, reading& r);

  rank_actor::pointer self_;
  const rank_options& options_;
  rank_snapshots& snapshots_;
  const ways out_;
  kernels::page_pool* pool_ = nullptr;
  uint32_t page_bytes_ = 0;
  std::map<uint64_t, reading> reads_;  // bounded by the scheduler's slots, and late ones by pages
  std::map<uint64_t, std::vector<kernels::page_id>> writes_;  // bounded by options_.prefix.writes
  uint64_t next_write_ = 1;
  prefix_counts counts_;
  timer timer_{rank_prefix_timer};
};

}  // namespace troupe::actors
