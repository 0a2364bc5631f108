#include "policies/repair_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace troupe::policies {

result<repair_plan> plan_repair(const repair_input& in) {
  struct spent {
    uint64_t read = 0, write = 0;
  };
  const size_t n = in.nodes.size();
  std::vector<spent> spent_(n);
  std::unordered_map<uint64_t, size_t> by_id;
  for (size_t i = 0; i < n; ++i)
    if (in.nodes[i].id == 0 || !by_id.emplace(in.nodes[i].id, i).second)
      return fail(errc::invalid_argument, "nodes[{}].id: {} is 0 or listed twice", i, in.nodes[i].id);
  struct job {
    size_t extent;
    std::vector<size_t> alive;
  };
  std::vector<job> jobs;
  std::unordered_set<uint64_t> extents;
  repair_plan out;
  for (size_t i = 0; i < in.extents.size(); ++i) {
    const auto& e = in.extents[i];
    if (e.id == 0 || !extents.insert(e.id).second)
      return fail(errc::invalid_argument, "extents[{}].id: {} is 0 or listed twice", i, e.id);
    if (e.data == 0) return fail(errc::invalid_argument, "extents[{}].data: 0", i);
    std::unordered_set<uint64_t> holders;
    job j{i, {}};
    for (uint64_t h : e.holders) {
      if (!holders.insert(h).second)
        return fail(errc::invalid_argument, "extents[{}].holders: {} is listed twice", i, h);
      if (auto at = by_id.find(h); at != by_id.end()) j.alive.push_back(at->second);
    }
    if (j.alive.size() < e.data)
      out.lost.push_back(e.id);
    else if (e.missing > 0)
      jobs.push_back(std::move(j));
  }
  const auto slack = [&](const job& j) { return j.alive.size() - in.extents[j.extent].data; };
  std::stable_sort(jobs.begin(), jobs.end(), [&](const job& a, const job& b) { return slack(a) < slack(b); });

  const auto share = [](uint64_t used, uint64_t budget) { return budget == 0 ? 2.0 : double(used) / double(budget); };
  for (auto& j : jobs) {
    const auto& e = in.extents[j.extent];
    const auto fits = [&](uint64_t used, uint64_t budget) { return used <= budget && budget - used >= e.shard_bytes; };
    std::vector<size_t> sources;
    std::set<uint64_t> domains;
    for (size_t i : j.alive) {
      domains.insert(in.nodes[i].domain);
      if (fits(spent_[i].read, in.nodes[i].read_bytes)) sources.push_back(i);
    }
    std::sort(sources.begin(), sources.end(), [&](size_t a, size_t b) {
      const double x = share(spent_[a].read, in.nodes[a].read_bytes), y = share(spent_[b].read, in.nodes[b].read_bytes);
      return x != y ? x < y : in.nodes[a].id < in.nodes[b].id;
    });
    if (out.tasks.size() >= in.max_tasks || sources.size() < e.data) {
      out.waiting.push_back(e.id);
      continue;
    }
    sources.resize(e.data);
    std::vector<size_t> targets;
    while (targets.size() < e.missing) {
      size_t best = SIZE_MAX;
      const auto rank = [&](size_t i) {
        return std::tuple(domains.contains(in.nodes[i].domain), share(spent_[i].write, in.nodes[i].write_bytes),
                          in.nodes[i].id);
      };
      for (size_t i = 0; i < n; ++i) {
        if (!fits(spent_[i].write, in.nodes[i].write_bytes)) continue;
        if (std::find(j.alive.begin(), j.alive.end(), i) != j.alive.end() ||
            std::find(targets.begin(), targets.end(), i) != targets.end())
          continue;
        if (best == SIZE_MAX || rank(i) < rank(best)) best = i;
      }
      if (best == SIZE_MAX) break;
      targets.push_back(best);
      domains.insert(in.nodes[best].domain);
    }
    if (targets.size() < e.missing) out.waiting.push_back(e.id);
    if (targets.empty()) continue;
    auto& task = out.tasks.emplace_back();
    task.extent = e.id;
    for (size_t i : sources) spent_[i].read += e.shard_bytes, task.sources.push_back(in.nodes[i].id);
    for (size_t i : targets) spent_[i].write += e.shard_bytes, task.targets.push_back(in.nodes[i].id);
  }
  out.reason = fmt::format("{} of {} extents in this round, {} wait, {} lost", out.tasks.size(), in.extents.size(),
                           out.waiting.size(), out.lost.size());
  return out;
}

}  // namespace troupe::policies
