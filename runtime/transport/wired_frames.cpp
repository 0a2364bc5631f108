// Connections and frames of the transport. All of it runs on the transport's thread; `take*` run inside the wire's
// progress, where nothing may be sent or closed: they only change state, which the loop then acts on.
#include <algorithm>
#include <cstring>

#include "runtime/transport/wired_transport.hpp"

namespace troupe::transport {

bool wired_transport::connect(peer_state& p) {
  auto made = wire_->connect(p.where.messages);
  if (!made) return false;
  p.out = std::move(*made);
  p.flying = {};
  p.connection = next_connection_++;
  p.dead = p.wanted = false;
  p.heard = p.progressed = p.beat = now_;
  ++count_.connections;
  auto hello = std::make_shared<flight>();
  hello->header.kind = frame::hello;
  hello->header.a = static_cast<uint64_t>(options_.deadline.count());
  hello->header.operation = p.remote;
  hello->owned.resize(address_.size());
  std::memcpy(hello->owned.data(), address_.data(), address_.size());
  p.outbox.push_front(std::move(hello));
  return true;
}

void wired_transport::close(peer_state& p) {
  p.out.reset();
  p.flying = {};
}

void wired_transport::end_connection(peer_state& p, errc code, const std::string& why) {
  const bool had = p.out != nullptr;
  // Everything of the old connection goes before any completion, which may post.
  p.remote = 0;
  p.dead = p.restarted = p.wanted = false;
  p.outbox.clear();
  p.servings.clear();
  p.puts.clear();
  p.direct.clear();
  p.mappings.clear();
  auto operations = std::exchange(p.operations, {});
  close(p);
  // In the order of posting, so that callers see a sequence that makes sense.
  std::vector<std::unique_ptr<operation>> sorted;
  for (auto& [id, op] : operations) sorted.push_back(std::move(op));
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  for (auto& op : sorted) finish(std::move(op), fail(code, "peer {}: {}", p.id.value, why));
  if (!had) return;
  ++count_.lost;
  std::lock_guard lock(handlers_mutex_);
  if (lost_handler_) lost_handler_(p.id, why);
}

void wired_transport::queue(peer_state& p, frame_header h, std::vector<std::byte> payload) {
  if (p.outbox.size() >= max_outbox) {
    p.dead = true;  // it asks and does not read: the loop ends the connection
    return;
  }
  auto f = std::make_shared<flight>();
  f->header = h;
  f->owned = std::move(payload);
  p.outbox.push_back(std::move(f));
}

void wired_transport::fly(peer_state& p, std::shared_ptr<flight> f, std::deque<uint64_t>& flying) {
  f->header.sender = identity_;
  f->header.connection = p.connection;
  const auto header = std::as_bytes(std::span(&f->header, 1));
  const auto payload = f->keep ? f->bytes : std::span<const std::byte>(f->owned);
  flying.push_back(p.out->post(header, payload, std::move(f)));
}

bool wired_transport::pump_servings(peer_state& p) {
  bool busy = false;
  while (!p.servings.empty() && p.flying.bulk.size() < bulk_window) {
    serving& s = p.servings.front();
    const wire_piece& w = s.pieces[s.next];
    auto f = std::make_shared<flight>();
    f->header.kind = frame::page;
    f->header.operation = s.operation;
    f->header.a = s.next;
    f->bytes = s.region->bytes().subspan(w.offset, w.length);
    f->keep = s.region;
    count_.served += w.length;
    fly(p, std::move(f), p.flying.bulk);
    if (++s.next == s.pieces.size()) p.servings.pop_front();
    busy = true;
  }
  return busy;
}

bool wired_transport::pump_puts(peer_state& p) {
  bool busy = false;
  while (!p.puts.empty() && p.flying.bulk.size() < bulk_window) {
    const auto found = p.operations.find(p.puts.front());
    if (found == p.operations.end() || found->second->next == found->second->pieces.size()) {
      p.puts.pop_front();  // all sent, or failed by an answer to an earlier piece
      continue;
    }
    operation& op = *found->second;
    const piece& m = op.pieces[op.next++];
    auto f = std::make_shared<flight>();
    f->header.kind = frame::put;
    f->header.operation = op.id;
    f->header.a = m.remote_offset;
    f->header.region = op.remote.id;
    f->header.generation = op.remote.generation;
    f->bytes = op.local->bytes().subspan(m.local_offset, m.length);
    f->keep = op.local;
    fly(p, std::move(f), p.flying.bulk);
    busy = true;
  }
  return busy;
}

void wired_transport::take(const frame_header& h, std::span<const std::byte> payload) {
  if (h.kind == frame::hello) return take_hello(h, payload);
  peer_state* p = nullptr;
  {
    std::lock_guard lock(peers_mutex_);
    if (const auto found = peers_.find(h.sender); found != peers_.end()) p = found->second.get();
  }
  if (!p || p->remote == 0 || p->remote != h.connection) {
    ++count_.stale;  // of a connection that has ended
    return;
  }
  p->heard = now_;
  switch (h.kind) {
    case frame::beat:
      return;
    case frame::message:
      return take_message(*p, h, payload);
    case frame::pull:
      return take_pull(*p, h, payload);
    case frame::page:
      return take_page(*p, h, payload);
    case frame::put:
      return take_put(*p, h, payload);
    case frame::put_done:
      return take_put_done(*p, h);
    case frame::message_done:
    case frame::pull_failed:
      p->progressed = now_;
      if (h.code == 0 && h.kind == frame::message_done) return finish(*p, h.operation, {});
      return finish(*p, h.operation,
                    fail(static_cast<errc>(h.code), "peer {} answered {} to operation {}", p->id.value,
                         to_string(static_cast<errc>(h.code)), h.operation));
    case frame::hello:
      return;
  }
  ++count_.stale;
}

void wired_transport::take_hello(const frame_header& h, std::span<const std::byte> payload) {
  auto where = endpoint_address::decode({reinterpret_cast<const char*>(payload.data()), payload.size()});
  if (!where || where->identity != h.sender || h.connection == 0) {
    ++count_.stale;
    return;
  }
  auto found = known(*where);
  if (!found) {
    ++count_.refused;  // too many peers: it will see no sign of life
    return;
  }
  peer_state& p = **found;
  // An answer to a connection that this side has given up: the answer to the present one will come.
  if (h.connection <= p.remote_highest || (h.operation != 0 && h.operation != p.connection)) {
    ++count_.stale;
    return;
  }
  if (p.out && p.remote != 0 && h.operation == 0) {
    // It has ended the connection that both had, so what this side waits for will not come.
    p.restarted = true;
    for (auto& [id, op] : p.operations) doomed_.push_back(std::move(op));
    p.operations.clear();
    p.servings.clear();
    p.outbox.clear();
    p.puts.clear();
    p.direct.clear();
  }
  p.wanted = !p.out || p.restarted;
  p.remote = p.remote_highest = h.connection;
  p.their_deadline = nanoseconds(static_cast<int64_t>(h.a));
  p.heard = now_;
}

void wired_transport::take_message(peer_state& p, const frame_header& h, std::span<const std::byte> payload) {
  frame_header answer;
  answer.kind = frame::message_done;
  answer.operation = h.operation;
  {
    std::lock_guard lock(handlers_mutex_);
    const auto found = handlers_.find(channel_id{static_cast<uint16_t>(h.a)});
    if (found == handlers_.end()) {
      answer.code = static_cast<uint32_t>(errc::not_found);
    } else {
      const message_handler handler = found->second;  // it may replace itself
      handler(p.id, payload);
    }
  }
  queue(p, answer, {});
}

void wired_transport::take_pull(peer_state& p, const frame_header& h, std::span<const std::byte> payload) {
  frame_header answer;
  answer.kind = frame::pull_failed;
  answer.operation = h.operation;
  serving s;
  s.operation = h.operation;
  s.region = arena_->find(h.region, h.generation);
  errc code{};
  if (!s.region) {
    code = errc::stale;
  } else if (p.servings.size() >= max_servings) {
    code = errc::exhausted;
  } else if (payload.empty() || payload.size() % sizeof(wire_piece) != 0) {
    code = errc::invalid_argument;
  } else {
    s.pieces.resize(payload.size() / sizeof(wire_piece));
    std::memcpy(s.pieces.data(), payload.data(), payload.size());
    const uint64_t have = s.region->bytes().size();
    for (const wire_piece& w : s.pieces)
      if (w.length == 0 || w.length > piece_bytes || w.length > have || w.offset > have - w.length)
        code = errc::invalid_argument;
  }
  if (code != errc{}) {
    answer.code = static_cast<uint32_t>(code);
    return queue(p, answer, {});
  }
  p.servings.push_back(std::move(s));
}

void wired_transport::take_page(peer_state& p, const frame_header& h, std::span<const std::byte> payload) {
  const auto found = p.operations.find(h.operation);
  if (found == p.operations.end()) {
    ++count_.stale;
    return;
  }
  operation& op = *found->second;
  if (h.a >= op.arrived.size() || op.arrived[h.a] || payload.size() != op.pieces[h.a].length) {
    ++count_.stale;
    return;
  }
  std::memcpy(op.local->bytes().data() + op.pieces[h.a].local_offset, payload.data(), payload.size());
  op.arrived[h.a] = true;
  p.progressed = now_;
  if (++op.finished == op.pieces.size()) finish(p, h.operation, {});
}

void wired_transport::take_put(peer_state& p, const frame_header& h, std::span<const std::byte> payload) {
  frame_header answer;
  answer.kind = frame::put_done;
  answer.operation = h.operation;
  const region_ptr region = arena_->find(h.region, h.generation);
  if (!region) {
    answer.code = static_cast<uint32_t>(errc::stale);
  } else if (payload.size() > region->bytes().size() || h.a > region->bytes().size() - payload.size()) {
    answer.code = static_cast<uint32_t>(errc::invalid_argument);
  } else {
    std::memcpy(region->bytes().data() + h.a, payload.data(), payload.size());
  }
  queue(p, answer, {});
}

void wired_transport::take_put_done(peer_state& p, const frame_header& h) {
  const auto found = p.operations.find(h.operation);
  if (found == p.operations.end()) return;  // failed by an earlier piece
  p.progressed = now_;
  if (h.code != 0)
    return finish(p, h.operation,
                  fail(static_cast<errc>(h.code), "peer {} refused a put to region {}: {}", p.id.value,
                       found->second->remote.id, to_string(static_cast<errc>(h.code))));
  if (++found->second->finished == found->second->pieces.size()) finish(p, h.operation, {});
}

}  // namespace troupe::transport
