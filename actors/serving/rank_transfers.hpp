// The part of a rank that talks to other ranks about sequences that are handed over. The books are in transfer_book.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/serving/rank.hpp"
#include "actors/serving/transfer_book.hpp"

namespace troupe::actors {

/// Kind of its timer among those of the rank.
inline constexpr uint8_t rank_transfers_timer = 3;

/// Owned by a rank actor and used from its handlers only; ends with it.
class rank_transfers {
 public:
  /// `tell_scheduler` sends a message of this rank to its scheduler.
  struct ways {
    std::function<void(fetch_done)> done;
    std::function<void(pool_update)> pool;
  };
  rank_transfers(rank_actor::pointer self, peer_links& links, const rank_options& options, ways to_scheduler);

  /// Once the engine is there.
  void configure(kernels::page_pool& pool, uint32_t places);

  // -- plans ------------------------------------------------------------------------------------------------------

  /// Names places for what the plan exports, and pages and places for what it imports, or says why not; then nothing
  /// has changed but that its imports are dropped. `places` are in use until `free_places`.
  result<void> prepare(const std::vector<uint64_t>& imports, kernels::step_plan& plan, std::vector<uint32_t>& places);
  void free_places(const std::vector<uint32_t>& places);
  /// What a plan that is rejected as a whole would have imported is let go.
  void discard(const std::vector<uint64_t>& imports);
  /// Keeps what a step has exported for whoever asks; `pages` are the slot's. The place is not the plan's any more.
  handoff_ticket offer(const std::vector<kernels::page_id>& pages, const kernels::sequence_export& what,
                       uint32_t place);

  // -- messages ---------------------------------------------------------------------------------------------------

  transfer_grant open(const transfer_open& m);
  ack close(const transfer_close& m);
  void start(const fetch_start& m);
  void drop(const fetch_drop& m);
  void fetched(const engine_fetched& m);
  void ticked(const tick& t);

  /// Tells the scheduler when fewer or more pages are held than it knows.
  void freed();
  /// Pages held by transfers and write-back alone, for a message to the scheduler.
  uint32_t tell_held() { return held_ = pool_ ? pool_->held() : 0; }
  uint32_t wanted_pages() const { return book_ ? book_->wanted_pages() : 0; }
  /// `others`: pages that somebody else holds as transfers.
  transfer_counts counts(uint32_t others = 0) const { return book_ ? book_->counts(others) : transfer_counts{}; }

 private:
  void ask_source(uint64_t number);
  void granted(uint64_t number, const transfer_grant& g);
  void fail_fetch(uint64_t number, const error& why);
  void close_at_source(const handoff_ticket& t, errc outcome);
  void with_source(const actor_key& key, std::function<void(rank_actor)> ok, std::function<void(const error&)> bad);
  uint64_t puller();
  void watch(const any_handle& peer);
  void arm();

  rank_actor::pointer self_;
  peer_links& links_;
  const rank_options& options_;
  const ways to_scheduler_;
  kernels::page_pool* pool_ = nullptr;
  std::unique_ptr<transfer_book> book_;
  std::map<actor_key, rank_actor> sources_;  // bounded by the ranks of the cluster; erased when they end
  std::map<any_handle, uint64_t> pullers_;   // the same
  uint64_t next_puller_ = 1;
  uint32_t held_ = 0;  // as the scheduler knows it
  timer timer_{rank_transfers_timer};
};

}  // namespace troupe::actors
