// The endpoint's wire: links to peers and the handler of their messages.
#include <cstring>

#include "kernels/ep/process_lane.hpp"
#include "runtime/transport/tcp_wire.hpp"

namespace troupe::kernels::ep {

endpoint_core::~endpoint_core() { links.clear(); }

result<void> endpoint_core::open(const ep_endpoint_options& options) {
  transport::tcp_wire_options bounds;
  bounds.interface = options.interface;
  bounds.max_payload = transport::max_frame_payload;  // the shapes of later groups are not known
  TROUPE_TRY(wire, transport::open_tcp_wire(bounds));
  shares = options.shared_memory;
  wire->on_frame([this](auto header, auto payload) { receive(header, payload); });
  incarnation = options.incarnation;
  host = transport::host_identity();
  return {};
}

void endpoint_core::receive(std::span<const std::byte> header, std::span<const std::byte> payload) {
  slot_header h;
  if (header.size() != sizeof h) {
    counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::memcpy(&h, header.data(), sizeof h);
  if (h.kind == slot_kind::hello) {
    // `step` carries the sender's identity, which no header of another kind does.
    auto known = hellos.find(h.step);
    if (known == hellos.end() && hellos.size() >= max_hellos) return;
    if (known != hellos.end() && known->second.header.epoch > h.epoch) return;
    hellos[h.step] = {h, std::string(reinterpret_cast<const char*>(payload.data()), payload.size())};
  } else if (current) {
    current->deliver(h, payload);
  } else {
    counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
  }
}

void endpoint_core::note_deaths() {
  for (auto& [identity, l] : links)
    if (!l->dead && l->link->lost()) {
      l->dead = true;
      ++deaths;
    }
}

void endpoint_core::progress() {
  while (wire->progress() != 0) {
  }
  note_deaths();
}

result<std::shared_ptr<peer_link>> endpoint_core::link(const std::string& address) {
  TROUPE_TRY(const auto where, transport::endpoint_address::decode(address));
  if (auto known = links.find(where.identity); known != links.end() && !known->second->link->lost())
    return known->second;
  auto made = std::make_shared<peer_link>(address);
  made->where = where;
  TROUPE_TRY(made->link, wire->connect(where.messages));
  links[where.identity] = made;
  return made;
}

std::byte* endpoint_core::buffer(peer_link& to, size_t bytes, nanoseconds limit) {
  auto& o = (*to.out)[to.next];
  if (to.under_way(o)) {
    const nanoseconds until = steady_clock().now() + limit;
    while (to.under_way(o)) {
      progress();
      if (steady_clock().now() > until) return nullptr;
    }
  }
  if (to.dead) return nullptr;
  const size_t room = sizeof(slot_header) + bytes;
  if (o.bytes.size() < room) o.bytes.resize(room);
  return o.bytes.data() + sizeof(slot_header);
}

void endpoint_core::post(peer_link& to, const slot_header& header, size_t bytes) {
  auto& o = (*to.out)[to.next];
  o.number = to.link->post(std::as_bytes(std::span(&header, 1)),
                           std::span<const std::byte>(o.bytes).subspan(sizeof header, bytes), to.out);
  if (o.number > to.link->sent()) to.next = (to.next + 1) % peer_link::ring;
  if (to.link->lost()) note_deaths();
}

}  // namespace troupe::kernels::ep
