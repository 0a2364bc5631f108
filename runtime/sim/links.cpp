#include "runtime/sim/links.hpp"

#include <algorithm>

namespace troupe::sim {
namespace {

nanoseconds times(nanoseconds d, double factor) {
  return nanoseconds(static_cast<int64_t>(static_cast<double>(d.count()) * factor));
}

}  // namespace

void link_faults::cut(size_t from, size_t to, bool on) {
  if (on)
    cuts_.insert({from, to});
  else
    cuts_.erase({from, to});
}

void link_faults::stall(size_t from, size_t to, bool on) {
  if (on)
    stalls_.insert({from, to});
  else
    stalls_.erase({from, to});
  release();
}

void link_faults::freeze(size_t node, bool on) {
  if (on)
    frozen_.insert(node);
  else
    frozen_.erase(node);
  release();
}

void link_faults::slow(size_t node, double factor) {
  if (factor <= 1)
    slow_.erase(node);
  else
    slow_[node] = factor;
}

double link_faults::slowness(size_t from, size_t to) const {
  double out = 1;
  for (const size_t n : {from, to})
    if (auto it = slow_.find(n); it != slow_.end()) {
      out = std::max(out, it->second);
      ++slowed_[n];
    }
  return out;
}

void link_faults::let_through(size_t from, size_t to, std::function<void()> what) {
  if (!frozen_.contains(to) && !stalls_.contains({from, to})) return what();
  ++held_count_[to];
  held_[{from, to}].push_back(std::move(what));
}

uint64_t link_faults::swallowed_between(size_t from, size_t to) const {
  auto it = swallowed_.find({from, to});
  return it == swallowed_.end() ? 0 : it->second;
}

uint64_t link_faults::held_for(size_t node) const {
  auto it = held_count_.find(node);
  return it == held_count_.end() ? 0 : it->second;
}

uint64_t link_faults::slowed(size_t node) const {
  auto it = slowed_.find(node);
  return it == slowed_.end() ? 0 : it->second;
}

void link_faults::release() {
  std::deque<std::function<void()>> due;
  std::erase_if(held_, [&](auto& h) {
    if (frozen_.contains(h.first.second) || stalls_.contains(h.first)) return false;
    for (auto& f : h.second) due.push_back(std::move(f));
    return true;
  });
  for (auto& f : due) f();
}

nanoseconds link_times::delay(size_t from, size_t to) {
  const auto jitter =
      nanoseconds(static_cast<int64_t>(random_.uniform() * static_cast<double>(options_.jitter.count())));
  return times(options_.latency + jitter, faults_.slowness(from, to));
}

nanoseconds link_times::arrival(size_t from, size_t to, uint64_t bytes, bool overtake) {
  const double size = static_cast<double>(bytes) * faults_.slowness(from, to);
  auto took = [&](double rate) { return rate > 0 ? nanoseconds(static_cast<int64_t>(size / rate)) : nanoseconds{0}; };
  auto& p = pairs_[{from, to}];
  const auto now = agenda_.now();
  auto& out = of(from).egress_free;
  out = std::max(now, out) + took(options_.bytes_per_ns);
  p.free = std::max(now, p.free) + took(options_.link_per_ns);
  auto there = std::max(out, p.free) + delay(from, to);
  if (options_.ingress_per_ns > 0) {
    auto& in = of(to).ingress_free;
    const auto whole = took(options_.ingress_per_ns);
    in = std::max(in, there - whole) + whole;
    there = std::max(there, in);
  }
  if (overtake) return there;
  p.last = std::max(there, p.last + nanoseconds(1));  // TCP keeps order
  return p.last;
}

void link_times::forget(size_t node) {
  std::erase_if(pairs_, [&](const auto& p) { return p.first.first == node || p.first.second == node; });
}

}  // namespace troupe::sim
