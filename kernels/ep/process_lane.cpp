#include "kernels/ep/process_lane.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/log.hpp"
#include "runtime/transport/codec.hpp"

namespace troupe::kernels::ep {

result<std::shared_ptr<process_lane>> process_lane::make(std::shared_ptr<endpoint_core> core, const group_view& view) {
  std::shared_ptr<process_lane> l(new process_lane);
  l->core_ = std::move(core);
  l->rank_ = view.rank;
  l->inbox_bytes_ = inbox_layout(view.shape).total;
  if (l->core_->shares) {
    TROUPE_TRY(l->shared_, transport::memory::allocate(l->inbox_bytes_));
    l->inbox_ = l->shared_->bytes().data();
  } else {
    size_t room = l->inbox_bytes_ + 64;
    void* bytes = std::calloc(room, 1);
    if (!bytes) return fail(errc::exhausted, "{} B for the inbox of a rank", l->inbox_bytes_);
    l->private_ = std::shared_ptr<void>(bytes, std::free);
    l->inbox_ = static_cast<std::byte*>(std::align(64, l->inbox_bytes_, bytes, room));
  }
  const size_t ranks = view.members.size();
  l->links_.resize(ranks);
  l->direct_.resize(ranks);
  l->reported_.resize(ranks);
  l->core_->current = l.get();
  return l;
}

process_lane::~process_lane() {
  std::lock_guard lock(core_->serial);
  if (core_->current == this) core_->current = nullptr;
  direct_.clear();
  shared_.reset();
  links_.clear();
}

result<void> process_lane::send_hello(const group_view& view, uint32_t rank) {
  slot_header h;
  h.epoch = view.epoch.value;
  h.incarnation = core_->incarnation;
  h.step = core_->identity;
  h.kind = slot_kind::hello;
  h.source = rank_;
  const std::string blob = transport::blob_writer().number(inbox_bytes_).text(shared_ ? shared_->key() : "").finish();
  std::byte* at = core_->buffer(*links_[rank], blob.size(), view.connect_timeout);
  if (!at) return fail(errc::peer_lost, "rank {} is gone", rank);
  std::memcpy(at, blob.data(), blob.size());
  core_->post(*links_[rank], h, blob.size());
  return {};
}

// True when the hello of `rank` for this epoch is there; maps its region then.
bool process_lane::accept_hello(const group_view& view, uint32_t rank) {
  const auto found = core_->hellos.find(links_[rank]->where.identity);
  if (found == core_->hellos.end()) return false;
  const auto& [h, blob] = found->second;
  if (h.epoch != view.epoch.value) return false;  // of an older view; or of a newer one, and then this one is obsolete
  transport::blob_reader in(blob);
  const uint64_t bytes = in.number();
  const std::string key = in.text();
  const bool good =
      in.complete() && h.incarnation == view.members[rank].incarnation && h.source == rank && bytes == inbox_bytes_;
  core_->hellos.erase(found);
  if (!good) {
    core_->counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (shared_ && !key.empty() && links_[rank]->where.host == core_->host) {
    auto map = transport::mapping::open(key);
    if (map && (*map)->size() == inbox_bytes_)
      direct_[rank] = std::move(*map);
    else
      log::warn("EP rank {} is on this host but its memory cannot be mapped, using messages: {}", rank,
                map ? "it has another size" : map.error().message);
  }
  if (!direct_[rank]) has_message_peers_ = true;
  return true;
}

result<void> process_lane::open_link(const group_view& view, uint32_t rank) {
  TROUPE_TRY(links_[rank], core_->link(view.members[rank].address));
  return send_hello(view, rank);
}

result<void> process_lane::connect(const group_view& view, std::vector<uint32_t>& missing) {
  const nanoseconds until = steady_clock().now() + view.connect_timeout;
  missing.clear();
  core_->progress();  // learn which links of the past have died
  std::map<uint64_t, std::shared_ptr<peer_link>> kept;
  for (uint32_t r = 0; r < links_.size(); ++r) {
    if (r == rank_) continue;
    missing.push_back(r);
    if (auto ok = open_link(view, r); !ok) {
      missing = {r};
      return ok;
    }
    kept[links_[r]->where.identity] = links_[r];
  }
  core_->links = std::move(kept);  // closes those to ranks that are no members any more
  // A link of the past may turn out dead only when it is used: once each rank gets a new one.
  std::vector<bool> renewed(links_.size());
  while (!missing.empty()) {
    core_->progress();
    std::erase_if(missing, [&](uint32_t r) { return accept_hello(view, r); });
    std::vector<uint32_t> gone;
    for (const uint32_t r : missing) {
      if (!links_[r]->dead) continue;
      if (renewed[r] || !open_link(view, r)) gone.push_back(r);
      renewed[r] = true;
    }
    if (!gone.empty()) {
      missing = gone;
      return fail(errc::peer_lost, "group epoch {}: rank {} is gone", view.epoch.value, fmt::join(gone, ", "));
    }
    if (missing.empty()) break;
    if (ended) return fail(errc::cancelled, "group epoch {}: ended while connecting", view.epoch.value);
    const nanoseconds left = until - steady_clock().now();
    if (left.count() <= 0)
      return fail(errc::peer_lost, "group epoch {}: rank {} did not answer within {} ms", view.epoch.value,
                  fmt::join(missing, ", "), view.connect_timeout.count() / 1'000'000);
    core_->wire->sleep(left);
  }
  // The others wait for this rank's hello, and the engine may take its time before it progresses again.
  while (!idle() && steady_clock().now() < until) core_->progress();
  deaths_seen_ = UINT64_MAX;  // a death since is reported by the first progress
  return {};
}

void process_lane::deliver(const slot_header& header, std::span<const std::byte> payload) {
  if (sink_) {
    sink_->on_message(header, payload);
  } else if (early_.size() < links_.size() * 4) {
    early_.push_back({header, {payload.begin(), payload.end()}});
  } else {
    core_->counters->stale_headers.fetch_add(1, std::memory_order_relaxed);
  }
}

std::byte* process_lane::buffer(uint32_t rank, size_t bytes, nanoseconds limit, lane_sink& sink) {
  // What comes while this waits goes to the sink; inside progress it is set already.
  lane_sink* const before = std::exchange(sink_, &sink);
  std::byte* at = core_->buffer(*links_[rank], bytes, limit);
  sink_ = before;
  return at;
}

void process_lane::post(uint32_t rank, const slot_header& header, size_t bytes) {
  core_->post(*links_[rank], header, bytes);
}

void process_lane::progress(lane_sink& sink) {
  sink_ = &sink;
  if (!early_.empty()) {
    for (const auto& m : std::exchange(early_, {})) sink.on_message(m.header, m.payload);
  }
  core_->progress();
  sink_ = nullptr;
  if (core_->deaths == deaths_seen_) return;
  deaths_seen_ = core_->deaths;
  for (uint32_t r = 0; r < links_.size(); ++r)
    if (links_[r] && links_[r]->dead && !reported_[r]) {
      reported_[r] = true;
      sink.on_dead(r);
    }
}

bool process_lane::idle() const {
  for (const auto& l : links_)
    if (l)
      for (const auto& o : *l->out)
        if (l->under_way(o)) return false;
  return true;
}

void process_lane::flush(nanoseconds limit, lane_sink& sink) {
  const nanoseconds until = steady_clock().now() + limit;
  do progress(sink);
  while (!idle() && steady_clock().now() < until);
}

}  // namespace troupe::kernels::ep
