#include "runtime/sim/faults/driver.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

using trigger = fault_trigger::what;
using pick = fault_target::pick;

// Kinds whose target is no further target while they last: it does nothing that could show another effect.
bool takes_away(fault_kind k) {
  return k == fault_kind::kill || k == fault_kind::freeze || k == fault_kind::power_loss ||
         k == fault_kind::director_loss;
}

bool done_at_once(fault_kind k) { return k == fault_kind::disk_rot || k == fault_kind::clock_jump; }

}  // namespace

fault_driver::fault_driver(fault_plan plan, cluster_shape shape) : plan_(std::move(plan)), shape_(shape) {
  const auto ok = check_plan(plan_, shape_);
  TROUPE_CHECK(ok, "{}", ok.error().message);
  states_.resize(plan_.faults.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].out.name = plan_.faults[i].name, states_[i].out.kind = plan_.faults[i].kind;
    if (plan_.faults[i].when.on == trigger::time) states_[i].armed = plan_.faults[i].when.at;
  }
  for (size_t r = 0; r < node_roles; ++r) loads_[r].resize(shape_.nodes[r]);
}

void fault_driver::node_load(node_ref node, uint64_t requests) {
  auto& of_role = loads_[static_cast<size_t>(node.role)];
  TROUPE_CHECK(node.index < of_role.size(), "{} of {}", format_node(node), of_role.size());
  of_role[node.index] = requests;
}

void fault_driver::arm(nanoseconds now) {
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& s = states_[i];
    if (s.armed || s.out.began) continue;
    const auto& w = plan_.faults[i].when;
    std::optional<nanoseconds> came;  // the condition
    if (w.on == trigger::submitted && submitted_ >= w.count) came = now;
    if (w.on == trigger::finished && finished_ >= w.count) came = now;
    if (w.on == trigger::busy) {
      uint64_t sum = 0;
      for (size_t r = 1; r < node_roles; ++r)
        if (w.role == node_role::any || w.role == static_cast<node_role>(r))
          for (const uint64_t n : loads_[r]) sum += n;
      if (sum >= w.count) came = now;
    }
    if (w.on == trigger::fault_began || w.on == trigger::fault_ended) {
      for (const auto& other : states_)
        if (other.out.name == w.name) came = w.on == trigger::fault_began ? other.out.began : other.out.ended;
    }
    if (came) s.armed = *came + w.at;
  }
}

node_ref fault_driver::choose(size_t i) const {
  const auto& f = plan_.faults[i];
  if (f.kind == fault_kind::director_loss) return {node_role::director, 0};
  if (f.kind == fault_kind::coordination_outage) return {};
  if (f.target.how == pick::index) return {f.target.role, f.target.index};
  if (f.target.how == pick::everybody) return {f.target.role, 0};
  auto nodes = hittable(shape_, f.kind, f.target.role);
  auto left = nodes;
  for (size_t k = 0; k < states_.size(); ++k)
    if (states_[k].out.began && !states_[k].out.ended && takes_away(plan_.faults[k].kind))
      std::erase(left, states_[k].out.target);
  if (!left.empty()) nodes = std::move(left);
  if (f.target.how == pick::busiest) {
    return *std::max_element(nodes.begin(), nodes.end(), [&](node_ref a, node_ref b) {
      return loads_[static_cast<size_t>(a.role)][a.index] < loads_[static_cast<size_t>(b.role)][b.index];
    });
  }
  // A stream of its own: what one fault draws does not depend on when others begin.
  rng random(plan_.seed, (uint64_t{1} << 40) + i);
  return nodes[random.below(nodes.size())];
}

std::vector<node_ref> fault_driver::peers_of(const fault& f, node_ref target) const {
  std::vector<node_ref> out;
  if (!has_word(row_of(f.kind).keys, "peer")) return out;
  for (const auto& n : all_nodes(shape_)) {
    if (n == target || (f.peer.role != node_role::any && n.role != f.peer.role)) continue;
    if (f.peer.how == pick::index && n.index != f.peer.index) continue;
    out.push_back(n);
  }
  return out;
}

void fault_driver::begin(size_t i, nanoseconds at, std::vector<fault_action>& out) {
  auto& s = states_[i];
  const auto& f = plan_.faults[i];
  s.armed.reset();
  s.out.began = at, s.out.target = choose(i);
  s.peers = peers_of(f, s.out.target);
  out.push_back({fault_action::what::begin, i, s.out.target, s.peers});
  if (f.lasts > nanoseconds(0)) s.end = at + f.lasts;
  if (done_at_once(f.kind)) s.out.ended = at;
  if (f.kind == fault_kind::flap) s.is_cut = true, s.flip = at + f.period / 2;
  if (f.kind == fault_kind::rolling_restart) {
    s.out.needed = shape_.of(f.target.role);
    turn(i, at, out);
  }
}

void fault_driver::turn(size_t i, nanoseconds at, std::vector<fault_action>& out) {
  auto& s = states_[i];
  const auto& f = plan_.faults[i];
  if (f.kind == fault_kind::flap) {
    s.is_cut = !s.is_cut;
    out.push_back({s.is_cut ? fault_action::what::cut : fault_action::what::join, i, s.out.target, s.peers});
    s.flip = at + f.period / 2;
    return;
  }
  if (s.rolled == shape_.of(f.target.role)) {
    s.flip.reset(), s.end = at;
    return;
  }
  out.push_back({fault_action::what::next, i, {f.target.role, s.rolled++}, {}});
  s.flip = at + f.period;
}

void fault_driver::finish(size_t i, nanoseconds at, std::vector<fault_action>& out) {
  auto& s = states_[i];
  s.end.reset(), s.flip.reset();
  s.out.ended = at;
  out.push_back({fault_action::what::end, i, s.out.target, s.peers});
}

std::optional<nanoseconds> fault_driver::next() const {
  std::optional<nanoseconds> out;
  for (const auto& s : states_)
    for (const auto& t : {s.armed, s.flip, s.end})
      if (t && (!out || *t < *out)) out = t;
  return out;
}

std::vector<fault_action> fault_driver::due(nanoseconds now) {
  std::vector<fault_action> out;
  for (;;) {
    arm(now);
    const auto at = next();
    if (!at || *at > now) return out;
    last_ = std::max(last_, *at);
    for (size_t i = 0; i < states_.size(); ++i) {
      auto& s = states_[i];
      if (s.armed == at) {
        begin(i, *at, out);
      } else if (s.end == at) {
        finish(i, *at, out);
      } else if (s.flip == at) {
        turn(i, *at, out);
      } else {
        continue;
      }
      break;
    }
  }
}

bool fault_driver::observe(size_t index, fault_effect effect, nanoseconds now) {
  TROUPE_CHECK(index < states_.size(), "fault {} of {}", index, states_.size());
  auto& s = states_[index];
  const auto& proofs = row_of(s.out.kind).proofs;
  if (!s.out.began || std::find(proofs.begin(), proofs.end(), effect) == proofs.end()) return false;
  if (!s.out.seen) s.out.seen = now;
  ++s.out.proofs;
  return true;
}

bool fault_driver::over() const { return !next(); }

std::vector<fault_outcome> fault_driver::outcomes() const {
  std::vector<fault_outcome> out;
  for (const auto& s : states_) out.push_back(s.out);
  return out;
}

std::vector<std::string> fault_driver::without_effect() const {
  std::vector<std::string> out;
  for (const auto& s : states_) {
    const auto& o = s.out;
    if (o.took_effect()) continue;
    out.push_back(
        o.began ? fmt::format("fault {} ({} of {}) had no effect: nobody saw that {} ({} of {} times)", o.name,
                              to_string(o.kind), format_node(o.target), expectation(o.kind), o.proofs, o.needed)
                : fmt::format("fault {} ({}) never began: its condition did not come", o.name, to_string(o.kind)));
  }
  return out;
}

}  // namespace troupe::sim
