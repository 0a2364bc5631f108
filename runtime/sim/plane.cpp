#include "runtime/sim/plane.hpp"

namespace troupe::sim {

plane::plane(agenda& a, uint64_t seed, link_faults& faults, plane_options options)
    : agenda_(a),
      faults_(faults),
      options_(options),
      times_(a, seed, 5, options.link, faults),
      clock_(a),
      wires_(transport::make_loopback_network(clock_, seed, this)) {}

plane::~plane() { *alive_ = false; }

result<std::unique_ptr<transport::transport>> plane::make(size_t node, bool scaled) {
  transport::options o;
  o.deadline = options_.deadline;
  o.max_peers = 65'536;
  o.max_operations = 65'536;
  return wires_->make(o, static_cast<transport::endpoint_owner>(node * 2 + (scaled ? 1 : 0)));
}

void plane::carry(transport::endpoint_owner from, transport::endpoint_owner to, uint64_t bytes,
                  std::function<void()> arrive) {
  const size_t a = from / 2, b = to / 2;
  if ((from | to) & 1) bytes = static_cast<uint64_t>(static_cast<double>(bytes) * options_.scale);
  bytes_ += bytes;
  agenda_.at(times_.arrival(a, b, bytes), [this, alive = alive_, a, b, arrive = std::move(arrive)]() mutable {
    if (!*alive) return;
    if (silent_.contains(b)) return give_up(a, b);
    if (faults_.is_cut(a, b)) {
      faults_.swallowed(a, b);
      return give_up(a, b);
    }
    if (frozen_.contains(b)) look_for_stalled();
    // A frozen endpoint keeps what comes by itself, so that its deadline is seen.
    if (faults_.is_frozen(b)) return arrive();
    faults_.let_through(a, b, std::move(arrive));
  });
}

void plane::give_up(size_t from, size_t to) {
  if (!doubted_.insert({from, to}).second) return;
  agenda_.after(options_.deadline, [this, alive = alive_, from, to] {
    if (!*alive) return;
    doubted_.erase({from, to});
    break_link(from, to);
  });
}

void plane::kill(size_t node, bool silent) {
  freeze(node, false);
  for (const auto owner : {node * 2, node * 2 + 1})
    wires_->kill_all(static_cast<transport::endpoint_owner>(owner), silent);
  if (silent) silent_.insert(node);
}

void plane::freeze(size_t node, bool on) {
  if (on)
    frozen_.insert(node);
  else
    frozen_.erase(node);
  for (const auto owner : {node * 2, node * 2 + 1}) {
    wires_->stall_all(static_cast<transport::endpoint_owner>(owner), on);
  }
  if (on) return look_for_stalled();
  // What waited at its end happens now.
  agenda_.after(nanoseconds{0}, [this, alive = alive_] {
    if (*alive) wires_->drain();
  });
}

void plane::look_for_stalled() {
  if (looking_ || frozen_.empty()) return;
  looking_ = true;
  agenda_.after(options_.deadline / 8, [this, alive = alive_] {
    if (!*alive) return;
    looking_ = false;
    wires_->drain();
    look_for_stalled();
  });
}

void plane::break_link(size_t a, size_t b) {
  for (const size_t x : {a * 2, a * 2 + 1})
    for (const size_t y : {b * 2, b * 2 + 1})
      wires_->sever(static_cast<transport::endpoint_owner>(x), static_cast<transport::endpoint_owner>(y),
                    "no sign of life from the peer within the deadline");
}

}  // namespace troupe::sim
