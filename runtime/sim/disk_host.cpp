#include "runtime/sim/disk_host.hpp"

#include <algorithm>
#include <utility>

#include "kv/device/shard_store.hpp"
#include "runtime/node/store_options.hpp"

namespace troupe::sim {
namespace {

// A memory twin with the faults of its node, that tells the worker how much passes.
class counted_disk final : public kv::disk {
 public:
  counted_disk(kv::memory_disk& d, disk_cabinet& c, std::weak_ptr<agenda_worker> w)
      : disk_(d), cabinet_(c), worker_(std::move(w)) {}
  result<std::vector<uint32_t>> chunks() override { return disk_.chunks(); }
  result<void> create(uint32_t chunk, uint64_t bytes) override {
    disk_.set_full(cabinet_.fault.full);
    auto r = disk_.create(chunk, bytes);
    cabinet_.refused += !r && cabinet_.fault.full ? 1 : 0;
    return r;
  }
  result<uint64_t> size(uint32_t chunk) override { return disk_.size(chunk); }
  result<void> write(uint32_t chunk, uint64_t offset, std::span<const std::byte> bytes) override {
    count(bytes.size());
    if (cabinet_.fault.full) {
      ++cabinet_.refused;
      return fail(errc::exhausted, "the disk is full");
    }
    if (cabinet_.draw.below(1000) < cabinet_.fault.lost_permille) {
      ++cabinet_.lost;
      disk_.lose_next(0);
    } else if (cabinet_.draw.below(1000) < cabinet_.fault.torn_permille) {
      ++cabinet_.torn;
      disk_.tear_next(0, cabinet_.draw.below(bytes.size() / 4096 + 1));
    }
    return disk_.write(chunk, offset, bytes);
  }
  result<void> read(uint32_t chunk, uint64_t offset, std::span<std::byte> out) override {
    count(out.size());
    return disk_.read(chunk, offset, out);
  }
  result<void> sync(uint32_t chunk) override { return disk_.sync(chunk); }
  result<void> remove(uint32_t chunk) override { return disk_.remove(chunk); }
  std::string name() const override { return disk_.name(); }

 private:
  void count(size_t bytes) {
    if (cabinet_.fault.slow > 1) ++cabinet_.slowed;
    if (auto w = worker_.lock()) w->moved(static_cast<uint64_t>(static_cast<double>(bytes) * cabinet_.fault.slow));
  }
  kv::memory_disk& disk_;
  disk_cabinet& cabinet_;
  const std::weak_ptr<agenda_worker> worker_;
};

constexpr uint64_t sim_chunk = 1ull << 20;  // small blocks need small chunk files

}  // namespace

void disk_cabinet::lose_power(rng& random) {
  for (auto& d : disks) d->power_loss(random);
  if (records) records->power_loss(random.below(records->unsynced() + 1));
}

bool agenda_worker::submit(kv::task t) {
  if (held_) {
    waiting_.push_back(std::move(t));
    return true;
  }
  const auto lane = static_cast<size_t>(std::min_element(free_.begin(), free_.end()) - free_.begin());
  const auto took = nanoseconds(static_cast<int64_t>(static_cast<double>(latency_.count()) * factor_));
  free_[lane] = std::max(free_[lane], agenda_.now()) + took;
  agenda_.at(free_[lane], [this, alive = alive_, lane, t = std::move(t)]() mutable {
    if (*alive) run(lane, std::move(t));
  });
  return true;
}

void agenda_worker::run(size_t lane, kv::task t) {
  if (held_) return waiting_.push_back(std::move(t));
  moved_ = 0;
  t();
  if (moved_ == 0) return;
  const double took = static_cast<double>(std::exchange(moved_, 0)) / bytes_per_ns_ * factor_;
  free_[lane] = std::max(free_[lane], agenda_.now()) + nanoseconds(static_cast<int64_t>(took));
}

void agenda_worker::hold(bool on) {
  held_ = on;
  if (on) return;
  for (auto& t : std::exchange(waiting_, {})) submit(std::move(t));
}

// What one life of the node has open.
struct disk_host::life {
  std::shared_ptr<agenda_worker> worker;
  std::vector<std::unique_ptr<counted_disk>> disks;
  std::vector<std::unique_ptr<kv::shard_store>> stores;
  std::unique_ptr<kv::block_index> index;
  std::shared_ptr<transport::transport> plane;
};

void disk_host::open(std::function<void(result<actors::opened_storage>)> done) {
  options_.events->after(std::chrono::milliseconds(1), [this, stopped = stopped_, done = std::move(done)] {
    if (!*stopped) done(open_now());
  });
}

void disk_host::freeze(bool on) {
  if (worker_) worker_->hold(on);
}

void disk_host::slow(double factor) {
  if (worker_) worker_->slow(factor);
}

result<actors::opened_storage> disk_host::open_now() {
  const auto& c = options_.storage;
  auto& cabinet = *options_.cabinet;
  auto l = std::make_shared<life>();
  worker_ = l->worker = std::make_shared<agenda_worker>(*options_.events, c.io_threads, options_.latency,
                                                        options_.bytes_per_ns / options_.scale);
  ++cabinet.lives;
  if (!cabinet.records) cabinet.records = std::make_unique<kv::memory_db>();
  actors::opened_storage out;
  node::describe_storage(c, options_.seat, out);
  out.scheme = options_.scheme;
  // A small block takes the room of a large one.
  const auto room = static_cast<uint64_t>(static_cast<double>(c.capacity) / options_.scale) / sim_chunk * sim_chunk;
  const uint64_t capacity = std::max(room, 8 * sim_chunk);
  for (uint32_t d = 0; d < c.disks; ++d) {
    actors::opened_disk entry;
    entry.id = kv::target_id{options_.seat * c.disks + d + 1};
    if (cabinet.disks.size() <= d)
      cabinet.disks.push_back(std::make_unique<kv::memory_disk>(kv::memory_disk_options{
          .capacity_bytes = capacity, .seed = options_.seed + d, .faults = {}, .crash = nullptr, .name = "memory"}));
    entry.text = "memory";
    l->disks.push_back(std::make_unique<counted_disk>(*cabinet.disks[d], cabinet, worker_));
    kv::shard_store_options s;
    s.target = entry.id;
    s.chunk_bytes = sim_chunk;
    s.capacity_bytes = capacity;
    s.durable = c.durability == "power" ? kv::durability::power : kv::durability::process;
    s.accept_blank_disk = true;
    for (size_t i = 0; i < s.new_device.size(); ++i)
      s.new_device[i] = static_cast<uint8_t>(1 + entry.id.value + 7 * cabinet.lives + i);
    auto store = kv::shard_store::open(*l->disks.back(), *cabinet.records, s);
    if (store) {
      entry.store = store->get();
      l->stores.push_back(std::move(*store));
    } else {
      entry.text = store.error().message;
    }
    out.targets.push_back(std::move(entry));
  }
  TROUPE_TRY(l->index, kv::block_index::open(*cabinet.records, node::index_options_of(c), options_.wall->now(),
                                             options_.events->now()));
  TROUPE_TRY(auto plane, options_.wires->make(options_.node, true));
  l->plane = std::move(plane);
  out.index = l->index.get();
  out.blocking = l->worker.get();
  out.wall = options_.wall;
  out.plane = l->plane;
  out.client.seed = options_.seed * 1000 + cabinet.lives;
  out.keep = l;
  return out;
}

}  // namespace troupe::sim
