// What a new director learns from the nodes of a cluster that runs, before it decides anything.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "actors/protocol/cluster.hpp"

namespace troupe::actors {

/// The nodes that run tell one after the other what they are and the newest view that they have; the newest of all is
/// where the new director goes on. It waits until every node of that view has come, or until its time is over: who has
/// not come by then is lost. Not thread safe.
class takeover {
 public:
  takeover(cluster_epoch epoch, nanoseconds until) : until_(until) { newest_.epoch = epoch; }

  /// A node has come.
  void add(const rejoin_request& m);
  /// Another process of that name asks to join: the one before it has ended, and is not waited for.
  void replaced(const std::string& name) { replaced_.insert(name); }

  bool over(nanoseconds now) const { return now >= until_ || missing().empty(); }
  /// Nodes of the newest view that have not come and are waited for, by name.
  std::vector<std::string> missing() const;
  /// Of the same cluster epoch: nodes, groups and balancers as they were.
  const cluster_view& newest() const { return newest_; }

 private:
  nanoseconds until_;
  cluster_view newest_;
  std::set<std::pair<node_number, incarnation>> come_;
  std::set<std::string> replaced_;
};

}  // namespace troupe::actors
