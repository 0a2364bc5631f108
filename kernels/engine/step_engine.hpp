// The engine over any operators: a thread that takes plans, meets its group once per step, runs the forward pass,
// samples, drafts and commits.
//
// A step, on the engine thread:
//   rows of chunks, last tokens and granted drafts -> begin_step (the group's OR of what to run) -> layers -> logits ->
//   sample -> accept drafts -> draft pass -> commit -> result to the sink
// Until commit nothing of a slot changes, so that an abandoned step leaves every slot as it was.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/engine/draft_control.hpp"
#include "kernels/engine/draft_grants.hpp"
#include "kernels/engine/engine.hpp"
#include "kernels/engine/expert_moves.hpp"
#include "kernels/engine/plan_check.hpp"
#include "kernels/model/forward.hpp"

namespace troupe::kernels {

/// What a step engine is made of.
struct step_engine_parts {
  std::shared_ptr<const model> weights;
  std::unique_ptr<operators> ops;
  place where;
  engine_limits limits;
  std::span<std::byte> pages;              // limits.pages pages; outlives the engine, or lies in own_pages
  std::unique_ptr<std::byte[]> own_pages;  // memory that the engine keeps, may be null
  std::span<std::byte> handoff;            // limits.handoffs places of facts.handoff_bytes; outlives the engine
  std::span<std::byte> snapshots;          // limits.snapshots places of facts.snapshot_bytes; outlives the engine
  std::unique_ptr<ep::group> group;        // null: plans wait for the first regroup
  ep::placement placement;
  uint32_t expert_slots = 0;  // see placement_status; 0: one for every expert
  ep::split_options split;
  model_facts facts;
  const clock_source* clock = nullptr;
  draft_observer on_drafts;      // may be empty
  bool adaptive_drafts = false;  // see cpu_engine_config
};

/// Rows per rank and exchange of an engine with these limits, for ep::group_shape::max_rows.
uint32_t step_rows(const engine_limits& limits);

/// The engine interface over a forward pass. Thread rules are those of `engine`.
class step_engine final : public engine {
 public:
  /// Starts the engine thread.
  static result<std::unique_ptr<engine>> make(step_engine_parts parts, sink on_step);
  ~step_engine() override;

  const model_facts& facts() const override { return facts_; }
  const engine_limits& limits() const override { return limits_; }
  result<void> submit(step_plan plan) override;
  result<void> regroup(std::unique_ptr<ep::group> group, ep::placement placement) override;
  result<void> stage(placement_move move) override;
  result<void> flip(placement_version version) override;
  result<void> drop(placement_version version) override { return moves_.drop(version); }
  placement_status placement() const override { return moves_.status(); }
  expert_window take_expert_window(uint64_t min_steps) override { return moves_.take(min_steps); }
  void stop() override;

 private:
  // A running sequence. Owned by the engine thread.
  struct slot_state {
    bool open = false, finished = false;
    std::vector<token_id> tokens;  // capacity beyond `known` holds drafts under verification
    uint32_t known = 0, committed = 0, prompt_length = 0, pages = 0;
    uint32_t window_floor = 0, decoder_floor = 0, decoder_from = 0;
    uint32_t context_floor = 0, context_end = 0;  // drafter context is in place for [floor, end)
    uint32_t windows_from = 0;                    // decoder layers have nothing before it (sequence_open::windows)
    sampling_params sampling;
    stop_params stop;
    bool speculate = false;
    std::vector<token_id> banned;  // while the output is shorter than min_tokens
    std::vector<token_id> drafts;
    std::vector<float> confidences;
    uint32_t draft_count = 0;  // valid entries of drafts, for positions known ..
  };
  // What a step does with one sequence, and what came out.
  struct step_item {
    uint32_t slot = 0;
    const sequence_step* step = nullptr;  // in plan_
    bool decode = false, sample = false;
    uint32_t drafts = 0;                     // verified in this step
    uint32_t first_sample = 0, samples = 0;  // in the step's sampled rows
    uint32_t emitted = 0;
    uint32_t committed = 0;      // after the step
    uint32_t context_floor = 0;  // of the drafter, after the step
    finish_reason finish = finish_reason::none;
    int32_t draft_index = -1;  // in the draft pass
  };
  struct regrouping {
    std::unique_ptr<ep::group> group;
    ep::placement placement;
    uint64_t number = 0;  // counts regroups from 1
  };

  step_engine(step_engine_parts parts, sink on_step);
  result<void> prepare();
  void wake();

  // Engine thread, step_engine.cpp.
  void run();
  bool next_plan(std::unique_lock<std::mutex>& lock);
  void apply_lists(step_result& result);
  void import_sequence(slot_state& slot, const sequence_open& open);
  void fail_step(error e);
  void leave();
  void drop_group();
  void resync();

  // Engine thread, step_run.cpp.
  void compose(bool first_step);
  bool can_decode(const slot_state& slot) const;
  uint32_t most_drafts(const slot_state& slot) const;
  void choose_drafts();
  void grant_drafts(uint32_t budget);
  void observe_drafts(int64_t total_ns);
  ep::step_header header() const;
  result<void> run_step(const ep::step_header& agreed, step_result& result);
  void sample_rows();
  void accept(step_item& item);
  result<void> draft_pass();
  void finish_step(step_result& result);
  void report_drafts(const step_item& item) const;
  sequence_export export_sequence(const step_item& item);
  void take_snapshots();
  std::span<std::byte> handoff_place(uint32_t state) const {
    return handoff_.subspan(size_t{state} * facts_.handoff_bytes, facts_.handoff_bytes);
  }
  std::span<std::byte> snapshot_bytes(uint32_t place) const {
    return snapshots_.subspan(place * facts_.snapshot_bytes, facts_.snapshot_bytes);
  }
  finish_reason finish_of(const slot_state& slot, token_id token, uint32_t known) const;
  bool wants_draft(const step_item& item) const;

  // Constant after construction.
  const std::shared_ptr<const model> model_;
  const std::unique_ptr<operators> ops_;
  const place where_;
  const engine_limits limits_;
  const std::unique_ptr<std::byte[]> own_pages_;
  const std::span<std::byte> page_memory_, handoff_, snapshots_;
  const model_facts facts_;
  const clock_source& clock_;
  const sink sink_;
  const draft_observer on_drafts_;
  uint32_t block_ = 0;  // tokens that the drafter proposes, 0 without one

  // Owned by the engine thread.
  std::optional<kv_state> state_;
  std::unique_ptr<forward_pass> forward_;
  expert_moves moves_;  // parts of it from any thread
  std::unique_ptr<ep::group> group_;
  ep::placement first_placement_;  // until `prepare`
  std::vector<slot_state> slots_;
  bool has_plan_ = false;
  step_plan plan_;
  uint32_t steps_done_ = 0;
  uint64_t group_step_ = 0;
  uint64_t group_number_ = 0;  // the regroup that gave group_, 0 for the first
  std::vector<step_item> items_;
  std::vector<sequence_rows> rows_;
  std::vector<commit_rows> commits_;
  std::vector<std::pair<uint32_t, snapshot_taken>> taken_;  // by this step, with the index of the item
  std::vector<uint32_t> sampled_tail_;
  std::vector<sample_row> sample_rows_;
  std::vector<token_id> sampled_;
  std::vector<float> logprobs_, top_logprobs_;
  std::vector<token_id> top_tokens_;
  std::vector<draft_sequence> draft_sequences_;
  std::vector<token_id> drafts_;
  std::vector<float> confidences_;
  draft_grants grants_;
  std::optional<draft_control> control_;  // empty: every plan's budget is used
  policies::confidence_rows at_hand_;
  draft_choice choice_;
  int64_t draft_ns_ = 0;
  int64_t idle_since_ = 0, sampling_ns_ = 0;
  int64_t ended_ = 0, ended_waited_ = 0;  // this rank's last step, and the thread's wait for cores until then

  // Protected by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<step_plan> queue_;
  planned_state planned_;
  std::optional<regrouping> regrouping_;
  uint64_t regroups_ = 0;
  bool stopping_ = false;
  bool failed_ = false;          // a step failed and no regroup came since
  ep::group* parked_ = nullptr;  // the group that the engine thread uses, for wake

  std::thread thread_;
};

}  // namespace troupe::kernels
