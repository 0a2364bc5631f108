#include "runtime/transport/transport.hpp"

#include <algorithm>

#include "runtime/transport/codec.hpp"
#include "runtime/transport/detail.hpp"

namespace troupe::transport {
namespace {

constexpr uint64_t region_magic = 0x31'4e'4f'49'47'45'52'54;  // "TREGION1", version in the last digit

}  // namespace

std::string remote_region::encode() const {
  return blob_writer()
      .number(region_magic)
      .number(owner)
      .number(id)
      .number(generation)
      .number(base)
      .number(length)
      .text(key)
      .finish();
}

result<remote_region> remote_region::decode(std::string_view bytes) {
  blob_reader in(bytes);
  remote_region r;
  const bool magic = in.number() == region_magic;
  r.owner = in.number();
  r.id = in.number();
  r.generation = in.number();
  r.base = in.number();
  r.length = in.number();
  r.key = in.text();
  if (!magic || !in.complete())
    return fail(errc::corrupt, "a region descriptor of {} B is truncated or of another version", bytes.size());
  return r;
}

completion pending::callback() const {
  return [s = state_](result<void> r) {
    {
      std::lock_guard lock(s->mutex);
      s->value = std::move(r);
      s->done.store(true, std::memory_order_release);
    }
    s->changed.notify_all();
  };
}

bool pending::wait(nanoseconds limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit, [&] { return done(); });
}

result<std::vector<piece>> cut_pieces(const memory_region& local, const remote_region& remote, uint64_t page_bytes,
                                      const std::vector<page_move>& pages, uint64_t most) {
  std::vector<piece> out;
  out.reserve(pages.size());
  const uint64_t here = local.bytes().size();
  for (const page_move& p : pages) {
    if (page_bytes > remote.length || p.remote_offset > remote.length - page_bytes)
      return fail(errc::invalid_argument, "remote range [{}, +{}) leaves a region of {} B", p.remote_offset, page_bytes,
                  remote.length);
    if (page_bytes > here || p.local_offset > here - page_bytes)
      return fail(errc::invalid_argument, "local range [{}, +{}) leaves a region of {} B", p.local_offset, page_bytes,
                  here);
    for (uint64_t at = 0; at < page_bytes; at += most)
      out.push_back(
          {p.remote_offset + at, p.local_offset + at, static_cast<uint32_t>(std::min(most, page_bytes - at))});
  }
  return out;
}

result<void> check_options(const options& o) {
  if (o.deadline < std::chrono::milliseconds(20))
    return fail(errc::invalid_argument, "transport: a deadline of {} ns is below 20 ms", o.deadline.count());
  if (o.max_operations < 1 || o.max_peers < 1 || o.max_pages < 1 || o.max_message < 1 || o.max_message > (1u << 30))
    return fail(errc::invalid_argument, "transport: every limit must be at least 1, max_message at most 1 GiB");
  return {};
}

}  // namespace troupe::transport
