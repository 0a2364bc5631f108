// How a batch uses cached blocks: reads before a prompt starts, and what of a sequence is written back.
#include <algorithm>

#include "actors/serving/batch.hpp"
#include "actors/serving/prefix_hit.hpp"
#include "kv/extent/extent.hpp"
#include "policies/read_race.hpp"
#include "policies/snapshot_marks.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {

void batch::use_cache(const prefix_options& options) {
  TROUPE_CHECK(sequences_.empty(), "the cache is set before the first request");
  cache_ = options;
  cache_->store = nullptr;  // the rank's business
}

// What a front says is looked at: a chain that does not fit is not used, a hit that does not fit is a miss.
void batch::check_prefix(sequence& s) const {
  auto& p = s.prefix;
  const uint64_t w = facts_.window;
  bool fits = cache_ && p.active && cache_->scheme.block_tokens == w && p.chain.size() * w <= s.known.size();
  for (size_t i = 0; fits && i < p.chain.size(); ++i) fits = p.chain[i].tokens == (i + 1) * w;
  if (!fits) {
    p = {};
    return;
  }
  const uint64_t end = uint64_t{p.reuse} + p.replay;
  const uint64_t needed = cache_->exact ? (facts_.encoder_layers + 1) * w : w;
  if (limits_.snapshots == 0) p.snapshot = false;
  if (p.reuse > 0 && !p.snapshot && p.replay < needed && end % w == 0 && end / w <= p.chain.size()) {
    const auto hit = hit_of(s, static_cast<uint32_t>(end / w));
    p.reuse = hit.reuse;
    p.replay = hit.replay;
  }
  if (p.reuse == 0 || p.reuse % w != 0 || p.replay % w != 0 || end / w > p.chain.size() ||
      end > prefix_hit_limit(facts_, s.prompt_length, static_cast<uint32_t>(s.known.size())))
    p.reuse = p.replay = 0;
  p.snapshot = p.snapshot && p.reuse > 0;
}

policies::hit_length_plan batch::hit_of(const sequence& s, uint32_t blocks, std::span<const uint32_t> snapshots) const {
  return prefix_hit(facts_, s.prompt_length, static_cast<uint32_t>(s.known.size()), blocks, cache_->exact, snapshots);
}

// The one behind so many blocks of the chain.
snapshot_key batch::snapshot_at(const sequence& s, uint32_t blocks) const {
  return {s.prefix.chain.at(blocks - 1), s.prefix.chain.at((blocks - 1) / kv::slot_blocks * kv::slot_blocks)};
}

void batch::ask_snapshots(const sequence& s, kernels::sequence_step& step) const {
  if (!cache_ || !s.prefix.active || limits_.snapshots == 0) return;
  const uint32_t w = facts_.window;
  // A prompt whose last rows are under way will have committed them.
  const auto marks = step.rows == 0
                         ? policies::marks_of_decode(w, std::max(s.committed, s.opened - 1),
                                                     s.committed + s.in_flight + 1 + draft_bound(s))
                         : policies::marks_of_chunk(w, s.opened, step.position, step.rows, step.write_global_from);
  for (uint32_t b = marks.first; b <= marks.last; ++b) step.snapshots.push_back({b * w, 0});
}

// `s`: null, or one that is no more, where nobody knows what they are of.
void batch::keep_snapshots(sequence* s, const kernels::sequence_result& r) {
  for (const auto& t : r.snapshots) {
    snapshot_write w;
    w.place = t.place;
    w.crc = t.crc;
    const uint32_t blocks = t.position / facts_.window;
    if (s && s->prefix.active && t.position <= s->known.size() && extend_chain(*s, blocks)) {
      w.request = s->origin;
      w.where = snapshot_at(*s, blocks);
      if (blocks > policies::snapshots_kept) w.older = snapshot_at(*s, blocks - policies::snapshots_kept);
    }
    snapshot_writes_.push_back(std::move(w));
  }
}

// Given up for want of pages: what was written back of it is read when it starts again.
void batch::reuse_own(sequence& s) const {
  if (!s.prefix.active || s.written == 0) return;
  const auto hit = hit_of(s, std::min<uint32_t>(s.written, static_cast<uint32_t>(s.prefix.chain.size())));
  s.prefix.reuse = hit.reuse;
  s.prefix.replay = hit.replay;
  s.prefix.snapshot = false;
}

// The slot and all pages of the prompt are reserved; the rank takes those of the hit now.
void batch::begin_read(uint64_t number, uint32_t pages) {
  auto& s = at(number);
  std::erase(waiting_, number);
  s.at = phase::reading;
  take_slot(s, number);
  s.pages = pages;
  pages_free_ -= pages;
  s.read = next_read_++;
  reads_.emplace(s.read, number);
  const auto race =
      policies::plan_read_race({s.prefix.reuse, row_ns_, cache_->read_at_least.count(), cache_->read_at_most.count()});
  note("read: " + race.reason);
  const auto blocks = static_cast<ptrdiff_t>(hit_blocks(s));
  prefix_reads_.push_back(
      {s.read, {s.prefix.chain.begin(), s.prefix.chain.begin() + blocks}, s.prefix.traffic, race.deadline_ns, {}});
  if (s.prefix.snapshot) prefix_reads_.back().snapshot = snapshot_at(s, s.prefix.reuse / facts_.window);
}

void batch::read_done(const prefix_done& m) {
  pages_held_ = m.pages_held;
  const auto it = reads_.find(m.number);
  if (it == reads_.end()) return;
  const uint64_t number = it->second;
  auto& s = at(number);
  if (m.dropped) {
    if (s.at != phase::closing) return;
    reads_.erase(it);
    give_slot(s);
    s.read = 0;
    s.filled = false;
    if (s.preempted) return wait_again(number);
    s.at = phase::ended;
    return forget_if_done(number);
  }
  if (s.at != phase::reading) return;  // let go meanwhile: the answer to that is still to come
  if (!m.outcome.ok()) {
    note(fmt::format("cached blocks are computed: {} {}", to_string(m.outcome.code), m.outcome.text));
    reads_.erase(it);
    give_slot(s);
    s.read = 0;
    s.prefix.reuse = s.prefix.replay = 0;
    s.prefix.snapshot = false;
    return wait_again(number);
  }
  s.reuse = s.prefix.reuse;
  s.replay = s.prefix.replay;
  s.windows = s.prefix.snapshot && m.snapshot;
  const uint32_t blocks = std::min(m.blocks, hit_blocks(s));
  if (blocks < hit_blocks(s) ||
      s.windows != s.prefix.snapshot) {  // a hole: the hit ends there; or only the blocks came
    std::vector<uint32_t> snapshots;
    if (s.windows) snapshots.push_back(s.prefix.reuse / facts_.window);
    const auto hit = hit_of(s, blocks, snapshots);
    s.reuse = hit.reuse;
    s.replay = hit.replay;
    s.windows = hit.snapshot;
    note((blocks < hit_blocks(s) ? "cached blocks end early: " : "without the snapshot: ") + hit.reason);
  }
  // As if the rows before had been run: a step that fails is run again from there.
  s.at = phase::running;
  s.filled = true;
  s.opened = static_cast<uint32_t>(s.known.size());
  s.planned = s.committed = s.reuse;
  s.written = std::max(s.written, blocks);
  running_.push_back(number);
}

// Full slots of the store as they come, the rest at the end of the prompt and of the answer: extents of whole slots
// cost least.
void batch::write_back(sequence& s, bool all) {
  if (!s.prefix.active) return;
  uint32_t end = s.committed / facts_.window;
  if (!all) end = end / kv::slot_blocks * kv::slot_blocks;
  if (end <= s.written || !extend_chain(s, end)) return;
  const auto& chain = s.prefix.chain;
  prefix_writes_.push_back(
      {s.slot, {chain.begin(), chain.begin() + static_cast<ptrdiff_t>(end)}, s.written, s.prefix.traffic});
  s.written = end;
}

// Output tokens become blocks here; those of the prompt came hashed.
bool batch::extend_chain(sequence& s, uint32_t blocks) const {
  auto& chain = s.prefix.chain;
  if (chain.size() >= blocks) return true;
  auto hasher =
      kv::block_hasher::resume(cache_->scheme, s.prefix.salt, chain.empty() ? kv::block_hash{} : chain.back());
  if (!hasher) return false;
  const size_t from = chain.size() * facts_.window, to = size_t{blocks} * facts_.window;
  TROUPE_CHECK(to <= s.known.size(), "{} tokens in place, {} known", to, s.known.size());
  const std::vector<uint32_t> tokens(s.known.begin() + static_cast<ptrdiff_t>(from),
                                     s.known.begin() + static_cast<ptrdiff_t>(to));
  return hasher->append(tokens, chain).has_value() && chain.size() == blocks;
}

void batch::measure(const kernels::step_result& r, uint32_t prompt_rows) {
  if (prompt_rows == 0 || r.rows == 0 || r.times.total <= 0) return;
  const int64_t now = r.times.total / r.rows;
  row_ns_ = row_ns_ == 0 ? std::max<int64_t>(now, 1) : std::max<int64_t>((3 * row_ns_ + now) / 4, 1);
}

}  // namespace troupe::actors
