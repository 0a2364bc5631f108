#include "kv/store/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kv/index/rocks_db.hpp"
#include "kv/index/sweep.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

namespace fs = std::filesystem;

// In the database: written when the index is complete. Without it the index was deleted, or its rebuild was cut.
constexpr const char* index_mark = "index-complete";

std::string folder_of(const std::string& dir, uint32_t target) { return fmt::format("{}/target-{:04}", dir, target); }

std::string system_error() { return std::strerror(errno); }

// The file appears whole or not at all, also after power loss.
result<void> write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail(errc::io, "{}: {}", temporary, system_error());
  size_t at = 0;
  bool good = true;
  while (good && at < text.size()) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    good = n > 0;
    at += good ? static_cast<size_t>(n) : 0;
  }
  good = good && ::fsync(fd) == 0;
  const std::string why = good ? "" : system_error();
  ::close(fd);
  if (good && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  return fail(errc::io, "{}: {}", path, good ? system_error() : why);
}

result<std::string> read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return fail(errc::io, "{}: {}", path, system_error());
  return text.str();
}

// Whether a name may be in the directory of a store that is about to be made: what a cut attempt leaves, and what
// belongs to a file system or to targets that are mounted already.
bool expected_name(const std::string& name) {
  return name == "lock" || name == "layout.json.new" || name == "lost+found" || name.starts_with("target-");
}

// The layout of a store that is not there yet, or why none can be.
result<store_layout> new_layout(const directory_options& options) {
  const auto& e = options.expect;
  const std::string& dir = options.dir;
  std::error_code ec;
  // A lost layout must not turn a store into a new, empty one.
  for (uint32_t t = 1; t <= 255; ++t) {
    if (fs::exists(folder_of(dir, t) + "/chunk-00000000", ec))
      return fail(errc::corrupt, "{}: there are targets but no layout.json; restore it from a backup", dir);
  }
  if (!options.create) return fail(errc::not_found, "{}: there is no store; `troupe kv put` makes one", dir);
  if (fs::exists(dir, ec)) {
    if (!fs::is_directory(dir, ec)) return fail(errc::invalid_argument, "{}: is not a directory", dir);
    for (const auto& f : fs::directory_iterator(dir, ec)) {
      const std::string name = f.path().filename().string();
      if (!expected_name(name))
        return fail(errc::invalid_argument,
                    "{}: holds no store but other things ('{}'); a new store needs a directory of its own", dir, name);
    }
    if (ec) return fail(errc::io, "{}: {}", dir, ec.message());
  }
  store_layout l;
  l.data = e.data.value_or(l.data);
  l.parity = e.parity.value_or(l.parity);
  l.targets = e.targets.value_or(l.data + l.parity);
  l.scheme = e.scheme.value_or(l.scheme);
  if (e.block_tokens) l.scheme.block_tokens = *e.block_tokens;
  if (e.fingerprint) l.scheme.fingerprint = *e.fingerprint;
  l.chunk_bytes = e.chunk_bytes.value_or(options.chunk_bytes.value_or(l.chunk_bytes));
  l.capacity_bytes = options.capacity_bytes.value_or(l.capacity_bytes);
  // A chunk that was asked for is compared with the capacity below; else one chunk is the least.
  if (!e.chunk_bytes) l.capacity_bytes = std::max(l.capacity_bytes, l.chunk_bytes);
  if (l.data < 1 || l.data > max_data_shards || l.parity > max_parity_shards)
    return fail(errc::invalid_argument, "a code of {}+{}: 1 to {} data and 0 to {} parity shards are possible", l.data,
                l.parity, max_data_shards, max_parity_shards);
  if (l.targets < l.data + l.parity || l.targets > 255)
    return fail(errc::invalid_argument, "{} targets for {}+{}: at least {} are needed, 255 are possible", l.targets,
                l.data, l.parity, l.data + l.parity);
  if (e.capacity_bytes) l.capacity_bytes = *e.capacity_bytes;
  if (l.capacity_bytes < l.chunk_bytes)
    return fail(errc::invalid_argument,
                "a capacity of {} bytes for each target is less than one chunk ({} bytes); more, or a smaller chunk "
                "(at least 1 MiB), is needed",
                l.capacity_bytes, l.chunk_bytes);
  if (l.chunk_bytes < min_chunk_bytes || l.chunk_bytes > max_chunk_bytes || l.chunk_bytes % run_bytes != 0)
    return fail(errc::invalid_argument, "chunk files of {} bytes: 1 MiB to 16 GiB, a multiple of 4 KiB", l.chunk_bytes);
  return l;
}

}  // namespace

result<store_layout> directory_store::plan(const directory_options& options) {
  const auto& e = options.expect;
  const std::string& dir = options.dir;
  if (dir.empty()) return fail(errc::invalid_argument, "no directory was given");
  const std::string file = dir + "/layout.json";
  std::error_code ec;
  store_layout l;
  if (fs::exists(file, ec)) {
    TROUPE_TRY(auto text, read_whole(file));
    TROUPE_TRY(l, parse_layout(text, file));
  } else {
    TROUPE_TRY(l, new_layout(options));
  }
  const auto differs = [&](const char* what, const auto& wanted, const auto& is) {
    return fail(errc::invalid_argument,
                "{}: the store has {} = {}, not {}; leave the option out or use another directory", dir, what, is,
                wanted);
  };
  if (e.data && *e.data != l.data) return differs("data shards", *e.data, l.data);
  if (e.parity && *e.parity != l.parity) return differs("parity shards", *e.parity, l.parity);
  if (e.targets && *e.targets != l.targets) return differs("targets", *e.targets, l.targets);
  if (e.chunk_bytes && *e.chunk_bytes != l.chunk_bytes) return differs("chunk bytes", *e.chunk_bytes, l.chunk_bytes);
  if (e.capacity_bytes && *e.capacity_bytes != l.capacity_bytes)
    return differs("capacity bytes", *e.capacity_bytes, l.capacity_bytes);
  if (e.block_tokens && *e.block_tokens != l.scheme.block_tokens)
    return differs("block size in tokens", *e.block_tokens, l.scheme.block_tokens);
  if (e.scheme || e.fingerprint) {
    hash_scheme wanted = e.scheme.value_or(l.scheme);
    if (e.fingerprint) wanted.fingerprint = *e.fingerprint;
    if (auto same = check_same_scheme(wanted, l.scheme, "the store in " + dir); !same) return fail(same.error());
  }
  for (uint32_t t : options.without) {
    if (t < 1 || t > l.targets)
      return fail(errc::invalid_argument, "{}: target {} cannot be left out; the store has targets 1 to {}", dir, t,
                  l.targets);
  }
  return l;
}

result<void> directory_store::open_parts() {
  std::error_code ec;
  rocks_options r;
  r.path = options_.dir + "/index";
  r.block_cache_bytes = 64ull << 20;
  r.write_buffer_bytes = 64ull << 20;
  r.sweep = make_index_sweeper();
  r.clock = &system_unix_clock();
  TROUPE_TRY(database_, open_rocks_db(r));

  local_store_options s;
  uint64_t existing = 0;
  for (uint32_t t = 1; t <= layout_.targets; ++t) {
    for (const auto& f : fs::directory_iterator(folder_of(options_.dir, t), ec)) existing += f.file_size(ec);
  }
  // Less than the file system has, so that eviction comes before the disk is full. (Targets on file systems of their
  // own share this bound; each has at least that much if they are alike.)
  const auto space = fs::space(options_.dir, ec);
  const uint64_t fits = ec ? layout_.capacity_bytes : (space.available + existing) / 100 * 95 / layout_.targets;
  s.device.capacity_bytes = std::max(std::min(layout_.capacity_bytes, fits), layout_.chunk_bytes);
  s.device.chunk_bytes = layout_.chunk_bytes;
  s.device.durable = options_.durable;
  uint32_t missing = 0;
  for (uint32_t t = 1; t <= layout_.targets; ++t) missing += fs::exists(folder_of(options_.dir, t), ec) ? 0 : 1;
  const bool too_many = missing > layout_.parity;
  const bool remake = options_.remake_missing && (!too_many || options_.give_up_missing);
  for (uint32_t t = 1; t <= layout_.targets; ++t) {
    local_target_place p;
    p.id = target_id{t};
    const std::string folder = folder_of(options_.dir, t);
    const bool left_out = std::find(options_.without.begin(), options_.without.end(), t) != options_.without.end();
    if (left_out) {
      p.absent = "left out on request";
    } else if (p.blank = !fs::exists(folder, ec); p.blank && !remake) {
      p.absent =
          folder + (too_many ? fmt::format(" is gone, {} targets in all, and the code can do without {}: mount or "
                                           "restore them; `troupe kv scrub --drop-lost` gives up what they held",
                                           missing, layout_.parity)
                             : " is gone: mount or restore it, or let `troupe kv scrub` make a new one and fill "
                               "it");
    } else if (auto d = open_file_disk(folder)) {
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
  notes_ = store_->notes();
  for (uint32_t t = 1; t <= layout_.targets; ++t) {
    if (!store_->device(target_id{t})) absent_.push_back(target_id{t});
  }
  return {};
}

result<void> directory_store::rebuild_if_lost() {
  std::string value;
  TROUPE_TRY(bool complete, database_->get(family::meta, index_mark, value));
  if (complete) return {};
  uint64_t shards = usage().shards;
  if (shards > 0) {
    scrub_options o;
    o.repair = true;
    o.restore = true;
    o.orphan_grace_s = 0;
    TROUPE_TRY(rebuilt_, scrub(o));
    notes_.push_back(fmt::format("the index was lost: {} extents with {} blocks came back from {} shards",
                                 rebuilt_->restored, rebuilt_->blocks, shards));
    if (!rebuilt_->absent.empty()) return {};  // not complete: the absent targets may hold the rest
  }
  write_batch b;
  b.put(family::meta, index_mark, "1");
  return database_->write(b, sync_write::yes);
}

result<std::unique_ptr<directory_store>> directory_store::open(const directory_options& options) {
  std::unique_ptr<directory_store> s(new directory_store);
  s->options_ = options;
  std::error_code ec;
  if (options.io_threads == 0) return fail(errc::invalid_argument, "a store needs an I/O thread");
  if (auto possible = plan(options); !possible) return fail(possible.error());
  fs::create_directories(options.dir, ec);
  if (ec) return fail(errc::io, "{}: {}", options.dir, ec.message());
  const std::string lock = options.dir + "/lock";
  s->lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (s->lock_ < 0) return fail(errc::io, "{}: {}", lock, system_error());
  if (::flock(s->lock_, LOCK_EX | LOCK_NB) != 0)
    return fail(errc::unavailable, "{}: another process has the store open; one at a time may", options.dir);
  TROUPE_TRY(s->layout_, plan(options));  // again: nobody else can change it now
  if (!fs::exists(options.dir + "/layout.json", ec)) {
    // The folders first: a layout without a target's folder means that the target was lost.
    for (uint32_t t = 1; t <= s->layout_.targets; ++t) {
      fs::create_directories(folder_of(options.dir, t), ec);
      if (ec) return fail(errc::io, "{}: {}", folder_of(options.dir, t), ec.message());
    }
    if (auto r = write_whole(options.dir + "/layout.json", print_layout(s->layout_)); !r) return fail(r.error());
  }
  if (auto r = s->open_parts(); !r) return fail(r.error());
  if (auto r = s->rebuild_if_lost(); !r) return fail(r.error());
  if (options.maintain_every > nanoseconds{0})
    s->home_->post([store = s->store_.get(), every = options.maintain_every] { store->keep_maintained(every); });
  return s;
}

directory_store::~directory_store() {
  if (store_) {
    std::promise<void> idle;
    home_->post([&] { store_->stop_maintaining([&] { store_->io().idle([&] { idle.set_value(); }); }); });
    idle.get_future().wait();
  }
  pool_.reset();  // I/O that answers nobody any more still uses the stores
  home_.reset();
  store_.reset();
  disks_.clear();
  database_.reset();
  if (lock_ >= 0) ::close(lock_);
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

result<scrub_report> directory_store::scrub(scrub_options options) {
  return wait<scrub_report>([options](local_store& s, reply<scrub_report> back) { s.scrub(options, std::move(back)); });
}

result<reclaim_report> directory_store::maintain() {
  return wait<reclaim_report>([](local_store& s, reply<reclaim_report> back) { s.maintain(std::move(back)); });
}

shard_usage directory_store::usage() {
  shard_usage sum;
  for (uint32_t t = 1; t <= layout_.targets; ++t) {
    auto* d = store_->device(target_id{t});
    if (!d) continue;
    const auto u = d->usage();
    sum.capacity += u.capacity;
    sum.allocated += u.allocated;
    sum.payload += u.payload;
    sum.shards += u.shards;
    sum.chunks += u.chunks;
    sum.largest_free = std::max(sum.largest_free, u.largest_free);
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
