// An expert-parallel group of cost engines in one process: nothing travels, and a step of the whole group is two
// entries of a timer, however many ranks it has. The semantics are those of kernels/ep/ep.hpp: a step runs when some
// rank has work, with zero rows where a rank has none, and takes what its slowest rank takes; while nobody has work the
// group parks and has no entry at all; a rank that does not show up ends the group with peer_lost on the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/engine/cost_experts.hpp"
#include "kernels/engine/step_timer.hpp"
#include "kernels/ep/ep.hpp"
#include "policies/step_cost.hpp"

namespace troupe::kernels {

/// Between two looks at a group without work in which some rank still loads experts.
inline constexpr nanoseconds load_interval = std::chrono::milliseconds(1);

/// What the ranks of a group agree on.
struct cost_group_options {
  std::shared_ptr<const policies::cost_model> model;
  std::shared_ptr<step_timer> timer;
  uint32_t ranks = 1;
  std::string fabric;                              // of the model; empty: its first
  nanoseconds deadline = std::chrono::seconds(5);  // a rank that does not show up for so long is lost
  expert_shape experts;                            // layers and experts of the model, for loads and imbalance
  uint64_t seed = 0;  // of the expert loads: the same for groups that serve the same requests
};

/// What the group has done so far.
struct cost_group_stats {
  uint64_t steps = 0;                  // that succeeded
  nanoseconds busy{0};                 // in them
  uint32_t imbalance_permille = 1000;  // by the placement in force
};

/// What the group's step was, for its ranks.
struct cost_step {
  ep::step_header agreed;
  policies::step_cost_parts took;  // `total_ns` as it was, slow ranks included
  nanoseconds began{0};
  uint64_t rows = 0, decoder_rows = 0, drafting = 0;  // of all ranks
  uint32_t ranks = 1;
  std::shared_ptr<const expert_use> use;  // null where the model has no experts
};

class cost_group;

/// One of the ranks, as the group sees it; implemented by cost_engine. All calls come from the timer.
class cost_member {
 public:
  virtual ~cost_member() = default;
  /// What this rank brings to the step that begins: its header, and what it runs.
  virtual void begin_step(ep::step_header& header, policies::step_work& work) = 0;
  /// All ranks have agreed: this one takes the flip that was agreed on, or fails (stale).
  virtual result<void> run_step(const ep::step_header& agreed) = 0;
  /// A step with work is over.
  virtual void end_step(const cost_step& step) = 0;
  /// The group has ended: peer_lost with those who are gone, or ok when a rank has left after saying so.
  virtual void group_over(const result<void>& why, const std::vector<uint32_t>& suspects) = 0;
  /// The placement in force on this rank.
  virtual std::shared_ptr<const ep::placement> placement_in_force() const = 0;
  /// Whether its seat is one of this group. It changes groups between two steps, also while the old group runs.
  virtual bool sits_in(const cost_group& group) const = 0;
};

/// A place in a cost_group. Destroying it without leave() looks to the others like a rank that does not show up.
/// Exchanges and begin_step are `unsupported`: steps come to the member instead. Thread rules: those of ep::group.
class cost_seat : public ep::group {
 public:
  /// Takes part from now on.
  virtual void attach(std::weak_ptr<cost_member> member) = 0;
  /// Says that this rank takes part in no further step.
  virtual void leave() = 0;
  /// Whose seat it is.
  virtual const cost_group& of() const = 0;
  /// The same placement as another rank of the group has given, if there is one that is equal.
  virtual std::shared_ptr<const ep::placement> intern(ep::placement placement) = 0;
};

/// Thread rules: seat, wake and the failures from any thread that may call the timer; the rest happens on the timer.
class cost_group {
 public:
  /// Errors: invalid_argument for no ranks, no model or timer; not_found for the fabric.
  static result<std::shared_ptr<cost_group>> make(cost_group_options options);
  virtual ~cost_group() = default;

  /// The place of `rank`, for cost_engine (its first group, or regroup); once each. No step begins before all ranks
  /// have taken their seats. Its exchanges are `unsupported`: a cost engine has nothing to exchange.
  virtual result<std::unique_ptr<ep::group>> seat(uint32_t rank) = 0;

  /// The process of `rank` is gone: it takes part in nothing any more; the others are told after `noticed`, or when a
  /// step has waited for it for the group's deadline.
  virtual void kill(uint32_t rank, nanoseconds noticed = nanoseconds::max()) = 0;
  /// `rank` stands still until thawed; a step that waits for it longer than the deadline is lost.
  virtual void freeze(uint32_t rank) = 0;
  virtual void thaw(uint32_t rank) = 0;
  /// `rank`'s steps take permille / 1000 of what the model says (1000: as they should); the others wait for it.
  virtual void slow(uint32_t rank, uint32_t permille) = 0;

  virtual cost_group_stats stats() const = 0;
};

}  // namespace troupe::kernels
