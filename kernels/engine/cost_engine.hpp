// An engine without weights: slots, pages, plans, hand-overs and expert placements as in the real one, tokens from a
// hash, time from a cost model. For simulations, and live (`engine: cost`) for clusters larger than the machine.
//
// The token at a position depends on the request's seed, the position and all tokens before it, and on nothing else:
// not on batch, layout, speculation, resume or preemption. So what holds of the real engine's output can be tested here
// too: a resumed sequence goes on with the same tokens, and a sequence that reads pages with somebody else's content
// writes other tokens (where pages have bytes at all, see cost_engine_config::pages).
//
// Pages and states are descriptors: a page holds 4 bytes a token (of the hash of the tokens up to it), so that
// hand-over and store move and check real bytes, but few of them. What those of the real model would be, the cost model
// says (policies::kv_sizes).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/engine/cost_group.hpp"
#include "kernels/engine/engine.hpp"
#include "kernels/engine/step_timer.hpp"
#include "kernels/model/model.hpp"
#include "policies/step_cost.hpp"

namespace troupe::kernels {

/// How a cost engine is made. `outline`, `model` and `timer` are needed.
struct cost_engine_config {
  std::shared_ptr<const kernels::model> outline;  // load_cost_outline
  std::shared_ptr<const policies::cost_model> model;
  std::shared_ptr<step_timer> timer;
  engine_limits limits;
  std::span<std::byte> pages;  // limits.pages * outline->plan.page_bytes that outlive the engine; empty: pages
                               // have no bytes, and checksums follow from the tokens
  std::span<std::byte>
      handoff;  // limits.handoffs * cost_state_bytes that outlive the engine; empty: states have no bytes
  std::unique_ptr<ep::group> group;   // a seat of a cost_group; any other group is asked for its headers only, in which
                                      // case the timer must be this engine's alone; null: alone, unless ...
  bool wait_for_group = false;        // ... with a null group: plans wait for the first regroup
  ep::placement placement;            // with a group; without one every expert is local
  uint32_t expert_slots = 0;          // see placement_status; 0: one for every expert
  std::string replay_mode = "exact";  // goes into the fingerprint
  bool adaptive_drafts = false;       // as in cpu_engine_config
};

/// Starts the engine. Errors: invalid_argument for limits, placement, group or memory that do not fit.
/// Thread rules are those of `engine`, the timer being the engine thread. stop() does not wait for the running step but
/// drops it: nothing is called any more once it returns; the group goes on without this rank as if it had said so.
result<std::unique_ptr<engine>> make_cost_engine(cost_engine_config config, engine::sink on_step);

/// config.json of a model folder and what follows from it, without weights, with descriptor pages.
result<std::shared_ptr<const model>> load_cost_outline(const std::string& directory);

/// What schedulers need to know; the fingerprint covers config.json, the cost model and the replay mode.
result<model_facts> cost_model_facts(const model& outline, const policies::cost_model& cost,
                                     const engine_limits& limits, const std::string& replay_mode);
/// The experts of the model.
expert_shape experts_of(const model& outline);

/// Bytes of a state in the handoff memory.
inline constexpr uint32_t cost_state_bytes = 64;

/// What check_handoff and head_of are for real states: corrupt or invalid_argument for bytes that are not the state of
/// `rows` tokens of this model.
result<void> check_cost_state(const model_facts& facts, uint32_t rows, std::span<const std::byte> state);

}  // namespace troupe::kernels
