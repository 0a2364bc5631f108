#include "kv/store/local_target.hpp"

#include <cstring>
#include <utility>

namespace troupe::kv {
namespace {

result<void> read_now(shard_store& store, const read_shard& request) {
  size_t bytes = 0;
  for (const auto& s : request.into) bytes += s.size();
  if (bytes == 0) return {};
  // The store checks the bytes in its own buffer; the copy out of it into the caller's memory is the only one.
  return store.read(request.at.extent, request.at.shard, request.offset, bytes, [&](std::span<const std::byte> got) {
    auto copy = [&] {
      const std::byte* from = got.data();
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
  });
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
