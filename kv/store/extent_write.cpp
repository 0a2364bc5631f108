#include "kv/store/extent_write.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::kv {

aligned_buffer extent_memory::take(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    for (size_t i = free_.size(); i-- > 0;) {
      // Much larger ones would waste memory on small extents.
      if (free_[i].size() < bytes || free_[i].size() > 4 * bytes + run_bytes) continue;
      aligned_buffer b = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<ptrdiff_t>(i));
      return b;
    }
  }
  return source_ ? source_(bytes) : aligned_buffer(bytes);
}

void extent_memory::give_back(aligned_buffer b) {
  std::lock_guard lock(mutex_);
  if (free_.size() >= keep_ && !free_.empty()) free_.erase(free_.begin());
  if (free_.size() < keep_) free_.push_back(std::move(b));
}

result<shard_buffers> make_shards(extent_info& info, std::span<const std::span<const std::byte>> blocks,
                                  extent_memory& pool) {
  TROUPE_CHECK(blocks.size() == info.count, "{} blocks for an extent of {}", blocks.size(), info.count);
  TROUPE_TRY(auto code, codec::get(info.data, info.parity));
  shard_buffers out;
  out.payload = shard_bytes(info);
  out.stride = shard_buffer_bytes(out.payload);
  out.memory = pool.take(out.stride * info.shards());
  info.block_crcs.clear();
  // Copies `n` bytes (zeros where `from` is null) to data offset `at`, across shards.
  auto place_bytes = [&](uint64_t at, const std::byte* from, uint64_t n) {
    while (n > 0) {
      const uint64_t shard = at / out.payload, inside = at % out.payload, step = std::min(n, out.payload - inside);
      std::byte* to = out.memory.data() + shard * out.stride + inside;
      if (from) {
        std::memcpy(to, from, step);
        from += step;
      } else {
        std::memset(to, 0, step);
      }
      at += step;
      n -= step;
    }
  };
  for (uint32_t i = 0; i < info.count; ++i) {
    TROUPE_CHECK(blocks[i].size() == info.length(i), "block {}: {} bytes, {} stated", i, blocks[i].size(),
                 info.length(i));
    const uint64_t at = uint64_t{i} * info.block_bytes;
    place_bytes(at, blocks[i].data(), blocks[i].size());
    place_bytes(at + blocks[i].size(), nullptr, info.block_bytes - blocks[i].size());
    info.block_crcs.push_back(crc32c(blocks[i]));
  }
  const uint64_t end = uint64_t{info.count} * info.block_bytes;
  place_bytes(end, nullptr, out.payload * info.data - end);
  std::vector<const std::byte*> data;
  std::vector<std::byte*> parity;
  for (uint32_t s = 0; s < info.data; ++s) data.push_back(out.bytes(s).data());
  for (uint32_t s = info.data; s < info.shards(); ++s) parity.push_back(out.bytes(s).data());
  if (auto r = code->encode(data, parity, out.payload); !r) return fail(std::move(r.error()));
  return out;
}

namespace {

// One write under way.
struct writing : std::enable_shared_from_this<writing> {
  std::shared_ptr<extent_info> info;  // targets change while it runs; every put has a copy of its own
  std::shared_ptr<const shard_buffers> shards;
  const members* who = nullptr;
  executor* home = nullptr;
  std::function<void(result<extent_info>)> done;
  std::vector<target_id> refused;  // targets that are not asked again
  std::vector<bool> written;
  uint32_t open = 0;
  std::optional<error> trouble;

  void send(uint32_t shard) {
    ++open;
    put_shard p;
    p.info = std::make_shared<const extent_info>(*info);
    p.shard = shard;
    p.payload = shards->bytes(shard);
    p.room = shards->room(shard);
    p.keep = shards;
    auto it = who->targets.find(info->targets[shard]);
    TROUPE_CHECK(it != who->targets.end(), "target {} was placed but is no member", info->targets[shard].value);
    it->second->put(std::move(p), [self = shared_from_this(), shard](result<void> r) { self->answered(shard, r); });
  }

  void answered(uint32_t shard, const result<void>& r) {
    --open;
    if (r) {
      written[shard] = true;
    } else if (!trouble) {
      // Another target, which holds nothing of this extent yet.
      refused.push_back(info->targets[shard]);
      auto current = info->targets;
      current[shard] = target_id{0};
      auto next = place(*who, info->id, info->data, info->parity, current, refused);
      // Shards that are written stay where they are; only a free place for this one is taken from the new plan.
      target_id instead{0};
      if (next) {
        for (target_id t : *next) {
          if (std::find(current.begin(), current.end(), t) == current.end()) instead = t;
        }
      }
      if (instead != target_id{0}) {
        info->targets[shard] = instead;
        send(shard);
      } else {
        trouble = r.error();
        trouble->message =
            fmt::format("extent of {} blocks: shard {} could not be stored, and no other target is left: {}",
                        info->count, shard, trouble->message);
      }
    }
    if (open == 0) end();
  }

  void end() {
    if (!trouble) return done(std::move(*info));
    auto left = std::make_shared<uint32_t>(1);
    auto finish = [self = shared_from_this(), left] {
      if (--*left == 0) self->done(fail(*self->trouble));
    };
    for (uint32_t s = 0; s < written.size(); ++s) {
      if (!written[s]) continue;
      ++*left;
      who->targets.at(info->targets[s])->remove({{info->id, s}}, [finish](result<void>) { finish(); });
    }
    finish();
  }
};

}  // namespace

void write_shards(extent_info info, std::shared_ptr<const shard_buffers> shards, const members& who, executor& home,
                  std::function<void(result<extent_info>)> done) {
  auto placed = place(who, info.id, info.data, info.parity);
  if (!placed) {
    home.post([done = std::move(done), e = placed.error()] { done(fail(e)); });
    return;
  }
  info.targets = std::move(*placed);
  auto w = std::make_shared<writing>();
  w->written.assign(info.shards(), false);
  w->info = std::make_shared<extent_info>(std::move(info));
  w->shards = std::move(shards);
  w->who = &who;
  w->home = &home;
  w->done = std::move(done);
  for (uint32_t s = 0; s < w->info->shards(); ++s) w->send(s);
}

void remove_shards(const extent_info& info, const members& who, executor& home, std::function<void()> done) {
  auto left = std::make_shared<uint32_t>(1);
  auto answered = [left, done = std::move(done)] {
    if (--*left == 0) done();
  };
  for (uint32_t s = 0; s < info.shards(); ++s) {
    auto it = who.targets.find(info.targets[s]);
    if (it == who.targets.end()) continue;
    ++*left;
    it->second->remove({{info.id, s}}, [answered](result<void>) { answered(); });
  }
  home.post(answered);
}

}  // namespace troupe::kv
