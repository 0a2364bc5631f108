#include "actors/serving/rank_snapshots.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {

void rank_snapshots::configure(uint32_t places, uint64_t bytes) {
  if (!in_use_.empty()) return;
  in_use_.assign(places, false);
  free_ = places;
  bytes_ = bytes;
}

// `but`: so many must stay free.
std::optional<uint32_t> rank_snapshots::take_place(uint32_t but) {
  if (free_ <= but) return std::nullopt;
  const auto it = std::find(in_use_.begin(), in_use_.end(), false);
  *it = true;
  --free_;
  return static_cast<uint32_t>(it - in_use_.begin());
}

void rank_snapshots::free(uint32_t place) {
  TROUPE_CHECK(place < in_use_.size() && in_use_[place], "place {} of {} is not in use", place, in_use_.size());
  in_use_[place] = false;
  ++free_;
}

void rank_snapshots::free(const std::vector<uint32_t>& places) {
  for (const uint32_t p : places) free(p);
}

void rank_snapshots::prepare(kernels::step_plan& plan, std::vector<uint32_t>& places) {
  for (auto& s : plan.sequences) {
    std::erase_if(s.snapshots, [&](kernels::snapshot_place& w) {
      // A quarter is for reads: a tier that is slow to take must not keep prompts from starting.
      const auto place = take_place(static_cast<uint32_t>(in_use_.size()) / 4);
      if (!place) {
        ++counts_.dropped;
        return true;
      }
      w.place = *place;
      places.push_back(*place);
      return false;
    });
  }
}

void rank_snapshots::taken(const kernels::step_result& r, std::vector<uint32_t>& places) {
  for (const auto& s : r.sequences) {
    for (const auto& t : s.snapshots) {
      TROUPE_CHECK(std::erase(places, t.place) == 1, "a snapshot in place {}, which is not of its plan", t.place);
      ++counts_.taken;
    }
  }
}

void rank_snapshots::write(const snapshot_write& m) {
  const auto memory = options_.host->snapshots();
  if (m.where.at.tokens == 0 || !options_.prefix.store || memory.region.empty()) return free(m.place);
  snapshot_offer o;
  o.request = m.request;
  o.where = m.where;
  o.older = m.older;
  o.source.address = memory.address;
  o.source.region = memory.region;
  o.source.offset = m.place * bytes_;
  o.source.bytes = bytes_;
  o.source.crc = m.crc;
  writes_.insert(m.place);
  rank_actor me = caf::actor_cast<rank_actor>(self_);
  options_.prefix.store->put_snapshot(std::move(o), [me, place = m.place](result<void> r) {
    post(me, snapshot_event{place, snapshot_stage::put, r ? status{} : to_status(r.error()), {}});
  });
}

bool rank_snapshots::begin(uint64_t number, const snapshot_key& key) {
  ++counts_.reads;
  const auto place = options_.prefix.store && !options_.host->snapshots().region.empty() ? take_place(0) : std::nullopt;
  if (!place) {
    ++counts_.read_failed;
    return false;
  }
  reads_[number].place = *place;
  rank_actor me = caf::actor_cast<rank_actor>(self_);
  options_.prefix.store->open_snapshot(key, [me, number](result<snapshot_source> r) {
    post(me, snapshot_event{number, snapshot_stage::opened, r ? status{} : to_status(r.error()),
                            r ? std::move(*r) : snapshot_source{}});
  });
  return true;
}

void rank_snapshots::drop(uint64_t number, bool late) {
  const auto it = reads_.find(number);
  if (it == reads_.end() || !it->second.wanted) return;
  if (it->second.here) {
    free(it->second.place);
    reads_.erase(it);
    return;
  }
  counts_.read_failed += late;
  counts_.read_late += late;
  it->second.wanted = false;  // something may still be written there
}

std::optional<uint32_t> rank_snapshots::take(uint64_t number) {
  const auto it = reads_.find(number);
  if (it == reads_.end() || !it->second.here) return std::nullopt;
  const uint32_t place = it->second.place;
  reads_.erase(it);
  return place;
}

void rank_snapshots::ended(std::map<uint64_t, reading>::iterator it, const status& outcome) {
  const uint64_t number = it->first;
  if (!it->second.wanted || !outcome.ok()) {
    const bool wanted = it->second.wanted;
    free(it->second.place);
    reads_.erase(it);
    if (!wanted) return;
    ++counts_.read_failed;
    log::info("{}: a window snapshot did not come, windows are computed: {}", options_.assignment.seat(), outcome.text);
    return read_(number, false);
  }
  it->second.here = true;
  counts_.bytes_in += bytes_;
  read_(number, true);
}

void rank_snapshots::finished(const snapshot_event& m) {
  if (m.stage == snapshot_stage::put) {
    const auto it = writes_.find(static_cast<uint32_t>(m.number));
    if (it == writes_.end()) return;
    free(*it);
    writes_.erase(it);
    counts_.stored += m.outcome.ok();
    counts_.write_failed += !m.outcome.ok();
    counts_.bytes_out += m.outcome.ok() ? bytes_ : 0;
    if (!m.outcome.ok())
      log::debug("{}: a window snapshot is not kept: {}", options_.assignment.seat(), m.outcome.text);
    return;
  }
  const auto it = reads_.find(m.number);
  if (it == reads_.end()) return;
  reading& r = it->second;
  if (m.stage == snapshot_stage::opened) {
    if (!m.outcome.ok()) return ended(it, m.outcome);
    r.source = m.source;
    if (r.wanted && r.source.bytes == bytes_) {
      rank_actor me = caf::actor_cast<rank_actor>(self_);
      return options_.host->pull_snapshot(r.source, r.place, [me, number = m.number](result<void> got) {
        post(me, snapshot_event{number, snapshot_stage::pulled, got ? status{} : to_status(got.error()), {}});
      });
    }
  }
  options_.prefix.store->close_snapshot(r.source.seat, r.source.ticket);
  ended(it, m.stage == snapshot_stage::pulled
                ? m.outcome
                : status{errc::corrupt, fmt::format("{} B where {} B are one", r.source.bytes, bytes_)});
}

snapshot_counts rank_snapshots::counts() const {
  auto c = counts_;
  c.places = static_cast<uint32_t>(in_use_.size());
  c.places_free = free_;
  c.reading =
      static_cast<uint32_t>(std::count_if(reads_.begin(), reads_.end(), [](const auto& r) { return !r.second.here; }));
  c.writing = static_cast<uint32_t>(writes_.size());
  return c;
}

}  // namespace troupe::actors
