#include "kv/store/local_target.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/device/aligned_buffer.hpp"

namespace troupe::kv {
namespace {

// Where a read of the thread lands before it is handed on; as large as the largest read so far.
std::span<std::byte> bounce(size_t bytes) {
  thread_local aligned_buffer buffer;
  if (buffer.size() < bytes) buffer = aligned_buffer(bytes);
  return buffer.bytes().first(bytes);
}

result<void> read_now(shard_store& store, const read_shard& request) {
  size_t bytes = 0;
  for (const auto& s : request.into) bytes += s.size();
  if (bytes == 0) return {};
  // From the start of a run on, so that the store can read and check into the bounce buffer without a copy of its own.
  const uint64_t start = request.offset / run_bytes * run_bytes;
  const size_t lead = request.offset - start;
  auto whole = bounce(lead + bytes);
  if (auto r = store.read(request.at.extent, request.at.shard, start, whole); !r) return r;
  auto copy = [&] {
    const std::byte* from = whole.data() + lead;
    for (const auto& s : request.into) {
      if (!s.empty()) std::memcpy(s.data(), from, s.size());
      from += s.size();
    }
  };
  if (request.guard) {
    request.guard->deliver(copy);
  } else {
    copy();
  }
  return {};
}

}  // namespace

template <class T, class F>
void local_target::run(reply<T> done, F work) {
  auto shared = std::make_shared<reply<T>>(std::move(done));  // one copy, whoever ends up calling it
  const bool taken = blocking_.submit([this, shared, work = std::move(work)]() mutable {
    auto outcome = std::make_shared<result<T>>(work());
    // Moved, not copied: what the answer holds is released on the executor, never here.
    home_.post([shared = std::move(shared), outcome = std::move(outcome)] { (*shared)(std::move(*outcome)); });
  });
  if (taken) return;
  home_.post([shared, id = id_] {
    (*shared)(fail(errc::exhausted, "target {}: its queue is full; send less at a time", id.value));
  });
}

void local_target::put(put_shard request, reply<void> done) {
  run<void>(std::move(done), [this, request = std::move(request)]() -> result<void> {
    shard_put one;
    one.extent = request.info.get();
    one.shard = request.shard;
    one.payload = request.payload;
    one.room = request.room;
    return store_.put(std::span(&one, 1));
  });
}

void local_target::read(read_shard request, reply<void> done) {
  run<void>(std::move(done), [this, request = std::move(request)] { return read_now(store_, request); });
}

void local_target::remove(std::vector<shard_key> shards, reply<void> done) {
  run<void>(std::move(done), [this, shards = std::move(shards)]() -> result<void> {
    auto n = store_.remove(shards);
    if (!n) return fail(std::move(n.error()));
    return {};
  });
}

void local_target::list(std::optional<shard_key> after, size_t limit, reply<std::vector<shard_footer>> done) {
  run<std::vector<shard_footer>>(std::move(done), [this, after, limit] { return store_.list(after, limit); });
}

void local_target::check(shard_key at, reply<void> done) {
  run<void>(std::move(done), [this, at] { return store_.check(at.extent, at.shard); });
}

void local_target::usage(reply<shard_usage> done) {
  run<shard_usage>(std::move(done), [this]() -> result<shard_usage> { return store_.usage(); });
}

}  // namespace troupe::kv
