// Brings a sequence that another engine has exported into this process's memory: pages in parts, each compared with its
// checksums while the next ones are on their way, and the state.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/engine/handoff.hpp"
#include "runtime/transport/transport.hpp"

namespace troupe::kernels {

/// One hand-over, from the exporting engine's memory to the importing one's.
struct handoff_route {
  transport::peer_id peer;
  transport::remote_region from_pages, from_states;
  uint64_t from_state = 0;  // offset of the state there
  transport::region_ptr to_pages, to_states;
  uint64_t to_state = 0;          // offset of the place here, which holds the state
  std::vector<page_id> from, to;  // the tables, of equal length
};

/// Runs a task later, not inside the call; tasks of one pull may run at the same time.
using task_runner = std::function<void(std::function<void()>)>;

/// Starts the pull. `done` gets the bytes moved once nothing writes into `to` any more, or why the sequence did not
/// come whole (corrupt: a checksum differs; stale, peer_lost, ...: the transport's). It is called once, inside `run`,
/// unless the transport or the runner is destroyed before. `plan` and `t` outlive the pull. Any thread.
void pull_handoff(transport::transport& t, const model_plan& plan, handoff_route route, sequence_export want,
                  task_runner run, std::function<void(result<uint64_t>)> done);

}  // namespace troupe::kernels
