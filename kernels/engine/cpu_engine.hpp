// The engine on the CPU, and what a process needs to put it into an expert-parallel group.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/engine/engine.hpp"
#include "kernels/model/model.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::kernels {

/// How a CPU engine is made. Every field has a default but the model.
struct cpu_engine_config {
  std::shared_ptr<const model> weights;  // a loaded model, or null: model_directory is loaded
  std::string model_directory;
  engine_limits limits;
  std::string isa;                      // "portable", "avx2", "avx512"; empty: the widest that this CPU has
  std::span<std::byte> pages;           // limits.pages * page_bytes that outlive the engine; empty: it allocates them
  std::span<std::byte> handoff;         // limits.handoffs * handoff_bytes(model) that outlive the engine
  std::span<std::byte> snapshots;       // limits.snapshots * plan.snapshot_bytes() that outlive the engine
  std::unique_ptr<ep::group> group;     // null: the engine is alone, unless it shall wait for its group
  bool wait_for_group = false;          // with a null group: plans wait for the first regroup
  ep::placement placement;              // with a group; without one every expert is local
  uint32_t expert_slots = 0;            // see placement_status; 0: one for every expert
  ep::split_options split;              // how rows are spread over the copies of an expert
  std::string replay_mode = "exact";    // goes into the fingerprint
  const clock_source* clock = nullptr;  // null: the machine's
  draft_observer on_drafts;             // empty: nobody looks
  bool adaptive_drafts = false;  // true: drafts only while it pays, and verifies what is worth its rows, by what its
                                 // own steps take and bring (draft_control); a plan's verify_budget is then the most
};

/// Loads what is not loaded, allocates for the limits and starts the engine thread. Errors: those of load_model;
/// invalid_argument for limits, placement, group or page memory that do not fit; unsupported for an instruction set
/// that this CPU lacks; exhausted for memory.
result<std::unique_ptr<engine>> make_cpu_engine(cpu_engine_config config, engine::sink on_step);

/// What schedulers need to know of a model served by the CPU engine. `name` is the directory's last part.
result<model_facts> cpu_model_facts(const model& m, const engine_limits& limits, const std::string& replay_mode);

/// The shape of an EP group of `ranks` engines with these limits.
ep::group_shape engine_group_shape(const model& m, const engine_limits& limits, uint32_t ranks);

/// Every expert once, in contiguous blocks over the ranks; drafter blocks too.
ep::placement initial_placement(const model& m, uint32_t ranks);

/// The same with as many slots per rank and backbone layer as its block needs and `redundant` more, as far as there are
/// different experts to put into them (ep::first_slots): what a group begins with.
ep::placement initial_placement(const model& m, uint32_t ranks, uint32_t redundant, placement_version version);

}  // namespace troupe::kernels
