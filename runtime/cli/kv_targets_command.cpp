// troupe kv targets: which targets a store has; adding, emptying and removing them.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "kv/store/directory_members.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/kv_any_store.hpp"
#include "runtime/cli/kv_command.hpp"
#include "runtime/cli/kv_common.hpp"
#include "runtime/node/cluster_store.hpp"

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

struct kv_targets_options {
  kv_store_options store;
  uint32_t count = 1;
  std::vector<uint32_t> ids;
  bool back = false;
};

struct target_row {
  uint32_t target = 0;
  bool draining = false;
  std::optional<kv::shard_usage> usage;  // nothing: absent
  std::string disk;
};

void print_rows(const std::vector<target_row>& rows, uint64_t epoch, bool as_json) {
  if (!as_json)
    fmt::print("{:<6}  {:<8}  {:>9}  {:>10}  {:>10}  {}\n", "target", "state", "shards", "allocated", "capacity",
               "disk");
  json all = json::array();
  for (const auto& r : rows) {
    const auto& u = r.usage;
    const char* state = !u ? "absent" : r.draining ? "draining" : "active";
    if (as_json) {
      json one{{"target", r.target}, {"state", state}, {"draining", r.draining}};
      if (u) {
        one["shards"] = u->shards;
        one["allocated_bytes"] = u->allocated;
        one["capacity_bytes"] = u->capacity;
        one["disk"] = r.disk;
      }
      all.push_back(std::move(one));
    } else if (u) {
      fmt::print("{:<6}  {:<8}  {:>9}  {:>10}  {:>10}  {}\n", r.target, state, u->shards, kv_size(u->allocated),
                 kv_size(u->capacity), r.disk);
    } else {
      fmt::print("{:<6}  {:<8}  {}\n", r.target, r.draining ? "absent, draining" : state, r.disk);
    }
  }
  if (as_json) fmt::print("{}\n", json{{"epoch", epoch}, {"targets", all}}.dump());
  std::fflush(stdout);
}

result<int> list(const kv_targets_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  std::vector<target_row> rows;
  if (o.store.on_cluster()) {
    TROUPE_TRY(auto store, kv_open_cluster(o.store, where));
    for (auto& t : store->targets()) rows.push_back({t.id.value, false, t.usage, std::move(t.text)});
    print_rows(rows, store->layout().epoch.value, o.store.json);
    return int{ok};
  }
  TROUPE_TRY(auto store, kv_open_to_look(where));
  kv_notes("targets", *store);
  for (const auto& m : store->layout().members()) {
    const auto u = store->usage(m.id);
    rows.push_back({m.id.value, m.draining, u, u ? store->disk_name(m.id) : ""});
  }
  print_rows(rows, store->layout().epoch.value, o.store.json);
  return int{ok};
}

result<int> add(const kv_targets_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  TROUPE_TRY(const auto added, kv::add_targets(where.dir, o.count));
  std::string text;
  for (const auto t : added) text += fmt::format("{}target {}", text.empty() ? "" : ", ", t.value);
  tell("troupe kv targets add: {}; new blocks go there too, what is stored stays where it is\n", text);
  return int{ok};
}

std::vector<kv::target_id> named(const kv_targets_options& o) {
  std::vector<kv::target_id> out;
  for (const uint32_t id : o.ids) out.push_back(kv::target_id{id});
  return out;
}

result<int> drain(const kv_targets_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  if (auto r = kv::drain_targets(where.dir, named(o), !o.back); !r) return fail(r.error());
  if (o.back) {
    for (const auto t : named(o)) tell("troupe kv targets drain: target {} gets new blocks\n", t.value);
    return int{ok};
  }
  kv_interrupt interrupt;
  TROUPE_TRY(auto store, kv::directory_store::open(where));
  kv_notes("targets drain", *store);
  TROUPE_TRY(auto space, store->maintain());
  (void)space;
  kv::scrub_options s;
  s.repair = true;
  s.stop = std::make_shared<std::atomic<bool>>(false);
  auto progress = std::make_shared<kv_progress>("targets drain");
  s.progress = [progress, stop = s.stop](const kv::scrub_report& r) {
    progress->show(fmt::format("{} extents, {} shards moved", r.extents, r.relocated));
    if (kv_interrupt::set()) *stop = true;
  };
  TROUPE_TRY(const auto report, store->scrub(s));
  for (const auto& n : report.notes) tell("troupe kv targets drain: {}\n", n);
  uint64_t left = 0;
  for (const auto t : named(o)) {
    if (const auto u = store->usage(t)) left += u->shards;
  }
  tell("troupe kv targets drain: {} shards moved, {} left\n", report.relocated + report.rebuilt, left);
  if (report.stopped) return int{interrupted};
  if (left == 0 && report.repaired()) return int{ok};
  return complain("kv targets drain", "not done: the notes say why; it goes on when it is called again", failed);
}

result<int> remove(const kv_targets_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  for (const auto t : named(o)) {
    if (auto r = kv::remove_target(where, t); !r) return fail(r.error());
    tell("troupe kv targets remove: target {} is no part of the store any more\n", t.value);
  }
  return int{ok};
}

result<int> renew(const kv_targets_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  where.renew = o.ids;
  TROUPE_TRY(auto store, kv::directory_store::open(where));
  kv_notes("targets renew", *store);
  for (const auto t : named(o)) {
    const auto u = store->usage(t);
    if (u && store->notes().empty() && u->shards > 0) {
      tell("troupe kv targets renew: target {} is as the store knows it, with {} shards\n", t.value, u->shards);
      continue;
    }
    if (!u) return complain("kv targets renew", fmt::format("target {} is still absent", t.value), failed);
    tell("troupe kv targets renew: target {} begins with {} shards; `troupe kv scrub` makes good the rest\n", t.value,
         u->shards);
  }
  return int{ok};
}

}  // namespace

void add_kv_targets(CLI::App& kv, context& ctx) {
  CLI::App* group = kv.add_subcommand("targets", "The targets of a store: list, add, empty and remove them");
  group->require_subcommand(1);
  group->footer(
      "A change is one step, with a storage epoch of its own; nobody else may have the store open meanwhile.\n"
      "Example: put the data of target 2 elsewhere and take it out:\n"
      "  troupe kv targets add --dir /tmp/kv\n"
      "  troupe kv targets drain --dir /tmp/kv 2\n"
      "  troupe kv targets remove --dir /tmp/kv 2");
  const auto command = [&](const char* name, const char* text, auto run) {
    auto o = std::make_shared<kv_targets_options>();
    CLI::App* c = group->add_subcommand(name, text);
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    c->callback([o, name, run, &ctx] {
      const bool changes = std::string_view(name) != "ls";
      auto r = changes && o->store.on_cluster()
                   ? result<int>(fail(errc::invalid_argument,
                                      "the targets of a cluster are storage.nodes times storage.disks of its "
                                      "configuration, fixed at its start; only `ls` works on it"))
                   : run(*o);
      ctx.result = r ? *r : kv_fail(fmt::format("targets {}", name), r.error());
    });
    return std::make_pair(o, c);
  };
  const auto ids = [](auto made) {
    made.second->add_option("targets", made.first->ids, "Numbers of the targets, e.g. 2 3")->required();
    return made;
  };
  command("ls", "List the targets", list);
  auto added = command("add", "Add empty targets: a folder each, which may be a mount point", add);
  added.second->add_option("--count", added.first->count, "How many")->check(CLI::Range(1, 255))->capture_default_str();
  auto drained = ids(command("drain", "Move what targets hold to the others; they get nothing new", drain));
  drained.second->add_flag("--back", drained.first->back, "Take that back: they get new blocks again");
  ids(command("remove", "Take drained targets out of the store and delete their files", remove));
  ids(command("renew", "Take a target's folder as it is: a new disk, or one of another place", renew))
      .second->footer(
          "What the store knows of the shards there is dropped, and made anew from what the folder holds. Then\n"
          "`troupe kv scrub` fills up what is missing.");
}

}  // namespace troupe::cli
