#include "runtime/node/storage_host.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kv/index/rocks_db.hpp"
#include "kv/index/sweep.hpp"
#include "kv/store/directory.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/node/open_model.hpp"
#include "runtime/node/store_options.hpp"
#include "runtime/transport/process_transport.hpp"

namespace troupe::node {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr nanoseconds lock_patience = std::chrono::seconds(10);  // for the life before this one to close
constexpr nanoseconds step_every = std::chrono::seconds(30);     // of the generation marks
constexpr const char* accept_file = "accept-empty";
constexpr const char* index_mark = "index-complete";  // in the database: it has not been lost since the node was made

std::string disk_folder(const std::string& dir, uint32_t disk) { return fmt::format("{}/disk-{:02}", dir, disk + 1); }

// What a node is. The layout in it is that of a store in a directory, with all targets of the cluster.
struct node_facts {
  uint32_t seat = 0, nodes = 0, disks = 0;
  kv::store_layout layout;
};

std::string print(const node_facts& f) {
  const nlohmann::ordered_json j{
      {"format", "troupe-kv-node"}, {"version", 1},     {"seat", f.seat},
      {"nodes", f.nodes},           {"disks", f.disks}, {"store", nlohmann::json::parse(kv::print_layout(f.layout))}};
  return j.dump(2) + "\n";
}

result<node_facts> parse(const std::string& text, const std::string& file) {
  const auto j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object() || j.value("format", "") != "troupe-kv-node")
    return fail(errc::corrupt, "{}: does not say what a storage node is; restore it from a backup", file);
  if (j.value("version", 0) != 1) return fail(errc::unsupported, "{}: a version that this program does not know", file);
  for (const char* key : {"seat", "nodes", "disks"})
    if (!j.contains(key) || !j[key].is_number_unsigned()) return fail(errc::corrupt, "{}: {} is missing", file, key);
  node_facts f;
  f.seat = j["seat"].get<uint32_t>();
  f.nodes = j["nodes"].get<uint32_t>();
  f.disks = j["disks"].get<uint32_t>();
  if (!j.contains("store")) return fail(errc::corrupt, "{}: store is missing", file);
  TROUPE_TRY(f.layout, kv::parse_layout(j["store"].dump(), file));
  return f;
}

// Whole or not at all, also after power loss.
result<void> write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fail(errc::io, "{}: {}", temporary, std::strerror(errno));
  const bool good = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  const int why = errno;
  ::close(fd);
  if (good && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  return fail(errc::io, "{}: {}", path, std::strerror(good ? errno : why));
}

result<void> check_same(const std::string& file, const node_facts& is, const node_facts& wanted) {
  auto differs = [&](const char* what, auto a, auto b) {
    return fail(errc::invalid_argument,
                "{}: this storage node has {} = {}, the configuration says {}; change the configuration back, or give "
                "storage.path another folder",
                file, what, a, b);
  };
  if (is.seat != wanted.seat) return differs("seat", is.seat, wanted.seat);
  if (is.disks != wanted.disks) return differs("storage.disks", is.disks, wanted.disks);
  if (is.layout.data != wanted.layout.data) return differs("storage.data", is.layout.data, wanted.layout.data);
  if (is.layout.parity != wanted.layout.parity)
    return differs("storage.parity", is.layout.parity, wanted.layout.parity);
  return kv::check_same_scheme(wanted.layout.scheme, is.layout.scheme, "the storage node in " + file);
}

// Bytes of a window snapshot of the model; 0 for a store that is not a model's.
result<uint64_t> snapshot_size(const config::settings& s) {
  if (s.engine.kind == "cost") return 0;
  if (!s.storage.fingerprint.empty() && s.storage.block_tokens != 0) return 0;
  TROUPE_TRY(auto model, open_model(s));
  return model->plan.snapshot_bytes();
}

}  // namespace

storage_host::storage_host(const config::settings& settings, uint32_t seat)
    : settings_(settings), seat_(seat), dir_(fmt::format("{}/node-{:04}", settings.storage.path, seat)) {}

storage_host::~storage_host() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void storage_host::open(std::function<void(result<actors::opened_storage>)> done) {
  users_->done = std::move(done);
  thread_ = std::thread([this] { run(); });
}

std::shared_ptr<void> storage_host::token() {
  {
    std::lock_guard lock(users_->mutex);
    ++users_->count;
  }
  return {this, [u = users_](void*) {
            std::lock_guard lock(u->mutex);
            --u->count;
            u->changed.notify_all();
          }};
}

void storage_host::stop() {
  std::function<void(result<actors::opened_storage>)> dropped;  // it refers to an actor
  std::lock_guard lock(users_->mutex);
  users_->stop = true;
  dropped.swap(users_->done);
  users_->changed.notify_all();
}

void storage_host::run() {
  auto opened = open_now();
  if (opened)
    opened->keep = token();
  else
    close_now();
  std::function<void(result<actors::opened_storage>)> done;
  {
    std::lock_guard lock(users_->mutex);
    if (!users_->stop) done = std::move(users_->done);
    users_->done = nullptr;
  }
  if (done) done(std::move(opened));
  done = nullptr;
  opened = fail(errc::cancelled, "closed");  // lets go of the token if nobody took it
  {
    std::unique_lock lock(users_->mutex);
    while (!users_->changed.wait_for(lock, step_every, [this] { return users_->stop && users_->count == 0; })) {
      lock.unlock();
      step();
      lock.lock();
    }
  }
  close_now();
  stopped_.store(true, std::memory_order_release);
}

// A copy of the index, or of a disk, that was taken before now is not the newest any more.
void storage_host::step() {
  if (present_.empty()) return;
  if (auto r = marks_.advance(*database_, present_); !r) log::warn("storage: {}", r.error().message);
}

void storage_host::close_now() {
  pool_.reset();  // runs what is queued
  step();
  present_.clear();
  plane_.reset();
  index_.reset();
  stores_.clear();
  disks_.clear();
  database_.reset();
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

result<actors::opened_storage> storage_host::open_now() {
  const auto& c = settings_.storage;
  std::error_code ec;
  fs::create_directories(dir_, ec);
  if (ec) return fail(errc::io, "{}: {}", dir_, ec.message());
  const std::string lock = dir_ + "/lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) return fail(errc::io, "{}: {}", lock, std::strerror(errno));
  for (const auto deadline = steady_clock().now() + lock_patience; ::flock(lock_, LOCK_EX | LOCK_NB) != 0;) {
    if (steady_clock().now() > deadline)
      return fail(errc::unavailable, "{}: another process has this storage node open", dir_);
    sleep_for(milliseconds(50));
  }
  node_facts wanted;
  wanted.seat = seat_;
  wanted.nodes = c.nodes;
  wanted.disks = c.disks;
  wanted.layout.data = c.data;
  wanted.layout.parity = c.parity;
  wanted.layout.targets = std::max(c.nodes * c.disks, c.data + c.parity);
  wanted.layout.chunk_bytes = c.chunk;
  wanted.layout.capacity_bytes = c.capacity;
  TROUPE_TRY(wanted.layout.scheme, storage_scheme(settings_));
  const std::string file = dir_ + "/node.json";
  if (fs::exists(file, ec)) {
    std::ifstream in(file, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    TROUPE_TRY(auto is, parse(text.str(), file));
    if (auto same = check_same(file, is, wanted); !same) return fail(same.error());
  } else {
    // A lost node.json must not turn a node into a new, empty one.
    for (uint32_t d = 0; d < c.disks; ++d)
      if (fs::exists(disk_folder(dir_, d) + "/chunk-00000000", ec))
        return fail(errc::corrupt, "{}: there are disks but no node.json; restore it from a backup", dir_);
    for (uint32_t d = 0; d < c.disks; ++d) fs::create_directories(disk_folder(dir_, d), ec);
    if (ec) return fail(errc::io, "{}: {}", dir_, ec.message());
    if (auto written = write_whole(file, print(wanted)); !written) return fail(written.error());
  }
  actors::opened_storage out;
  if (auto opened = open_database(out); !opened) return fail(opened.error());
  pool_ = std::make_unique<kv::io_pool>(c.io_threads, 65'536);

  out.scheme = wanted.layout.scheme;
  describe_storage(c, seat_, out);
  const kv::index_options i = index_options_of(c);
  TROUPE_TRY(index_, kv::block_index::open(*database_, i, kv::system_unix_clock().now(), steady_clock().now()));
  if (auto disks = open_disks(out); !disks) return fail(disks.error());
  marks_.tell(*database_, present_);
  std::string mark;
  TROUPE_TRY(const bool known, database_->get(kv::family::meta, index_mark, mark));
  uint64_t shards = 0;
  for (const auto& s : stores_) shards += s->usage().shards;
  if (!known && shards > 0) {
    out.index_lost = true;
    out.notes.push_back(fmt::format("the index was lost, {} shards are there: `troupe kv scrub` restores it", shards));
    out.index_complete = [this] {
      pool_->submit([this] {
        if (auto w = mark_index(); !w) log::warn("storage: {}", w.error().message);
      });
    };
  } else if (!known) {
    if (auto w = mark_index(); !w) return fail(w.error());
  }
  transport::options t;
  t.shared_memory = settings_.transport.shared_memory;
  t.deadline = settings_.transport.peer_deadline;
  TROUPE_TRY(auto plane, transport::make_process_transport(t));
  plane_ = std::move(plane);
  out.index = index_.get();
  out.blocking = pool_.get();
  out.wall = &kv::system_unix_clock();
  out.plane = plane_;
  TROUPE_TRY(const uint64_t snapshot, snapshot_size(settings_));
  if (snapshot > 0 && snapshot <= c.snapshots) {
    out.snapshots.entry_bytes = snapshot;
    out.snapshots.ttl = c.snapshot_ttl;
    out.snapshot_bytes = c.snapshots / snapshot * snapshot;
  }
  out.client.seed = entropy_seed();
  return out;
}

result<void> storage_host::open_database(actors::opened_storage& out) {
  kv::rocks_options r;
  r.path = dir_ + "/index";
  r.block_cache_bytes = 64ull << 20;
  r.write_buffer_bytes = 64ull << 20;
  r.sweep = kv::make_index_sweeper();
  r.clock = &kv::system_unix_clock();
  const std::string stale = r.path + ".stale";
  std::error_code ec;
  fs::remove_all(stale, ec);
  const bool there = fs::exists(r.path + "/CURRENT", ec);
  TROUPE_TRY(database_, kv::open_rocks_db(r));
  std::vector<kv::target_folder> all;
  for (uint32_t d = 0; d < settings_.storage.disks; ++d)
    all.push_back({kv::target_id{seat_ * settings_.storage.disks + d + 1}, disk_folder(dir_, d)});
  TROUPE_TRY(marks_, kv::generations::read(*database_, all));
  if (const auto what = marks_.older_index(); there && what) {
    database_.reset();
    fs::rename(r.path, stale, ec);
    if (ec) return fail(errc::io, "{}: {}; it cannot be moved away: {}", r.path, *what, ec.message());
    TROUPE_TRY(database_, kv::open_rocks_db(r));
    marks_.forget_index();
    out.notes.push_back(*what + "; it is made anew");
    fs::remove_all(stale, ec);
  }
  return marks_.begin(*database_);
}

// From now on shards without a record are orphans.
result<void> storage_host::mark_index() {
  kv::write_batch b;
  b.put(kv::family::meta, index_mark, "1");
  return database_->write(b, kv::sync_write::yes);
}

result<void> storage_host::open_disks(actors::opened_storage& out) {
  const auto& c = settings_.storage;
  std::error_code ec;
  for (uint32_t d = 0; d < c.disks; ++d) {
    const std::string folder = disk_folder(dir_, d);
    actors::opened_disk entry;
    entry.id = kv::target_id{seat_ * c.disks + d + 1};
    entry.text = folder;
    auto disk = fs::exists(folder, ec) ? kv::open_file_disk(folder)
                                       : result<std::unique_ptr<kv::disk>>(fail(
                                             errc::unavailable,
                                             "{} is gone: mount or restore it, or make an empty folder with a file "
                                             "'{}' in it to put a new disk in its place",
                                             folder, accept_file));
    if (!disk) {
      entry.text = disk.error().message;
      out.targets.push_back(std::move(entry));
      continue;
    }
    kv::shard_store_options o;
    o.target = entry.id;
    o.chunk_bytes = c.chunk;
    uint64_t existing = 0;
    for (const auto& f : fs::directory_iterator(folder, ec)) existing += f.file_size(ec);
    // Less than the file system has, so that eviction comes before the disk is full. Disks of one file system share it.
    const auto space = fs::space(folder, ec);
    const uint64_t fits = ec ? c.capacity : (space.available + existing) / 100 * 95;
    o.capacity_bytes = std::max(std::min(c.capacity, fits), c.chunk);
    o.durable = c.durability == "power" ? kv::durability::power : kv::durability::process;
    o.accept_blank_disk = fs::exists(folder + "/" + accept_file, ec);
    rng draw(entropy_seed(), entry.id.value);
    for (size_t at = 0; at < o.new_device.size(); at += 8) {
      const uint64_t v = draw.next() | 1;
      std::memcpy(o.new_device.data() + at, &v, 8);
    }
    auto store = kv::shard_store::open(**disk, *database_, o);
    if (!store) {
      entry.text =
          fmt::format("{}; a file '{}' in the folder puts this disk in its place", store.error().message, accept_file);
      out.targets.push_back(std::move(entry));
      continue;
    }
    fs::remove(folder + "/" + accept_file, ec);
    const auto& r = (*store)->report();
    if (r.rebuilt)
      out.notes.push_back(fmt::format("target {}: records rebuilt from {} shards on disk", entry.id.value, r.shards));
    if (r.repaired_headers > 0)
      out.notes.push_back(fmt::format("target {}: {} chunk headers repaired", entry.id.value, r.repaired_headers));
    if (r.dropped_records > 0)
      out.notes.push_back(
          fmt::format("target {}: {} records dropped that name no shard; scrub makes good what is missing",
                      entry.id.value, r.dropped_records));
    if (const auto older = marks_.older_disk(entry.id)) {
      TROUPE_TRY(const auto found, (*store)->rebuild());
      out.notes.push_back(fmt::format("target {}: {}; {} shards are on it, scrub makes good what is missing",
                                      entry.id.value, *older, found.shards));
    }
    present_.push_back({entry.id, folder});
    entry.store = store->get();
    entry.text = (*disk)->name();
    disks_.push_back(std::move(*disk));
    stores_.push_back(std::move(*store));
    out.targets.push_back(std::move(entry));
  }
  return {};
}

}  // namespace troupe::node
