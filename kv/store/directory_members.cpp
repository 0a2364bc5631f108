#include "kv/store/directory_members.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kv/device/shard_record.hpp"

namespace troupe::kv {
namespace {

namespace fs = std::filesystem;
using detail::folder_of;

std::string layout_file(const std::string& dir) { return dir + "/layout.json"; }

// The layout of the store that is locked.
result<store_layout> layout_of(const std::string& dir) {
  directory_options o;
  o.dir = dir;
  return directory_store::plan(o);
}

result<void> write_next(const std::string& dir, store_layout l, std::vector<store_member> members, crash_hook* crash) {
  if (l.next_target == 0) l.next_target = l.targets + 1;
  for (const auto& m : members) l.next_target = std::max(l.next_target, m.id.value + 1);
  l.targets = static_cast<uint32_t>(members.size());
  l.changed = std::move(members);
  l.epoch = storage_epoch{l.epoch.value + 1};
  if (auto r = detail::write_whole(layout_file(dir), print_layout(l)); !r) return r;
  crash_point(crash, "members.layout_written");
  return {};
}

// Everything of ours in the folder of a target that is no member.
result<void> delete_folder(const std::string& folder) {
  std::error_code ec;
  for (const auto& f : fs::directory_iterator(folder, ec)) {
    const std::string name = f.path().filename().string();
    std::error_code one;
    if (name.starts_with("chunk-") || name == "lock" || name.starts_with("generation")) fs::remove(f.path(), one);
    if (one) return fail(errc::io, "{}: {}", f.path().string(), one.message());
  }
  fs::remove(folder, ec);  // stays where it is a mount point or holds other things
  return {};
}

}  // namespace

result<std::vector<target_id>> add_targets(const std::string& dir, uint32_t count, crash_hook* crash) {
  if (auto there = layout_of(dir); !there) return fail(there.error());
  TROUPE_TRY(const auto lock, detail::directory_lock::take(dir, false));
  TROUPE_TRY(auto l, layout_of(dir));
  const uint32_t first = l.next_target ? l.next_target : l.targets + 1;
  if (count == 0 || count > max_targets || l.targets + count > max_targets || first + count - 1 > max_target_id)
    return fail(errc::invalid_argument, "{}: {} more targets; it has {}, and {} are possible", dir, count, l.targets,
                max_targets);
  auto members = l.members();
  std::vector<target_id> added;
  std::error_code ec;
  for (uint32_t i = 0; i < count; ++i) {
    const target_id id{first + i};
    const std::string folder = folder_of(dir, id);
    if (fs::exists(folder + "/chunk-00000000", ec))
      return fail(errc::invalid_argument, "{}: holds chunk files of another store or time; move them away", folder);
    fs::create_directories(folder, ec);  // it may be there: a disk that was mounted for this
    if (ec) return fail(errc::io, "{}: {}", folder, ec.message());
    members.push_back({id, false});
    added.push_back(id);
  }
  crash_point(crash, "members.folders_made");
  if (auto r = write_next(dir, std::move(l), std::move(members), crash); !r) return fail(r.error());
  return added;
}

result<void> drain_targets(const std::string& dir, const std::vector<target_id>& which, bool drain, crash_hook* crash) {
  if (auto there = layout_of(dir); !there) return fail(there.error());
  TROUPE_TRY(const auto lock, detail::directory_lock::take(dir, false));
  TROUPE_TRY(auto l, layout_of(dir));
  auto members = l.members();
  bool changed = false;
  for (const target_id id : which) {
    const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.id == id; });
    if (at == members.end())
      return fail(errc::invalid_argument,
                  "{}: the store has no target {}; `troupe kv targets ls` shows those that it has", dir, id.value);
    changed |= at->draining != drain;
    at->draining = drain;
  }
  if (!changed) return {};
  const auto left = std::count_if(members.begin(), members.end(), [](const auto& m) { return !m.draining; });
  if (left < static_cast<ptrdiff_t>(l.data + l.parity))
    return fail(errc::invalid_argument,
                "{}: {} targets would be left for new shards, {}+{} needs {}; add others first (`troupe kv targets "
                "add`)",
                dir, left, l.data, l.parity, l.data + l.parity);
  return write_next(dir, std::move(l), std::move(members), crash);
}

result<void> directory_store::forget(target_id t) {
  const std::string prefix = shard_record_prefix(t);
  for (;;) {
    write_batch batch;
    {
      TROUPE_TRY(const auto walk, database_->scan(family::shard, prefix));
      for (; walk->valid() && walk->key().starts_with(prefix) && batch.size() < 1'024; walk->next())
        batch.erase(family::shard, walk->key());
      if (auto r = walk->status(); !r) return r;
    }
    if (batch.empty()) break;
    if (auto r = database_->write(batch, sync_write::no); !r) return r;
  }
  write_batch batch;
  batch.erase(family::meta, device_record_key(t));
  return database_->write(batch, sync_write::yes);
}

result<void> remove_target(const directory_options& options, target_id which, crash_hook* crash) {
  directory_options o = options;
  o.maintain_every = nanoseconds{0};
  o.create = o.remake_missing = false;
  const std::string folder = folder_of(o.dir, which);
  {
    TROUPE_TRY(auto store, directory_store::open(o));
    const store_layout& l = store->layout();
    auto members = l.members();
    const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.id == which; });
    if (at == members.end()) {
      std::error_code ec;
      const bool was = l.next_target > which.value && which.value > 0;  // a removal that was cut
      if (!was || !fs::exists(folder, ec))
        return fail(errc::invalid_argument,
                    "{}: the store has no target {}; `troupe kv targets ls` shows those that it has", o.dir,
                    which.value);
    } else {
      if (!at->draining)
        return fail(errc::invalid_argument,
                    "{}: target {} gets new shards; empty it first with `troupe kv targets drain`", o.dir, which.value);
      uint64_t shards = 0;
      if (const auto u = store->usage(which)) shards = u->shards;
      uint64_t named = 0;
      auto walked = store->each_extent([&](const index_change& c) {
        named += static_cast<uint64_t>(std::count(c.info.targets.begin(), c.info.targets.end(), which));
        return true;
      });
      if (!walked) return walked;
      if (shards + named > 0)
        return fail(errc::invalid_argument,
                    "{}: target {} still has {} shards, and the index names {} there; `troupe kv targets drain` moves "
                    "them",
                    o.dir, which.value, shards, named);
      members.erase(at);
      // The lock is held: nobody writes there until the layout says that it is no member.
      if (auto r = write_next(o.dir, l, std::move(members), crash); !r) return r;
    }
    if (auto r = store->forget(which); !r) return r;
    crash_point(crash, "members.forgotten");
  }
  return delete_folder(folder);
}

std::vector<std::string_view> member_crash_points() {
  return {"members.folders_made", "members.layout_written", "members.forgotten"};
}

}  // namespace troupe::kv
