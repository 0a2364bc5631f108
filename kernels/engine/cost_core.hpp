// The inside of cost_engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "kernels/engine/cost_engine.hpp"
#include "kernels/engine/cost_moves.hpp"
#include "kernels/engine/cost_pages.hpp"
#include "kernels/engine/cost_price.hpp"
#include "kernels/engine/draft_control.hpp"
#include "kernels/engine/draft_grants.hpp"
#include "kernels/engine/plan_check.hpp"

namespace troupe::kernels {

/// Held by the engine, and by the timer's entries as long as they last. The functions of the first group may be called
/// from any thread, the rest run on the timer.
class cost_core final : public cost_member, public std::enable_shared_from_this<cost_core> {
 public:
  /// Checked, see make_cost_engine.
  cost_core(cost_engine_config config, model_facts facts, cost_price price, engine::sink on_step);

  const model_facts& facts() const { return facts_; }
  const engine_limits& limits() const { return limits_; }
  cost_moves& moves() { return moves_; }
  result<void> submit(step_plan plan);
  result<void> regroup(std::unique_ptr<ep::group> group, ep::placement placement);
  /// The first group: number 0 of the regroups.
  void enter(std::unique_ptr<ep::group> group, ep::placement placement);
  void wake();
  void stop();

  void begin_step(ep::step_header& header, policies::step_work& work) override;
  result<void> run_step(const ep::step_header& agreed) override;
  void end_step(const cost_step& step) override;
  void group_over(const result<void>& why, const std::vector<uint32_t>& suspects) override;
  std::shared_ptr<const ep::placement> placement_in_force() const override { return moves_.active(); }
  bool sits_in(const cost_group& group) const override { return seat_ && &seat_->of() == &group; }

 private:
  struct slot_state {
    bool open = false, finished = false;
    std::vector<token_id> tokens;  // known ones
    std::vector<uint32_t> tags;    // of each, where pages have bytes
    uint64_t chain = 0;            // over tokens
    uint64_t damage = 0;           // not 0: it has read pages with another content
    uint64_t luck = 0;             // key of its drafts' acceptance
    uint32_t committed = 0, prompt_length = 0;
    std::vector<page_id> pages;
    sampling_params sampling;
    stop_params stop;
    bool speculate = false;
    uint32_t draft_count = 0;        // drafts at hand, for positions tokens.size() ..
    std::vector<float> confidences;  // of them
    uint32_t known() const { return static_cast<uint32_t>(tokens.size()); }
  };
  struct step_item {
    uint32_t slot = 0;
    const sequence_step* step = nullptr;  // in plan_
    bool decode = false, sample = false;
    uint32_t drafts = 0;
  };
  struct regrouping {
    std::unique_ptr<ep::group> group;
    ep::placement placement;
    uint64_t number = 0;
  };

  void later(nanoseconds after, void (cost_core::*what)());
  void take_group();
  void foreign_round();
  void foreign_end();
  void leave();
  bool next_plan();
  void deliver(step_result r);

  // cost_step.cpp
  void apply_lists(step_result& result);
  void compose();
  bool can_decode(const slot_state& s) const;
  uint32_t most_drafts(const slot_state& s) const;
  void choose_drafts();
  void grant_drafts(uint32_t budget);
  bool wants_draft(const step_item& item) const;
  void run_item(const step_item& item, step_result& result);
  token_id sample(const slot_state& s) const;
  finish_reason finish_of(const slot_state& s) const;
  void append(slot_state& s, token_id token);
  void write_tags(slot_state& s, uint32_t from, uint32_t to);
  void read_tags(slot_state& s, uint32_t rows);
  uint32_t* tags_of(page_id page);
  sequence_export export_sequence(const slot_state& s, uint32_t place);
  uint64_t page_sum(const slot_state& s, uint32_t index) const;
  std::span<std::byte> state_place(uint32_t place) const {
    return handoff_.empty() ? handoff_ : handoff_.subspan(size_t{place} * cost_state_bytes, cost_state_bytes);
  }

  // Constant after construction.
  const std::shared_ptr<const model> outline_;
  const std::shared_ptr<const policies::cost_model> model_;
  const std::shared_ptr<step_timer> timer_;
  const engine_limits limits_;
  const std::span<std::byte> page_memory_, handoff_;
  const model_facts facts_;
  const uint32_t block_;  // drafts per sequence and step, 0 without a drafter

  // Of the timer.
  cost_price price_;  // for groups that are no cost groups
  cost_moves moves_;  // parts of it from any thread
  std::unique_ptr<ep::group> group_;
  cost_seat* seat_ = nullptr;  // group_, if it is one
  std::vector<slot_state> slots_;
  bool has_plan_ = false, in_step_ = false;
  step_plan plan_;
  uint32_t steps_done_ = 0;
  uint64_t group_step_ = 0, group_number_ = 0;
  std::vector<step_item> items_;
  policies::step_work work_;  // of the running step
  uint32_t drafted_ = 0, emitted_ = 0;
  step_result result_;  // of the running step, as far as it is known
  cost_step foreign_;
  draft_grants grants_;
  std::optional<draft_control> control_;
  policies::confidence_rows at_hand_;
  draft_choice choice_;
  nanoseconds ended_{0};  // this rank's last step

  mutable std::mutex mutex_;  // protects what follows
  std::condition_variable changed_;
  std::deque<step_plan> queue_;
  planned_state planned_;
  std::optional<regrouping> regrouping_;
  uint64_t regroups_ = 0;
  bool stopping_ = false, failed_ = false;
  bool round_ = false;          // an entry for a group that is no cost group is on its way or runs
  ep::group* awake_ = nullptr;  // group_, for wake

  std::mutex sink_mutex_;  // protects what follows; held while the sink runs
  engine::sink sink_;
};

}  // namespace troupe::kernels
