#include "actors/cluster/takeover.hpp"

namespace troupe::actors {

void takeover::add(const rejoin_request& m) {
  come_.insert({m.node, m.inc});
  if (m.view.epoch == newest_.epoch && m.view.version > newest_.version) newest_ = m.view;
}

std::vector<std::string> takeover::missing() const {
  std::vector<std::string> out;
  for (const auto& n : newest_.nodes)
    if (!come_.contains({n.node, n.inc}) && !replaced_.contains(n.name)) out.push_back(n.name);
  return out;
}

}  // namespace troupe::actors
