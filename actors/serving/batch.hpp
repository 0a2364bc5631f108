// The running batch of one rank: queue, slots, pages, plans and unacknowledged tokens, as plain state without CAF, so
// that every state can be tested by hand. The scheduler actor moves messages in and out of it.
//
// A sequence is  waiting --(slot and pages)--> running --(finish, cancel, failure)--> closing --(slot closed)--> ended
//                   ^                            |
//                   +--- preempted: slot closed -+        ended --(everything acknowledged)--> forgotten
//
// Room may be kept for a sequence before it comes: leased, with slot, pages and place, until it is enqueued or expires.
// One that comes from a prefill rank is  waiting --(slot, pages, a place)--> fetching --(it is here)--> running, and
// its slot is opened with what was fetched; or back to waiting, to be computed again. In closing it waits for the rank
// to let go of what was fetched instead of for a slot.
//
// One whose first blocks are cached is  waiting --(slot, pages)--> reading --(they are here)--> running, from behind
// them; or back to waiting, as a miss. What is complete of a sequence is written back (batch_prefix.cpp).
#pragma once

#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/rank.hpp"
#include "actors/serving/prefix_store.hpp"
#include "actors/serving/step_costs.hpp"
#include "policies/hit_length.hpp"

namespace troupe::actors {

/// The sequences of one scheduler, waiting and running, and the plans made of them. Plain state: no clock, no messages.
class batch {
 public:
  /// A front's number is given by the scheduler, fresh for each connection.
  struct key {
    uint32_t front = 0;
    request_number request;
    uint32_t attempt = 0;
    auto operator<=>(const key&) const = default;
  };
  struct planned {
    bool any = false;  // false: nothing to do now
    kernels::step_plan plan;
    std::vector<uint32_t> grow;     // pages to append, per sequence of the plan
    std::vector<uint64_t> imports;  // fetch that an open comes from, per open of the plan; 0: none
    std::vector<uint64_t> reads;    // read of cached blocks that an open starts with, the same way
    bool follows = false;           // it was waiting when the step before it ended
  };
  enum class cancelled : uint8_t { unknown, done, closing };

  /// `plans_ahead`: plans that may be made while one runs, 0 or 1. `step_budget`: prompts get as many rows of a step as
  /// are believed to fit into so much time; 0: max_chunk.
  batch(role what, uint32_t queue_limit, uint32_t verify_budget, uint32_t plans_ahead = 1,
        nanoseconds step_budget = nanoseconds{0});

  /// Once, before anything else is asked of it.
  void configure(const kernels::model_facts& facts, const kernels::engine_limits& limits);

  /// Before the first request: cached blocks are read and written, by this scheme and within these times.
  void use_cache(const prefix_options& options);

  /// Takes a request into the queue (bounded by queue_limit: refused at it) or says why not. The same attempt twice is
  /// taken once; a newer attempt cancels the older one. Who waits stands in the order of policies/queue_order.
  enqueue_reply enqueue(uint32_t front, const enqueue_request& r, bool open, nanoseconds now = nanoseconds{0});

  /// Keeps room for a request that will come with the same key, until `until`; refused when there is none at once.
  enqueue_reply lease(uint32_t front, const lease_request& r, bool open, nanoseconds until);
  /// Ends the leases of the past.
  void expire_leases(nanoseconds now);
  bool has_leases() const;

  /// Ends a request. `closing`: its key comes out of take_forgotten later, when the engine has closed the slot. Its
  /// items are dropped: the front has asked for no more.
  cancelled cancel(const key& k);

  /// Everything up to next_position has arrived; with `ended` the end too.
  void acknowledge(uint32_t front, const ack_item& item);

  /// The front is gone: cancels all of its requests.
  void drop_front(uint32_t front);

  /// The next plan, given that at most 1 + plans_ahead are out. Decides chunks, pages, admission and preemption by
  /// policies/.
  planned plan();

  /// The engine's word on the oldest plan that is out; what of it was exported; pages that nobody here holds.
  void apply(const kernels::step_result& r, const std::vector<slot_ticket>& tickets = {}, uint32_t pages_held = 0);
  /// The rank's word on a fetch.
  void fetched(const fetch_done& m);
  void read_done(const prefix_done& m);
  /// Pages that are neither free nor of a sequence here.
  void held(uint32_t pages) { pages_held_ = pages; }

  /// The engine cannot go on: every request ends with this failure; slots are closed when plans can run again.
  void fail_all(errc code, const std::string& text);

  /// Items since the last call, in order.
  std::vector<std::pair<uint32_t, stream_item>> take_output() { return std::exchange(output_, {}); }
  /// Fetches to begin, and fetches and tickets to let go, since the last call.
  std::vector<fetch_start> take_fetches() { return std::exchange(fetches_, {}); }
  std::vector<fetch_drop> take_drops() { return std::exchange(drops_, {}); }
  /// The same of cached blocks; and blocks to write back, which the rank must hear of before the next plan, because
  /// that may close their slot.
  std::vector<prefix_read> take_reads() { return std::exchange(prefix_reads_, {}); }
  std::vector<prefix_drop> take_read_drops() { return std::exchange(prefix_drops_, {}); }
  std::vector<prefix_write> take_writes() { return std::exchange(prefix_writes_, {}); }
  /// What becomes of the snapshots that steps have written, since the last call.
  std::vector<snapshot_write> take_snapshot_writes() { return std::exchange(snapshot_writes_, {}); }
  /// Cancelled requests whose slot has been closed since the last call.
  std::vector<key> take_forgotten() { return std::exchange(forgotten_, {}); }
  /// Items of `front` that were not acknowledged between the previous two calls, in order; for sending again. Call it
  /// at intervals.
  std::vector<stream_item> overdue(uint32_t front);

  size_t waiting() const { return waiting_.size(); }
  size_t plans_out() const { return plans_.size(); }
  /// Requests without an end so far.
  size_t unfinished() const;
  bool has_unacknowledged() const;
  /// Nothing is left: no request, no open slot.
  bool idle() const { return sequences_.empty() && plans_.empty(); }
  /// What it has and can hold, for a balancer.
  rank_load load() const;
  /// Fills the counters and sizes; the state is the caller's.
  void describe(scheduler_report& out) const;

 private:
  enum class phase : uint8_t { leased, waiting, fetching, reading, running, closing, ended };
  struct sequence {
    key id;
    std::vector<kernels::token_id> known;  // prompt and everything sampled since
    uint32_t prompt_length = 0;
    kernels::sampling_params sampling;
    kernels::stop_params stop;
    bool speculate = true;
    int64_t order = 0;  // in the queue
    phase at = phase::waiting;
    bool preempted = false;     // closing, to wait again
    bool cancel = false;        // no more items; report it forgotten
    bool wants_notice = false;  // somebody waits for take_forgotten
    bool importing = false;     // running or closing: the slot has not been opened, what was fetched is in the rank
    handoff_ticket handoff;     // pull: not fetched yet
    prefix_plan prefix;
    uint64_t origin = 0;             // the request's, whatever front and attempt: of snapshots
    uint32_t reuse = 0, replay = 0;  // of the slot: tokens that are not run; run for their windows only
    bool windows = false;            // of the slot: those at `reuse` come from a snapshot
    uint64_t read = 0;               // number of the read of cached blocks, while it is under way or here
    bool filled = false;             // running or closing: the same as importing, with cached blocks
    uint32_t written = 0;            // blocks that are in the store or were given to be written
    nanoseconds leased_until{0};
    uint64_t pulled_bytes = 0;  // until an item has told it; so the next two
    int64_t pulled_ns = 0;
    bool computed_again = false;
    kernels::slot_id slot;
    uint32_t opened = 0;   // known.size() when the slot was opened
    uint32_t planned = 0;  // rows of `opened` given to plans
    uint32_t committed = 0;
    uint32_t in_flight = 0;  // tokens that plans under way may commit at most
    uint32_t pages = 0;      // reserved, in plans under way included
    uint32_t decoder_from = 0;
    uint32_t drafted = 0, accepted = 0;
    struct kept {
      stream_item item;
      bool seen = false;  // by overdue()
    };
    std::deque<kept> unacked;  // bounded by the request's own token limit
  };
  struct entry {
    uint64_t sequence = 0;
    uint32_t rows = 0, worst = 0, grow = 0;
    uint32_t before = 0;  // rows of the prompt that come before these
    bool opens = false, imports = false, fills = false;
  };
  struct record {
    uint64_t id = 0;
    std::vector<entry> entries;
    std::vector<kernels::slot_id> closes;
  };

  uint32_t draft_bound(const sequence& s) const;
  uint32_t token_cap(const sequence& s) const;
  uint32_t pages_for(uint32_t tokens) const;
  uint32_t pages_after_next(const sequence& s) const;
  bool runs_next(const sequence& s) const;
  bool has_slot_open(const sequence& s) const { return s.at == phase::running && !s.importing && !s.filled; }
  uint32_t pages_usable() const { return pages_free_ > pages_held_ ? pages_free_ - pages_held_ : 0; }
  void take_slot(sequence& s, uint64_t number);
  void give_slot(sequence& s);
  void begin_fetch(uint64_t number, uint32_t pages);
  void line_up(uint64_t number);
  void wait_again(uint64_t number);
  void check_prefix(sequence& s) const;
  uint32_t hit_blocks(const sequence& s) const { return (s.prefix.reuse + s.prefix.replay) / facts_.window; }
  policies::hit_length_plan hit_of(const sequence& s, uint32_t blocks, std::span<const uint32_t> snapshots = {}) const;
  snapshot_key snapshot_at(const sequence& s, uint32_t blocks) const;
  void ask_snapshots(const sequence& s, kernels::sequence_step& step) const;
  void keep_snapshots(sequence* s, const kernels::sequence_result& r);
  void begin_read(uint64_t number, uint32_t pages);
  void write_back(sequence& s, bool all);
  void reuse_own(sequence& s) const;
  bool extend_chain(sequence& s, uint32_t blocks) const;
  void measure(const kernels::step_result& r, uint32_t prompt_rows);
  void learn(const record& rec, int64_t time_ns);
  void add_to_plan(planned& out, record& rec, uint64_t number, uint32_t rows, uint32_t grow);
  void apply_result(sequence& s, const kernels::sequence_result& r, const handoff_ticket& ticket);
  void apply_failure(const record& rec, const kernels::step_result& r);
  void closed(kernels::slot_id slot);
  void emit(sequence& s, stream_item item);
  void end(uint64_t number, stream_item item);
  void leave(uint64_t number);  // stop running: close the slot, or end at once when there is none
  void forget_if_done(uint64_t number);
  void note(std::string reason);
  sequence& at(uint64_t number);

  const role what_;
  const uint32_t queue_limit_, verify_budget_, plans_ahead_;
  const nanoseconds step_budget_;
  step_costs costs_;
  bool configured_ = false;
  kernels::model_facts facts_;
  kernels::engine_limits limits_;

  std::map<uint64_t, sequence> sequences_;  // by order of arrival
  std::map<key, uint64_t> by_key_;
  std::deque<uint64_t> waiting_;   // in order; bounded by queue_limit_ plus the preempted
  std::vector<uint64_t> running_;  // oldest admission first
  std::map<kernels::slot_id, uint64_t> slots_;
  std::set<uint32_t> free_slots_;
  std::vector<kernels::slot_id> to_close_;
  uint32_t pages_free_ = 0;   // that no sequence here holds
  uint32_t pages_held_ = 0;   // of these: held in the rank by transfers and write-back
  uint32_t imports_out_ = 0;  // places of the handoff memory that fetches hold, at most limits_.handoffs
  std::deque<record> plans_;  // at most 1 + plans_ahead_
  bool fresh_ = false;        // a step has ended and nothing was planned since
  bool hold_ = false;         // a plan failed: the ones behind it must come back first
  uint64_t next_sequence_ = 1, next_plan_ = 1, next_read_ = 1;
  std::optional<prefix_options> cache_;
  std::map<uint64_t, uint64_t> reads_;  // sequence by number of its read
  int64_t row_ns_ = 0;                  // of a prompt token, smoothed; 0: not known yet

  std::vector<std::pair<uint32_t, stream_item>> output_;
  std::vector<fetch_start> fetches_;
  std::vector<fetch_drop> drops_;
  std::vector<prefix_read> prefix_reads_;
  std::vector<prefix_drop> prefix_drops_;
  std::vector<prefix_write> prefix_writes_;
  std::vector<snapshot_write> snapshot_writes_;
  std::vector<key> forgotten_;
  std::deque<std::string> reasons_;  // the last 16
  scheduler_report counters_;
};

}  // namespace troupe::actors
