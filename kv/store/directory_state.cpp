// Whether the index of a directory store is there, complete, and not an older copy.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kv/index/rocks_db.hpp"
#include "kv/index/sweep.hpp"
#include "kv/store/directory.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

namespace fs = std::filesystem;
using detail::folder_of;

// Keys in `meta`. The state is written when the index is complete, or as complete as it can be; without it the index
// was deleted, or its rebuild was cut.
constexpr const char* state_key = "index-complete";
constexpr std::string_view complete_text = "1", partial_text = "partial:";

}  // namespace

result<void> directory_store::open_database() {
  const std::string path = options_.dir + "/index", stale = path + ".stale";
  std::error_code ec;
  rocks_options r;
  r.path = path;
  r.block_cache_bytes = 64ull << 20;
  r.write_buffer_bytes = 64ull << 20;
  r.read_only = options_.read_only;
  if (!options_.read_only) {
    r.sweep = make_index_sweeper();
    r.clock = &system_unix_clock();
    fs::remove_all(stale, ec);
  }
  const bool there = fs::exists(path + "/CURRENT", ec);
  const auto refuse = [&](const std::string& what) {
    return fail(errc::stale,
                "{}: {}; a command that may write rebuilds it from the shards, for example `troupe kv scrub`", path,
                what);
  };
  if (!there && options_.read_only) return refuse("the index is gone");
  TROUPE_TRY(database_, open_rocks_db(r));

  std::vector<target_folder> all;
  for (const auto& m : layout_.members()) all.push_back({m.id, folder_of(options_.dir, m.id)});
  TROUPE_TRY(marks_, generations::read(*database_, all));
  if (const auto what = marks_.older_index(); there && what) {
    if (options_.read_only) return refuse(*what);
    database_.reset();
    fs::rename(path, stale, ec);
    if (ec) return fail(errc::io, "{}: {}; it cannot be moved away: {}", path, *what, ec.message());
    TROUPE_TRY(database_, open_rocks_db(r));
    marks_.forget_index();
    notes_.push_back(*what + "; it is rebuilt from the shards");
    fs::remove_all(stale, ec);
  }
  if (options_.read_only) return {};
  return marks_.begin(*database_);
}

std::vector<target_folder> directory_store::present() const {
  std::vector<target_folder> out;
  for (const auto& [t, d] : disk_of_) out.push_back({t, folder_of(options_.dir, t)});
  return out;
}

void directory_store::advance_generation() {
  if (!options_.read_only) (void)marks_.advance(*database_, present());
}

// A copy of the index that was taken while the store was open is older than the targets after `every` at the latest,
// also when the process is killed then.
struct directory_store::pulse : std::enable_shared_from_this<pulse> {
  directory_store* store = nullptr;  // on the executor; null: stopped
  nanoseconds every{0};

  void wait() {
    store->home_->post_after(every, [self = shared_from_this()] { self->tick(); });
  }
  void tick() {
    if (!store) return;
    // The pool ends before the executor and the store.
    const bool taken = store->pool_->submit([self = shared_from_this(), of = store] {
      of->advance_generation();
      of->home_->post([self] {
        if (self->store) self->wait();
      });
    });
    if (!taken) wait();
  }
};

void directory_store::keep_advancing(nanoseconds every) {
  pulse_ = std::make_shared<pulse>();
  pulse_->store = this;
  pulse_->every = every;
  home_->post([p = pulse_] {
    if (p->store) p->wait();
  });
}

void directory_store::stop_advancing() {
  if (pulse_) pulse_->store = nullptr;
}

result<directory_store::index_state> directory_store::read_state() const {
  index_state s;
  std::string value;
  TROUPE_TRY(s.known, database_->get(family::meta, state_key, value));
  s.partial = s.known && value != complete_text;
  if (!s.partial) return s;
  if (!value.starts_with(partial_text)) return index_state{};  // not ours: rebuilt
  uint32_t id = 0;
  for (const char c : value.substr(partial_text.size())) {
    if (c >= '0' && c <= '9') {
      id = id * 10 + static_cast<uint32_t>(c - '0');
    } else {
      s.without.push_back(target_id{id});
      id = 0;
    }
  }
  return s;
}

result<void> directory_store::write_state(const index_state& s) {
  std::string text(s.partial ? partial_text : complete_text);
  for (const auto t : s.without) text += fmt::format("{},", t.value);
  write_batch b;
  if (s.known)
    b.put(family::meta, state_key, text);
  else
    b.erase(family::meta, state_key);
  if (auto r = database_->write(b, sync_write::yes); !r) return r;
  state_ = s;
  return {};
}

// After a scrub that restored: what it could not restore may come back with the targets that were absent.
result<void> directory_store::settle_state(const scrub_report& r) {
  if (r.stopped) return {};
  index_state s;
  s.known = true;
  s.partial = !r.absent.empty() || r.kept_orphans > 0;
  s.without = r.absent;
  return write_state(s);
}

result<void> directory_store::rebuild_if_lost() {
  TROUPE_TRY(state_, read_state());
  const bool back = std::any_of(state_.without.begin(), state_.without.end(), [&](target_id t) {
    return std::find(absent_.begin(), absent_.end(), t) == absent_.end();
  });
  if (state_.known && !back) return {};
  if (options_.read_only) {
    if (state_.known) return {};
    return fail(errc::stale,
                "{}/index: the index is not complete; a command that may write rebuilds it from the shards, for "
                "example `troupe kv scrub`",
                options_.dir);
  }
  const bool was_known = state_.known;
  state_.partial = true;
  const uint64_t shards = usage().shards;
  scrub_report empty;
  empty.absent = absent_;
  if (shards == 0) return settle_state(empty);
  scrub_options o;
  o.repair = true;
  o.orphan_grace_s = 0;
  TROUPE_TRY(rebuilt_, scrub(o));
  if (rebuilt_->restored > 0 || !was_known)
    notes_.push_back(fmt::format("the index was lost: {} extents came back from {} shards; it has {} blocks now",
                                 rebuilt_->restored, shards, rebuilt_->blocks));
  if (rebuilt_->lost > 0)
    notes_.push_back(fmt::format("{} blocks lack too many shards and are kept", rebuilt_->lost_blocks));
  return {};
}

result<scrub_report> directory_store::scrub(scrub_options options) {
  bool restores = state_.partial;
  options.restore |= restores;
  if (options.repair)
    options.before_index_repair = [this, &restores] {
      restores = true;
      return write_state({});
    };
  auto r =
      wait<scrub_report>([options](local_store& s, reply<scrub_report> back) { s.scrub(options, std::move(back)); });
  if (r && options.repair && restores) {
    if (auto written = settle_state(*r); !written) return fail(written.error());
  }
  return r;
}

result<directory_store::unrecorded_report> directory_store::find_unrecorded(bool repair, const scrub_options& how) {
  unrecorded_report out;
  bool again = false;
  for (const auto& m : layout_.members()) {
    shard_store* device = store_->device(m.id);
    if (!device) continue;
    uint64_t here = 0;
    const auto found = device->find_unrecorded([&](const shard_footer& f) {
      ++here;
      if (out.notes.size() < 100)
        out.notes.push_back(
            fmt::format("target {}: chunk {}, run {} holds shard {} of extent {} with {} blocks, which "
                        "no record names",
                        m.id.value, f.chunk, f.first_run, f.shard, to_string(f.extent.id), f.extent.count));
      return !(how.stop && *how.stop);
    });
    if (!found) return fail(found.error());
    out.shards += here;
    if (here == 0 || !repair) continue;
    if (!again) {
      if (auto r = write_state({}); !r) return fail(r.error());  // a cut from here on: the next open goes on
      state_.partial = again = true;
    }
    if (auto r = device->rebuild(); !r) return fail(r.error());
  }
  if (!again) return out;
  scrub_options o = how;
  o.repair = true;
  TROUPE_TRY(out.repaired, scrub(o));
  return out;
}

}  // namespace troupe::kv
