#include "actors/serving/rank_prefix.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

constexpr auto prefix_look = std::chrono::milliseconds(50);  // how often late reads are looked for
// The store keeps the deadline itself; this is for one that does not answer at all.
constexpr nanoseconds prefix_grace = std::chrono::milliseconds(100);

}  // namespace

rank_prefix::rank_prefix(rank_actor::pointer self, const rank_options& options, rank_snapshots& snapshots, ways out)
    : self_(self), options_(options), snapshots_(snapshots), out_(std::move(out)) {}

void rank_prefix::configure(kernels::page_pool& pool, uint32_t page_bytes) {
  pool_ = &pool;
  page_bytes_ = page_bytes;
}

std::vector<std::span<std::byte>> rank_prefix::memory_of(const std::vector<kernels::page_id>& pages) {
  const auto all = options_.host->pages().bytes;
  std::vector<std::span<std::byte>> out;
  for (auto p : pages) out.push_back(all.subspan(size_t{p.value} * page_bytes_, page_bytes_));
  return out;
}

void rank_prefix::answer(uint64_t number, status outcome, uint32_t blocks, bool dropped, bool snapshot) {
  out_.done({number, std::move(outcome), blocks, dropped, out_.held(), snapshot});
}

void rank_prefix::read(const prefix_read& m) {
  ++counts_.reads;
  auto refuse = [&](errc code, std::string text) {
    ++counts_.read_failed;
    answer(m.number, {code, std::move(text)}, 0, false);
  };
  if (!pool_ || !options_.prefix.store || options_.host->pages().bytes.empty())
    return refuse(errc::unavailable, "this rank has no store to read from");
  auto pages = pool_->take(static_cast<uint32_t>(m.chain.size()));
  if (!pages) return refuse(errc::exhausted, pages.error().message);
  pool_->add_owner(*pages, kernels::page_owner::transfer);
  auto memory = memory_of(*pages);
  const auto deadline = nanoseconds(m.deadline_ns);
  reading& r = reads_[m.number];
  r.pages = std::move(*pages);
  r.since = now(self_);
  r.backstop = r.since + deadline + prefix_grace;
  r.snapshot_until = r.since + deadline;
  r.awaits_snapshot = m.snapshot.at.tokens > 0 && snapshots_.begin(m.number, m.snapshot);
  if (!timer_.armed()) timer_.arm(self_, prefix_look);
  rank_actor me = caf::actor_cast<rank_actor>(self_);
  options_.prefix.store->read(
      m.chain, std::move(memory), m.traffic, deadline, options_.host->pages().keep,
      [me, number = m.number](result<uint64_t> r) {
        post(me, prefix_event{number, false, r ? status{} : to_status(r.error()), r ? static_cast<uint32_t>(*r) : 0});
      });
}

// Nobody wants it. Pages stay held while the store may write into them.
void rank_prefix::give_up(uint64_t number, reading& r) {
  r.wanted = false;
  snapshots_.drop(number);
  pool_->release(r.pages, kernels::page_owner::request);
}

void rank_prefix::drop(const prefix_drop& m) {
  auto it = reads_.find(m.number);
  if (it != reads_.end() && it->second.wanted) {
    ++counts_.read_dropped;
    give_up(m.number, it->second);
    if (it->second.here) reads_.erase(it);
  }
  answer(m.number, {errc::cancelled, "dropped"}, 0, true);
}

void rank_prefix::write(const prefix_write& m, std::span<const kernels::page_id> table) {
  if (!pool_ || !options_.prefix.store || m.first >= m.chain.size()) return;
  const auto count = static_cast<uint32_t>(m.chain.size() - m.first);
  auto refuse = [&](const std::string& why) {
    ++counts_.dropped;
    counts_.dropped_blocks += count;
    log::debug("{}: {} blocks are not written back: {}", options_.assignment.seat(), count, why);
  };
  if (table.size() < m.chain.size()) return refuse("the slot is closed");
  if (options_.host->pages().bytes.empty()) return refuse("no memory that can be read");
  if (writes_.size() >= options_.prefix.writes) return refuse(fmt::format("{} puts are under way", writes_.size()));
  std::vector<kernels::page_id> pages(table.begin() + m.first, table.begin() + static_cast<ptrdiff_t>(m.chain.size()));
  if (auto begun = pool_->begin_write_back(pages); !begun) return refuse(begun.error().message);
  ++counts_.writes;
  counts_.write_blocks += count;
  const uint64_t number = next_write_++;
  std::vector<std::span<const std::byte>> blocks;
  for (const auto& s : memory_of(pages)) blocks.emplace_back(s);
  writes_.emplace(number, std::move(pages));
  rank_actor me = caf::actor_cast<rank_actor>(self_);
  options_.prefix.store->write(
      m.chain, m.first, std::move(blocks), m.traffic, options_.host->pages().keep, [me, number](result<uint64_t> r) {
        post(me, prefix_event{number, true, r ? status{} : to_status(r.error()), r ? static_cast<uint32_t>(*r) : 0});
      });
}

void rank_prefix::finished(const prefix_event& m) {
  if (m.write) {
    auto it = writes_.find(m.number);
    if (it == writes_.end()) return;
    if (m.outcome.ok()) {
      counts_.stored_blocks += m.blocks;
    } else {
      ++counts_.write_failed;
      log::debug("{}: {} blocks were not stored: {}", options_.assignment.seat(), it->second.size(), m.outcome.text);
    }
    pool_->release(it->second, kernels::page_owner::write_back);
    writes_.erase(it);
    return out_.freed();
  }
  auto it = reads_.find(m.number);
  if (it == reads_.end() || it->second.here) return;
  auto& r = it->second;
  pool_->release(r.pages, kernels::page_owner::transfer);
  if (!r.wanted) {
    reads_.erase(it);
    return out_.freed();
  }
  if (m.outcome.ok() && m.blocks > 0 && m.blocks <= r.pages.size()) {
    r.here = true;
    r.blocks = m.blocks;
    counts_.read_blocks += m.blocks;
    counts_.read_ns += (now(self_) - r.since).count();
    if (!r.awaits_snapshot) answer(m.number, {}, m.blocks, false, r.has_snapshot);
    return;
  }
  ++counts_.read_failed;
  counts_.read_late += m.outcome.code == errc::timeout;
  pool_->release(r.pages, kernels::page_owner::request);
  snapshots_.drop(m.number);
  reads_.erase(it);
  log::info("{}: cached blocks did not come, they are computed: {}", options_.assignment.seat(), m.outcome.text);
  answer(m.number, m.outcome, 0, false);
}

void rank_prefix::ticked(const tick& t) {
  if (!timer_.fired(t)) return;
  bool open = false;
  for (auto& [number, r] : reads_) {
    if (!r.wanted || (r.here && !r.awaits_snapshot)) continue;
    if (now(self_) < (r.here ? r.snapshot_until : r.backstop)) {
      open = true;
      continue;
    }
    if (r.here) {
      snapshots_.drop(number, true);
      r.awaits_snapshot = false;
      log::info("{}: a window snapshot is late, windows are computed", options_.assignment.seat());
      answer(number, {}, r.blocks, false);
      continue;
    }
    ++counts_.read_failed;
    ++counts_.read_late;
    give_up(number, r);
    log::info("{}: the store does not answer; cached blocks are computed", options_.assignment.seat());
    answer(number, {errc::timeout, "reading takes longer than computing"}, 0, false);
  }
  if (open) timer_.arm(self_, prefix_look);
}

void rank_prefix::snapshot_over(uint64_t number, bool here) {
  auto it = reads_.find(number);
  if (it == reads_.end() || !it->second.awaits_snapshot) return snapshots_.drop(number);
  auto& r = it->second;
  r.awaits_snapshot = false;
  r.has_snapshot = here;
  if (r.here) answer(number, {}, r.blocks, false, here);
}

std::optional<rank_prefix::brought> rank_prefix::take(uint64_t number) {
  auto it = reads_.find(number);
  if (it == reads_.end() || !it->second.here || it->second.awaits_snapshot) return std::nullopt;
  brought out{std::move(it->second.pages), snapshots_.take(number)};
  reads_.erase(it);
  return out;
}

uint32_t rank_prefix::wanted_pages() const {
  uint32_t n = 0;
  for (const auto& [number, r] : reads_) n += r.wanted ? static_cast<uint32_t>(r.pages.size()) : 0;
  return n;
}

uint32_t rank_prefix::held_pages() const {
  uint32_t n = 0;
  for (const auto& [number, r] : reads_) n += r.here ? 0 : static_cast<uint32_t>(r.pages.size());
  return n;
}

prefix_counts rank_prefix::counts() const {
  auto c = counts_;
  for (const auto& [number, r] : reads_) c.reading += !r.here || r.awaits_snapshot;
  c.writing = writing();
  return c;
}

}  // namespace troupe::actors
