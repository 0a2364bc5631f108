// Rebuilding lost shards from k others.
#include <algorithm>
#include <map>

#include "kv/erasure/codec.hpp"
#include "kv/store/extent_write.hpp"
#include "kv/store/scrub_state.hpp"
#include "policies/repair_plan.hpp"

namespace troupe::kv::detail {
namespace {

// Reads k shards, makes the lost ones, puts them on `onto`, tells the index.
flow rebuild(std::shared_ptr<scrubbing> s, damage d, std::vector<target_id> sources, std::vector<target_id> onto,
             std::function<void()> done) {
  const extent_info& info = d.record.info;
  const uint64_t payload = shard_bytes(info), stride = shard_buffer_bytes(payload);
  const size_t n = std::min(d.lost.size(), onto.size());
  // A shard whose own target was chosen stays there.
  for (size_t i = 0; i < d.lost.size(); ++i) {
    const auto own = std::find(onto.begin(), onto.end(), info.targets[d.lost[i]]);
    if (own == onto.end()) continue;
    const auto at = static_cast<size_t>(own - onto.begin());
    if (i < onto.size())
      std::swap(onto[i], onto[at]);
    else
      std::swap(d.lost[i], d.lost[at]);
  }
  auto give_up = [&](const std::string& why) {
    ++s->out.waiting;
    s->note(fmt::format("extent {}: cannot be repaired now: {}", to_string(info.id), why));
  };
  std::vector<uint32_t> have;
  for (target_id t : sources) {
    for (const auto& [where, shard] : d.good) {
      if (where == t) have.push_back(shard);
    }
  }
  std::sort(have.begin(), have.end());
  auto buffers = std::make_shared<shard_buffers>();
  buffers->memory = aligned_buffer(stride * (have.size() + n));
  buffers->stride = stride;
  buffers->payload = payload;
  co_await entry_of(s->gate, s->home, stride * (have.size() + n));
  std::optional<error> trouble;
  {
    wait_group reads(s->home);
    for (size_t i = 0; i < have.size(); ++i) {
      const target_id where =
          std::find_if(d.good.begin(), d.good.end(), [&](const auto& g) { return g.second == have[i]; })->first;
      reads.add();
      read_shard r;
      r.at = {info.id, have[i]};
      r.into = {buffers->bytes(static_cast<uint32_t>(i))};
      s->who.targets.at(where)->read(std::move(r), [&reads, &trouble](result<void> got) {
        if (!got) trouble = got.error();
        reads.done();
      });
    }
    co_await reads;
  }
  auto code = codec::get(info.data, info.parity);
  if (!trouble && !code) trouble = code.error();
  if (!trouble) {
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (size_t i = 0; i < have.size(); ++i) from.push_back(buffers->bytes(static_cast<uint32_t>(i)).data());
    for (size_t i = 0; i < n; ++i) to.push_back(buffers->bytes(static_cast<uint32_t>(have.size() + i)).data());
    auto made = (*code)->reconstruct(have, from, std::span(d.lost).first(n), to, payload);
    if (!made) trouble = made.error();
  }
  if (trouble) {
    give_up(trouble->message);
    s->gate.leave(stride * (have.size() + n));
    done();
    co_return;
  }
  auto updated = std::make_shared<extent_info>(info);
  updated->epoch = s->who.epoch;
  for (size_t i = 0; i < n; ++i) updated->targets[d.lost[i]] = onto[i];
  size_t written = 0;
  {
    wait_group writes(s->home);
    for (size_t i = 0; i < n; ++i) {
      writes.add();
      const auto slice = static_cast<uint32_t>(have.size() + i);
      put_shard p;
      p.info = updated;
      p.shard = d.lost[i];
      p.payload = buffers->bytes(slice);
      p.room = buffers->room(slice);
      p.keep = buffers;
      s->who.targets.at(onto[i])->put(std::move(p), [&, i](result<void> r) {
        if (r) {
          ++written;
        } else {
          trouble = r.error();
          updated->targets[d.lost[i]] = target_id{0};  // where it was may have become the place of another one
        }
        writes.done();
      });
    }
    co_await writes;
  }
  crash_point(s->options.crash, "scrub.shards_written");
  s->out.rebuilt += written;
  if (trouble)
    give_up(trouble->message);
  else if (n < d.lost.size())
    give_up(fmt::format("{} shards find no free target", d.lost.size() - n));
  if (written > 0 && updated->targets != info.targets) {
    index_change record = d.record;
    record.kind = index_change::kind_t::move;  // an extent that was reclaimed meanwhile stays gone
    record.info = *updated;
    co_await signal_of([&](std::function<void()> back) { tell_moved(s, d.owners, record, back); });
    crash_point(s->options.crash, "scrub.indexed");
    for (const auto& [t, shard] : d.rotten) {
      if (updated->targets[shard] == t) continue;
      const target_id where = t;
      const shard_key key{info.id, shard};
      co_await answer_of<void>([&](reply<void> back) { s->who.targets.at(where)->remove({key}, back); });
    }
  }
  s->gate.leave(stride * (have.size() + n));
  done();
}

}  // namespace

flow relocate(std::shared_ptr<scrubbing> s, damage* d, std::function<void()> done) {
  const uint64_t payload = shard_bytes(d->record.info), stride = shard_buffer_bytes(payload);
  std::shared_ptr<shard_buffers> buffer;
  for (auto& [where, shard] : d->good) {
    if (takes_new(s->who, where)) continue;
    // A free place by the plan for this extent; shards that are where they belong stay.
    auto current = d->record.info.targets;
    current[shard] = target_id{0};
    auto next = place(s->who, d->record.info.id, d->record.info.data, d->record.info.parity, current);
    target_id onto{0};
    for (size_t i = 0; next && i < next->size(); ++i) {
      const bool held = std::find(current.begin(), current.end(), (*next)[i]) != current.end();
      if (!held && !s->walk->absent().contains((*next)[i])) onto = (*next)[i];
    }
    std::optional<error> trouble;
    if (onto == target_id{0}) trouble = next ? error{errc::unavailable, "no other target is free"} : next.error();
    if (!trouble) {
      if (!buffer) {  // within what the walk let this extent into the gate for
        buffer = std::make_shared<shard_buffers>();
        buffer->memory = aligned_buffer(stride);
        buffer->stride = stride;
        buffer->payload = payload;
      }
      read_shard r;
      r.at = {d->record.info.id, shard};
      r.into = {buffer->bytes(0)};
      target* from = s->who.targets.at(where);
      const auto got = co_await answer_of<void>([&](reply<void> back) { from->read(r, back); });
      if (!got) trouble = got.error();
    }
    auto updated = std::make_shared<extent_info>(d->record.info);
    updated->epoch = s->who.epoch;
    updated->targets[shard] = onto;
    if (!trouble) {
      put_shard p;
      p.info = updated;
      p.shard = shard;
      p.payload = buffer->bytes(0);
      p.room = buffer->room(0);
      p.keep = buffer;
      target* to = s->who.targets.at(onto);
      const auto put = co_await answer_of<void>([&](reply<void> back) { to->put(p, back); });
      if (!put) trouble = put.error();
    }
    if (trouble) {
      ++s->out.waiting;
      s->note(fmt::format("extent {}: shard {} cannot leave target {}: {}", to_string(d->record.info.id), shard,
                          where.value, trouble->message));
      continue;
    }
    crash_point(s->options.crash, "scrub.copied");
    d->record.info = *updated;
    index_change record = d->record;
    record.kind = index_change::kind_t::move;
    co_await signal_of([&](std::function<void()> back) { tell_moved(s, d->owners, record, back); });
    crash_point(s->options.crash, "scrub.relocated");
    const shard_key old{d->record.info.id, shard};
    target* from = s->who.targets.at(where);
    co_await answer_of<void>([&](reply<void> back) { from->remove({old}, back); });
    where = onto;
    ++s->out.relocated;
  }
  s->home.post(done);
}

flow repair_all(std::shared_ptr<scrubbing> s, std::function<void()> done) {
  auto todo = std::make_shared<std::vector<damage>>(std::move(s->damaged));
  s->damaged.clear();
  if (todo->empty() || s->stop()) {
    s->home.post(done);
    co_return;
  }
  // One plan for all: the most endangered first, reads spread over the holders. Bytes bound memory elsewhere (the
  // gate), so the budgets are open.
  policies::repair_input in;
  for (const auto& node : s->who.placing) {
    if (s->walk->absent().contains(target_id{static_cast<uint32_t>(node.id)})) continue;
    in.nodes.push_back({node.id, node.domain, UINT64_MAX / 4, UINT64_MAX / 4});
  }
  for (size_t i = 0; i < todo->size(); ++i) {
    const damage& d = (*todo)[i];
    policies::repair_extent e;
    e.id = i + 1;
    e.data = d.record.info.data;
    e.shard_bytes = shard_bytes(d.record.info);
    for (const auto& [t, shard] : d.good) {
      (void)shard;
      e.holders.push_back(t.value);
    }
    e.missing = static_cast<uint32_t>(d.lost.size());
    in.extents.push_back(std::move(e));
  }
  auto plan = policies::plan_repair(in);
  if (!plan) {
    s->out.waiting += todo->size();
    s->note("repair: " + plan.error().message);
    s->home.post(done);
    co_return;
  }
  std::vector<bool> planned(todo->size(), false);
  {
    wait_group group(s->home);
    for (const auto& task : plan->tasks) {
      planned[task.extent - 1] = true;
      std::vector<target_id> sources, onto;
      for (uint64_t t : task.sources) sources.push_back(target_id{static_cast<uint32_t>(t)});
      for (uint64_t t : task.targets) onto.push_back(target_id{static_cast<uint32_t>(t)});
      group.add();
      rebuild(s, std::move((*todo)[task.extent - 1]), std::move(sources), std::move(onto), [&group] { group.done(); });
    }
    co_await group;
  }
  for (size_t i = 0; i < planned.size(); ++i) {
    if (planned[i]) continue;
    ++s->out.waiting;
    s->note(fmt::format("extent {}: no free target for its {} lost shards", to_string((*todo)[i].record.info.id),
                        (*todo)[i].lost.size()));
  }
  s->home.post(done);
}

}  // namespace troupe::kv::detail
