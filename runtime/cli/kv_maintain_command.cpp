// troupe kv ls, stat, verify, scrub: what is in a store, whether it holds, and making it whole.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/cli/command.hpp"
#include "runtime/cli/kv_any_store.hpp"
#include "runtime/cli/kv_command.hpp"
#include "runtime/cli/kv_common.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

struct kv_maintain_options {
  kv_store_options store;
  uint64_t limit = 0;
  std::string grace = "0s";
  bool drop_lost = false, deep = false;
};

result<int> ls(const kv_maintain_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  kv_interrupt interrupt;
  TROUPE_TRY(auto store, kv_open(o.store, where, true));
  kv_notes("ls", *store);
  if (!o.store.json)
    fmt::print("{:<33}  {:>7}  {:>6}  {:>10}  {:>11}  {:<7}  {}\n", "extent", "first", "blocks", "bytes", "expires in",
               "class", "last block");
  const int64_t now = kv::system_unix_clock().now();
  uint64_t n = 0;
  auto walked = store->each_extent([&](const kv::index_change& c) {
    const auto& e = c.info;
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < e.count; ++b) bytes += e.length(b);
    const char* traffic = e.traffic == kv::traffic_class::agent ? "agent" : "chatbot";
    if (o.store.json) {
      json targets = json::array();
      for (auto t : e.targets) targets.push_back(t.value);
      json hashes = json::array();
      for (const auto& h : e.hashes) hashes.push_back(kv::to_string(h));
      fmt::print("{}\n", json{{"extent", kv::to_string(e.id)},
                              {"first", e.first},
                              {"blocks", e.count},
                              {"bytes", bytes},
                              {"written", e.written},
                              {"expiry", c.expiry_s},
                              {"class", traffic},
                              {"targets", targets},
                              {"hashes", hashes}}
                             .dump());
    } else {
      const int64_t left = c.expiry_s - now;
      fmt::print("{:<33}  {:>7}  {:>6}  {:>10}  {:>11}  {:<7}  {}\n", kv::to_string(e.id), e.first, e.count, bytes,
                 left < 0 ? std::string("expired") : fmt::format("{}d {:02}h", left / 86'400, left % 86'400 / 3'600),
                 traffic, kv::to_string(e.hashes.back()));
    }
    return ++n != o.limit && !kv_interrupt::set();
  });
  std::fflush(stdout);
  if (!walked) return fail(walked.error());
  return kv_interrupt::set() ? int{interrupted} : int{ok};
}

result<int> stat(const kv_maintain_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  TROUPE_TRY(auto store, kv_open(o.store, where, true));
  kv_notes("stat", *store);
  const auto& l = store->layout();
  const auto i = store->stats();
  const auto u = store->usage();
  json absent = json::array(), disks = json::array();
  for (auto t : store->absent()) absent.push_back(t.value);
  for (const auto& d : store->disks()) disks.push_back(d);
  const json j{
      {"dir", store->dir()},
      {"ec", fmt::format("{}+{}", l.data, l.parity)},
      {"targets", l.targets},
      {"absent", absent},
      {"block_tokens", l.scheme.block_tokens},
      {"epoch", l.epoch.value},
      {"disks", disks},
      {"extents", i.extents},
      {"blocks", i.blocks},
      {"block_bytes", i.bytes},
      {"expired_extents", i.expired_extents},
      {"expired_bytes", i.expired_bytes},
      {"shards", u.shards},
      {"allocated_bytes", u.allocated},
      {"capacity_bytes", u.capacity},
      {"used_percent", u.capacity ? 100.0 * static_cast<double>(u.allocated) / static_cast<double>(u.capacity) : 0.0}};
  if (o.store.json) {
    fmt::print("{}\n", j.dump());
  } else {
    for (const auto& [key, value] : j.items()) {
      std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
      if (key.ends_with("_bytes")) shown = kv_size(value.get<uint64_t>());
      if (key == "used_percent") shown = fmt::format("{:.2f} %", value.get<double>());
      if (key != "disks") fmt::print("{:<16} {}\n", key, shown);
    }
    for (const auto& d : disks) fmt::print("{:<16} {}\n", "disk", d.get<std::string>());
  }
  std::fflush(stdout);
  return int{ok};
}

void print_report(const kv::scrub_report& r, bool as_json, bool repair) {
  json absent = json::array();
  for (auto t : r.absent) absent.push_back(t.value);
  json j{{"clean", r.clean()},
         {"extents", r.extents},
         {"blocks", r.blocks},
         {"block_bytes", r.block_bytes},
         {"shards", r.shards},
         {"shard_bytes", r.shard_bytes},
         {"missing", r.missing},
         {"rotten", r.rotten},
         {"orphans", r.orphans},
         {"strays", r.strays},
         {"lost_extents", r.lost},
         {"lost_blocks", r.lost_blocks},
         {"index_findings", r.index_findings},
         {"draining_shards", r.draining},
         {"absent_targets", absent},
         {"stopped", r.stopped}};
  if (repair) {
    j["repaired"] = r.repaired();
    j["rebuilt_shards"] = r.rebuilt;
    j["adopted_shards"] = r.adopted;
    j["relocated_shards"] = r.relocated;
    j["removed_orphans"] = r.removed_orphans;
    j["kept_orphans"] = r.kept_orphans;
    j["removed_strays"] = r.removed_strays;
    j["restored_extents"] = r.restored;
    j["dropped_extents"] = r.dropped;
    j["waiting_extents"] = r.waiting;
  }
  if (as_json) {
    j["notes"] = r.notes;
    fmt::print("{}\n", j.dump());
  } else {
    for (const auto& [key, value] : j.items()) fmt::print("{:<17} {}\n", key, value.dump());
    for (const auto& n : r.notes) fmt::print("  {}\n", n);
  }
  std::fflush(stdout);
}

result<int> check(const kv_maintain_options& o, const char* name, bool repair) {
  TROUPE_TRY(auto where, o.store.resolve());
  where.remake_missing = repair && where.without.empty();
  where.give_up_missing = o.drop_lost;
  if (!repair) where.read_only = true;  // verify changes nothing
  if (o.deep) where.maintain_every = nanoseconds{0};
  TROUPE_TRY(auto grace, config::parse_duration(o.grace));
  kv_interrupt interrupt;
  auto opened = kv_open(o.store, where, false);
  if (!opened && opened.error().code == errc::stale)  // that is a finding
    return complain(fmt::format("kv {}", name), opened.error().message, failed);
  TROUPE_TRY(auto store, std::move(opened));
  kv_notes(name, *store);
  if (repair) {
    TROUPE_TRY(auto space, store->maintain());
    if (space.expired + space.evicted > 0)
      tell("troupe kv {}: {} expired and {} evicted extents gave back {}\n", name, space.expired, space.evicted,
           config::format_bytes(space.bytes));
  }
  kv::scrub_options s;
  s.repair = repair;
  s.drop_lost = o.drop_lost;
  s.orphan_grace_s = std::chrono::duration_cast<std::chrono::seconds>(grace).count();
  s.stop = std::make_shared<std::atomic<bool>>(false);
  auto progress = std::make_shared<kv_progress>(name);
  s.progress = [progress, stop = s.stop](const kv::scrub_report& r) {
    progress->show(fmt::format("{} extents, {} shards read", r.extents, r.shards));
    if (kv_interrupt::set()) *stop = true;
  };
  uint64_t unrecorded = 0;
  if (o.deep && !store->directory())
    return fail(errc::invalid_argument,
                "--deep works on a store in a directory only. A storage node notices a lost index, or an older copy of "
                "it, at its start; then `troupe kv scrub` restores it from the shards");
  if (o.deep) {
    TROUPE_TRY(const auto found, store->directory()->find_unrecorded(repair, s));
    unrecorded = found.shards;
    for (const auto& n : found.notes) tell("troupe kv {}: {}\n", name, n);
    if (unrecorded > 0)
      tell("troupe kv {}: {} shards lie in chunk files and no record names them; {}\n", name, unrecorded,
           repair ? fmt::format("{} extents came back", found.repaired->restored)
                  : "`troupe kv scrub --deep` takes them in");
  }
  TROUPE_TRY(auto report, store->scrub(s));
  print_report(report, o.store.json, repair);
  if (report.lost > report.dropped) {
    const char* todo =
        repair && o.drop_lost ? "they are kept, because a target that may hold them did not answer"
        : repair ? "they are kept: mount or restore the targets that are missing and scrub again, or give the blocks "
                   "up with --drop-lost"
                 : "mount or restore the targets that are missing; `troupe kv scrub --drop-lost` gives the blocks up";
    tell("troupe kv {}: {} blocks in {} extents have lost more shards than the code can do without; {}\n", name,
         report.lost_blocks, report.lost, todo);
  } else if (report.dropped > 0) {
    tell("troupe kv {}: {} blocks in {} extents were lost and have been dropped\n", name, report.lost_blocks,
         report.dropped);
  }
  if (report.stopped) {
    tell("troupe kv {}: stopped before the end; the report covers what was read so far\n", name);
    return int{interrupted};
  }
  return repair ? (report.repaired() ? int{ok} : int{failed})
                : (report.clean() && unrecorded == 0 ? int{ok} : int{failed});
}

}  // namespace

void add_kv_maintain(CLI::App& kv, context& ctx) {
  {
    auto o = std::make_shared<kv_maintain_options>();
    CLI::App* c = kv.add_subcommand("ls", "List the extents: rows of up to 16 blocks that are stored together");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    c->add_option("--limit", o->limit, "At most so many; 0: all")->check(CLI::NonNegativeNumber);
    c->footer("Example:\n  troupe kv ls --dir /tmp/kv");
    c->callback([o, &ctx] { kv_run(ctx, "ls", [&] { return ls(*o); }); });
  }
  {
    auto o = std::make_shared<kv_maintain_options>();
    CLI::App* c = kv.add_subcommand("stat", "What the store is and how full");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    c->footer("Example:\n  troupe kv stat --dir /tmp/kv --json");
    c->callback([o, &ctx] { kv_run(ctx, "stat", [&] { return stat(*o); }); });
  }
  {
    auto o = std::make_shared<kv_maintain_options>();
    CLI::App* c = kv.add_subcommand("verify", "Read everything and say what is missing, rotten or orphaned");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    c->add_flag("--deep", o->deep, "Read also the room that no record takes: an index may have lost what lies there");
    c->footer("Changes nothing. Exit code 1 when something is wrong.\nExample:\n  troupe kv verify --dir /tmp/kv");
    c->callback([o, &ctx] { kv_run(ctx, "verify", [&] { return check(*o, "verify", false); }); });
  }
  {
    auto o = std::make_shared<kv_maintain_options>();
    CLI::App* c = kv.add_subcommand("scrub", "Read everything and put right what can be");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    c->add_option("--grace", o->grace, "Shards without an index entry are removed when they are older than this")
        ->capture_default_str();
    c->add_flag("--deep", o->deep, "Take in also what lies in the chunk files and no record names");
    c->add_flag("--drop-lost", o->drop_lost,
                "Give up blocks that lost more shards than the code can do without, and what missing targets held");
    c->footer(
        "Rebuilds lost and rotten shards from the others, makes up to m targets anew whose folder is gone, removes\n"
        "orphans, gives back what has expired. What cannot be rebuilt is kept, as its disks may only be unmounted,\n"
        "unless --drop-lost is given. Exit code 1 when something could not be put right.\n"
        "Example:\n  troupe kv scrub --dir /tmp/kv");
    c->callback([o, &ctx] { kv_run(ctx, "scrub", [&] { return check(*o, "scrub", true); }); });
  }
}

}  // namespace troupe::cli
