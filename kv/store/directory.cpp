#include "kv/store/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

namespace fs = std::filesystem;
using detail::folder_of;

}  // namespace

result<void> directory_store::open_parts() {
  const auto all = layout_.members();
  std::error_code ec;
  local_store_options s;
  s.epoch = layout_.epoch;
  uint64_t existing = 0;
  uint32_t missing = 0;
  for (const auto& m : all) {
    for (const auto& f : fs::directory_iterator(folder_of(options_.dir, m.id), ec)) existing += f.file_size(ec);
    missing += fs::exists(folder_of(options_.dir, m.id), ec) ? 0 : 1;
  }
  // Less than the file system has, so that eviction comes before the disk is full. (Targets on file systems of their
  // own share this bound; each has at least that much if they are alike.)
  const auto space = fs::space(options_.dir, ec);
  const uint64_t fits = ec ? layout_.capacity_bytes : (space.available + existing) / 100 * 95 / all.size();
  s.device.capacity_bytes = std::max(std::min(layout_.capacity_bytes, fits), layout_.chunk_bytes);
  s.device.chunk_bytes = layout_.chunk_bytes;
  s.device.durable = options_.durable;
  s.device.read_only = options_.read_only;
  const bool too_many = missing > layout_.parity;
  const bool remake = options_.remake_missing && !options_.read_only && (!too_many || options_.give_up_missing);
  const auto named = [](const std::vector<uint32_t>& list, target_id t) {
    return std::find(list.begin(), list.end(), t.value) != list.end();
  };
  for (const auto& m : all) {
    local_target_place p;
    p.id = m.id;
    p.draining = m.draining;
    p.renew = named(options_.renew, m.id);
    const std::string folder = folder_of(options_.dir, m.id);
    if (named(options_.without, m.id)) {
      p.absent = "left out on request";
    } else if (p.blank = !fs::exists(folder, ec); p.blank && !remake && !p.renew) {
      p.absent =
          folder + (too_many ? fmt::format(" is gone, {} targets in all, and the code can do without {}: mount or "
                                           "restore them; `troupe kv scrub --drop-lost` gives up what they held",
                                           missing, layout_.parity)
                             : " is gone: mount or restore it, or let `troupe kv scrub` make a new one and fill "
                               "it");
    } else if (auto d = open_file_disk(folder, options_.read_only)) {
      disks_.push_back(std::move(*d));
      p.device = disks_.back().get();
      disk_of_[p.id] = p.device;
      p.records = database_.get();
    } else {
      p.absent = d.error().message;
    }
    s.targets.push_back(std::move(p));
  }
  s.owners.push_back(database_.get());
  s.index.agent_ttl_s = s.client.agent_ttl_s = options_.agent_ttl_s;
  s.index.chatbot_ttl_s = s.client.chatbot_ttl_s = options_.chatbot_ttl_s;
  s.index.step_s = s.client.step_s = options_.step_s;
  s.index.sync = options_.durable == durability::power ? sync_write::yes : sync_write::no;
  s.index.hold_after_open = false;  // nobody else had the store open: the lock says so
  s.client.data = layout_.data;
  s.client.parity = layout_.parity;
  s.client.scheme = layout_.scheme.id();
  s.client.read_window = s.client.write_window = options_.window;
  s.client.hedge_after = options_.hedge_after;
  s.client.seed = entropy_seed();
  s.reclaim.high = options_.high;
  s.reclaim.low = options_.low;
  s.device_seed = entropy_seed();
  home_ = std::make_unique<thread_executor>();
  pool_ = std::make_unique<io_pool>(options_.io_threads, 65'536);
  TROUPE_TRY(store_, local_store::open(s, *home_, *pool_, system_unix_clock()));
  notes_.insert(notes_.end(), store_->notes().begin(), store_->notes().end());
  for (const auto& m : all) {
    if (store_->device(m.id)) continue;
    absent_.push_back(m.id);
    disk_of_.erase(m.id);
  }
  return {};
}

result<std::unique_ptr<directory_store>> directory_store::open(const directory_options& options) {
  std::unique_ptr<directory_store> s(new directory_store);
  s->options_ = options;
  if (options.read_only) {
    s->options_.create = s->options_.remake_missing = false;
    s->options_.renew.clear();
    s->options_.maintain_every = nanoseconds{0};
  }
  const std::string& dir = options.dir;
  std::error_code ec;
  if (options.io_threads == 0) return fail(errc::invalid_argument, "a store needs an I/O thread");
  if (auto possible = plan(s->options_); !possible) return fail(possible.error());
  if (!options.read_only) fs::create_directories(dir, ec);
  if (ec) return fail(errc::io, "{}: {}", dir, ec.message());
  TROUPE_TRY(s->lock_, detail::directory_lock::take(dir, options.read_only));
  TROUPE_TRY(s->layout_, plan(s->options_));  // again: nobody else can change it now
  if (!fs::exists(dir + "/layout.json", ec)) {
    // The folders first: a layout without a target's folder means that the target was lost.
    for (const auto& m : s->layout_.members()) {
      fs::create_directories(folder_of(dir, m.id), ec);
      if (ec) return fail(errc::io, "{}: {}", folder_of(dir, m.id), ec.message());
    }
    if (auto r = detail::write_whole(dir + "/layout.json", print_layout(s->layout_)); !r) return fail(r.error());
  }
  if (auto r = s->open_database(); !r) return fail(r.error());
  if (auto r = s->open_parts(); !r) return fail(r.error());
  if (!options.read_only) {
    for (const auto& t : s->present()) {
      const auto older = s->marks_.older_disk(t.target);
      if (!older) continue;
      TROUPE_TRY(const auto found, s->store_->device(t.target)->rebuild());
      s->notes_.push_back(fmt::format("target {}: {}; {} shards are on it, scrub makes good what is missing",
                                      t.target.value, *older, found.shards));
    }
    s->marks_.tell(*s->database_, s->present());
  }
  if (auto r = s->rebuild_if_lost(); !r) return fail(r.error());
  if (s->options_.maintain_every > nanoseconds{0}) {
    s->home_->post([store = s->store_.get(), every = options.maintain_every] { store->keep_maintained(every); });
    s->keep_advancing(options.maintain_every);
  }
  return s;
}

directory_store::~directory_store() {
  if (store_) {
    std::promise<void> idle;
    home_->post([&] {
      stop_advancing();
      store_->stop_maintaining([&] { store_->io().idle([&] { idle.set_value(); }); });
    });
    idle.get_future().wait();
  }
  pool_.reset();  // I/O that answers nobody any more still uses the stores
  home_.reset();
  const bool opened = store_ != nullptr;
  store_.reset();
  // A copy of the index that was taken while the store was open is not the index of the store that was closed.
  if (opened) advance_generation();
  disks_.clear();
  database_.reset();
}

result<put_chain_reply> directory_store::put(put_chain_request request) {
  auto shared = std::make_shared<put_chain_request>(std::move(request));
  return wait<put_chain_reply>(
      [shared](local_store& s, reply<put_chain_reply> back) { s.io().put(std::move(*shared), std::move(back)); });
}

result<get_chain_reply> directory_store::get(get_chain_request request) {
  auto shared = std::make_shared<get_chain_request>(std::move(request));
  return wait<get_chain_reply>(
      [shared](local_store& s, reply<get_chain_reply> back) { s.io().get(std::move(*shared), std::move(back)); });
}

result<uint64_t> directory_store::match(std::vector<block_hash> chain) {
  return wait<uint64_t>(
      [chain = std::move(chain)](local_store& s, reply<uint64_t> back) { s.io().match(chain, std::move(back)); });
}

result<reclaim_report> directory_store::maintain() {
  return wait<reclaim_report>([](local_store& s, reply<reclaim_report> back) { s.maintain(std::move(back)); });
}

std::optional<shard_usage> directory_store::usage(target_id t) {
  auto* d = store_->device(t);
  if (!d) return std::nullopt;
  return d->usage();
}

shard_usage directory_store::usage() {
  shard_usage sum;
  for (const auto& m : layout_.members()) {
    const auto u = usage(m.id);
    if (!u) continue;
    sum.capacity += u->capacity;
    sum.allocated += u->allocated;
    sum.payload += u->payload;
    sum.shards += u->shards;
    sum.chunks += u->chunks;
    sum.largest_free = std::max(sum.largest_free, u->largest_free);
  }
  return sum;
}

index_stats directory_store::stats() { return store_->index(0).stats(system_unix_clock().now()); }

client_stats directory_store::counters() {
  auto r = wait<client_stats>([](local_store& s, reply<client_stats> back) { back(s.io().stats()); });
  return r ? *r : client_stats{};
}

result<std::vector<uint32_t>> directory_store::lengths(const std::vector<block_hash>& chain) {
  auto& index = store_->index(0);
  const int64_t now = system_unix_clock().now();
  TROUPE_TRY(auto places, index.lookup(chain, now));
  std::vector<uint32_t> out;
  std::optional<block_index::extent_entry> known;
  for (const auto& p : places) {
    if (!p) break;
    if (!known || known->info.id != p->extent) {
      auto e = index.extent(p->extent, now);
      if (!e) break;
      known = std::move(*e);
    }
    out.push_back(known->info.length(p->ordinal));
  }
  return out;
}

result<std::vector<directory_store::shard_place>> directory_store::data_shards() {
  std::vector<shard_place> out;
  std::optional<error> trouble;
  auto walked = each_extent([&](const index_change& c) {
    for (uint32_t s = 0; s < c.info.data; ++s) {
      auto* store = store_->device(c.info.targets[s]);
      if (!store) continue;
      auto footer = store->stat(c.info.id, s);
      if (!footer) return trouble = footer.error(), false;
      out.push_back({disk_of_.at(c.info.targets[s]), std::move(*footer)});
    }
    return true;
  });
  if (!walked) return fail(walked.error());
  if (trouble) return fail(*trouble);
  return out;
}

result<void> directory_store::each_extent(const std::function<bool(const index_change&)>& each) {
  index_cursor at;
  while (!at.done) {
    TROUPE_TRY(auto page, store_->index(0).export_extents(at, 256, [](const block_hash&) { return true; }));
    for (const auto& c : page) {
      if (!each(c)) return {};
    }
  }
  return {};
}

}  // namespace troupe::kv
