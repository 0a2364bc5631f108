// The endpoint's UCX worker: links to peers and the handler of their messages.
#include <cstring>

#include "kernels/ep/ucx_lane.hpp"

namespace troupe::kernels::ep {
namespace {

constexpr unsigned message_id = 1;

}  // namespace

namespace ucx = transport::ucx;

peer_link::~peer_link() {
  if (!guard) return;
  for (const auto& o : *out) got_through |= o.request && ucp_request_check_status(o.request) == UCS_OK;
  if (got_through) guard->settle();
  guard->keep(out);
  guard.reset();  // completes what is on its way; only then may `out` go
}

ucx_core::~ucx_core() {
  links.clear();
  sleeper.reset();
}

result<void> ucx_core::open(const ep_endpoint_options& options) {
  TROUPE_TRY(messages, ucx::node::messages(options.interface));
  if (options.shared_memory) {
    TROUPE_TRY(shared, ucx::node::shared_memory());
  }
  TROUPE_TRY(outgoing, ucx::node::messages(options.interface));
  TROUPE_TRY(sleeper, ucx::sleeper::make(*messages, *outgoing));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message_id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &ucx_core::receive;
  handler.arg = this;
  if (const auto s = ucp_worker_set_am_recv_handler(messages->worker(), &handler); s != UCS_OK)
    return ucx::ucx_failure("ucp_worker_set_am_recv_handler", s);
  incarnation = options.incarnation;
  host = ucx::host_identity();
  return {};
}

ucs_status_t ucx_core::receive(void* arg, const void* header, size_t header_length, void* data, size_t length,
                               const ucp_am_recv_param_t* param) {
  auto* self = static_cast<ucx_core*>(arg);
  // Every message is sent eagerly; a rendezvous announcement is none of ours.
  if (header_length != sizeof(slot_header) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    self->counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return UCS_OK;
  }
  slot_header h;
  std::memcpy(&h, header, sizeof h);
  if (h.kind == slot_kind::hello) {
    // `step` carries the sender's identity, which no header of another kind does.
    auto known = self->hellos.find(h.step);
    if (known == self->hellos.end() && self->hellos.size() >= max_hellos) return UCS_OK;
    if (known != self->hellos.end() && known->second.header.epoch > h.epoch) return UCS_OK;
    self->hellos[h.step] = {h, std::string(static_cast<const char*>(data), length)};
  } else if (self->current) {
    self->current->deliver(h, {static_cast<const std::byte*>(data), length});
  } else {
    self->counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
  }
  return UCS_OK;
}

result<std::shared_ptr<peer_link>> ucx_core::link(const std::string& address) {
  TROUPE_TRY(const auto where, ucx::endpoint_address::decode(address));
  if (auto known = links.find(where.identity); known != links.end() && !known->second->dead) return known->second;
  auto made = std::make_shared<peer_link>(address);
  made->where = where;
  TROUPE_TRY(made->guard, ucx::guard::connect(*outgoing, where.messages, [this, raw = made.get()](ucs_status_t) {
               raw->dead = true;
               ++deaths;
             }));
  links[where.identity] = made;
  return made;
}

std::byte* ucx_core::buffer(peer_link& to, size_t bytes, nanoseconds limit) {
  auto& o = (*to.out)[to.next];
  if (o.request) {
    const nanoseconds until = steady_clock().now() + limit;
    while (!to.dead && ucp_request_check_status(o.request) == UCS_INPROGRESS) {
      progress();
      if (steady_clock().now() > until) return nullptr;
    }
    if (to.dead) return nullptr;
    to.got_through |= ucp_request_check_status(o.request) == UCS_OK;
    ucp_request_free(o.request);
    o.request = nullptr;
  }
  if (to.dead) return nullptr;
  const size_t room = sizeof(slot_header) + bytes;
  if (o.bytes.size() < room) o.bytes.resize(room);
  return o.bytes.data() + sizeof(slot_header);
}

void ucx_core::post(peer_link& to, const slot_header& header, size_t bytes) {
  auto& o = (*to.out)[to.next];
  std::memcpy(o.bytes.data(), &header, sizeof header);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  void* request = ucp_am_send_nbx(to.guard->endpoint(), message_id, o.bytes.data(), sizeof header,
                                  o.bytes.data() + sizeof header, bytes, &params);
  if (UCS_PTR_IS_ERR(request)) {
    if (!to.dead) {
      to.dead = true;
      ++deaths;
    }
    return;
  }
  if (request) {
    o.request = request;
    to.next = (to.next + 1) % peer_link::ring;
  } else {
    to.got_through = true;
  }
}

}  // namespace troupe::kernels::ep
