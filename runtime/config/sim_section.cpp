// The keys of simulated runs.
#include "runtime/config/schema.hpp"

namespace troupe::config {

using namespace std::chrono_literals;

sim_section::sim_section() { sim_table().apply_defaults(*this); }

const section<sim_section>& sim_table() {
  using s = sim_section;
  static const section<s> table{
      "sim",
      "How `troupe sim` lets this cluster run in virtual time (`docs/simulate.md`). Live processes do not read it.",
      {count<s>("seed", &s::seed, 1, 0, 4294967295u, "", "Decides everything that is drawn. `--seed` goes before it."),
       path<s>("cost", &s::cost,
               "The cost model that engines take their times from, a file of configs/sim/cost. Required for "
               "`troupe sim`."),
       choice<s>("profile", &s::profile, "tcp", {"tcp", "hostile"},
                 "tcp: messages between two nodes keep their order and none is lost while the connection lasts. "
                 "hostile: they are lost, doubled and overtaken as the three keys below say."),
       count<s>("loss", &s::loss, 10, 0, 1000, "permille", "Messages that are lost with `profile: hostile`."),
       count<s>("duplication", &s::duplication, 10, 0, 1000, "permille", "Messages that come twice."),
       count<s>("reordering", &s::reordering, 50, 0, 1000, "permille", "Messages that later ones may overtake."),
       flag<s>("encode", &s::encode, true,
               "Every message is encoded and decoded on its way, as on a wire. false: those without handles are handed "
               "over as they are; for fleets."),
       duration<s>("latency", &s::latency, 50us, 0s, 10s, "From node to node, of a message and of a transfer."),
       duration<s>("jitter", &s::jitter, 20us, 0s, 10s, "Drawn for each message and added, at most so much."),
       size<s>("link_rate", &s::link_rate, 12ull << 30, 1ull << 10, 1ull << 50,
               "Bytes per second between two nodes at most, of the data plane."),
       size<s>("node_rate", &s::node_rate, 46ull << 30, 1ull << 10, 1ull << 50,
               "Bytes per second that a node sends at most, and that it takes in, of the data plane."),
       size<s>("control_rate", &s::control_rate, 1ull << 30, 1ull << 10, 1ull << 50,
               "Bytes per second of messages that a node sends at most."),
       size<s>("disk_rate", &s::disk_rate, 6ull << 30, 1ull << 10, 1ull << 50, "Bytes per second of one disk."),
       duration<s>("disk_latency", &s::disk_latency, 80us, 0s, 10s, "Of every call to a disk or an index."),
       duration<s>("load_time", &s::load_time, 2s, 0s, 1h, "From the start of a rank until it has its weights."),
       path<s>("faults", &s::faults, "A fault plan, a file of configs/faults. Empty: nothing breaks.")}};
  return table;
}

}  // namespace troupe::config
