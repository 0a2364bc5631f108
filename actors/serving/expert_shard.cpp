#include "actors/serving/expert_shard.hpp"

#include <algorithm>

#include "actors/protocol/messages.hpp"

namespace troupe::actors {
namespace {

class expert_shard_state {
 public:
  using interface = expert_shard_actor;
  static inline const char* name = "expert_shard";
  explicit expert_shard_state(interface::pointer) {}

  interface::behavior_type make_behavior() {
    return {
        [this](const expert_loads& m) { add(m); },
        [this](const load_query& m) {
          load_report out = sums_;
          if (m.take) sums_ = {sums_.placement, {}, 0};
          return out;
        },
    };
  }

 private:
  void add(const expert_loads& m) {
    if (m.placement < sums_.placement) return;  // counted under a placement of the past
    if (m.placement > sums_.placement) sums_ = {m.placement, {}, 0};
    if (sums_.loads.size() < m.loads.size()) sums_.loads.resize(m.loads.size());
    for (size_t layer = 0; layer < m.loads.size(); ++layer) {
      auto& to = sums_.loads[layer];
      if (to.size() < m.loads[layer].size()) to.resize(m.loads[layer].size(), 0);
      for (size_t e = 0; e < m.loads[layer].size(); ++e) {
        to[e] += m.loads[layer][e];
        sums_.rows += m.loads[layer][e];
      }
    }
  }

  load_report sums_;
};

}  // namespace

expert_shard_actor spawn_expert_shard(caf::local_actor* parent) { return spawn<expert_shard_state>(parent); }

}  // namespace troupe::actors
