// The books of a rank about sequences that go to or come from other ranks: who holds which pages and which place of the
// handoff memory, and until when. Plain state without CAF; the rank actor acts on it.
//
//   out:  offered --open--> sending --close, expiry, end of the puller--> gone
//   in:   asking --grant--> pulling --arrived--> here --taken by a plan--> gone
//           any of them --drop--> gone, but pulling stays until the transport has let go
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "actors/protocol/handoff.hpp"
#include "kernels/engine/page_pool.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::actors {

/// One rank's transfers, in and out. The pool outlives it. Bounded by the places.
class transfer_book {
 public:
  static constexpr nanoseconds offer_patience = std::chrono::seconds(5);  // docs/decisions.md, detail 21
  static constexpr nanoseconds send_patience = std::chrono::seconds(20);  // a backstop: pullers close, or end

  transfer_book(kernels::page_pool& pool, uint32_t places) : pool_(pool), used_(places, false) {}

  /// The lowest free place of the handoff memory, or none.
  std::optional<uint32_t> take_place();
  void free_place(uint32_t place);

  // -- out --------------------------------------------------------------------------------------------------------

  /// The state in `place` and the pages are kept for whoever asks; returns the transfer's number.
  uint64_t offer(std::vector<kernels::page_id> pages, const kernels::sequence_export& what, uint32_t place,
                 nanoseconds now);
  /// Begins to send to `puller` (a number of the caller's). The grant lacks the memory only the host knows. stale for a
  /// transfer that is no more; the same puller may ask again.
  transfer_grant open(uint64_t transfer, uint64_t puller, nanoseconds now);
  /// Lets go. False for a transfer that is no more.
  bool close(uint64_t transfer, errc outcome);
  /// The puller has ended: everything that it was reading is let go.
  void puller_lost(uint64_t puller);
  /// Lets go of what nobody has asked for in time.
  void expire(nanoseconds now);
  bool has_offers() const { return !out_.empty(); }

  // -- in ---------------------------------------------------------------------------------------------------------

  struct incoming {
    enum class stage : uint8_t { asking, pulling, here };
    stage at = stage::asking;
    bool wanted = true;
    handoff_ticket ticket;
    std::vector<kernels::page_id> pages;
    uint32_t place = 0;
    nanoseconds since{0};
  };

  /// Takes pages and a place for what the ticket names; exhausted when there are none, and then nothing changes.
  result<void> begin(uint64_t number, const handoff_ticket& ticket, uint32_t pages, nanoseconds now);
  /// Null for a number that is no more.
  incoming* find(uint64_t number);
  /// The transport may write into the pages from now on, until `arrived`.
  void pulling(uint64_t number);
  /// The transport has let go. Returns false when nobody wants the sequence any more or it did not come whole: it is
  /// gone then.
  bool arrived(uint64_t number, bool whole, uint64_t bytes, nanoseconds now);
  /// Nobody wants it. While the transport writes, its pages stay held. An unknown number is ignored.
  void drop(uint64_t number, bool failed);
  /// Numbers of wanted fetches that began before `since` and are not here.
  std::vector<uint64_t> slow(nanoseconds since) const;
  /// A sequence that is here becomes part of a plan: its pages are the caller's from now on (owner request), and so is
  /// its place, to be freed when the engine has read it. Nothing for a number that is not here.
  std::optional<kernels::sequence_import> take(uint64_t number);
  bool has_fetches() const { return !in_.empty(); }

  /// Pages that fetches hold as a request does.
  uint32_t wanted_pages() const;
  /// Checks that every page with the owner transfer is in exactly one of the books; `others` are in books elsewhere.
  transfer_counts counts(uint32_t others = 0) const;
  void count_stale() { ++counts_.stale; }

 private:
  struct outgoing {
    std::vector<kernels::page_id> pages;
    std::vector<uint32_t> generations;
    kernels::sequence_export what;
    uint32_t place = 0;
    uint64_t puller = 0;  // 0: nobody has asked
    nanoseconds deadline{0};
  };
  using out_iterator = std::map<uint64_t, outgoing>::iterator;
  out_iterator let_go(out_iterator it, uint64_t& reason);
  void erase(std::map<uint64_t, incoming>::iterator it);

  kernels::page_pool& pool_;
  std::vector<bool> used_;  // places
  std::map<uint64_t, outgoing> out_;
  std::map<uint64_t, incoming> in_;
  uint64_t next_ = 1;
  transfer_counts counts_;
};

}  // namespace troupe::actors
