#include "kv/store/extent_read.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

// What follows the blocks in the last data shards is zero by the layout; nobody needs to read it.
constexpr size_t most_padding = 4096;
std::byte* zeros() {
  static std::byte z[most_padding] = {};
  return z;
}

}  // namespace

std::shared_ptr<extent_read> extent_read::start(extent_read_request request, const members& who, executor& home,
                                                std::function<void(extent_read_reply)> done) {
  std::shared_ptr<extent_read> r(new extent_read(std::move(request), who, home, std::move(done)));
  home.post([r] { r->begin(); });
  return r;
}

extent_read::extent_read(extent_read_request request, const members& who, executor& home,
                         std::function<void(extent_read_reply)> done)
    : request_(std::move(request)), who_(who), home_(home), done_(std::move(done)) {}

void extent_read::begin() {
  if (finished_) return;
  const extent_info& e = *request_.info;
  shards_.resize(e.shards());
  for (const auto& w : request_.wanted) {
    TROUPE_CHECK(w.ordinal < e.count && w.into.size() == e.length(w.ordinal), "block {} of {}: {} bytes", w.ordinal,
                 e.count, w.into.size());
    for (const auto& p : pieces_of(e, w.ordinal))
      shards_[p.shard].segments[p.shard_offset] = segment{p.bytes, w.into.data() + p.block_offset, true};
  }
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (!who_.targets.contains(e.targets[s])) {
      shards_[s].failed = true;
      if (missing(s)) last_error_ = error{errc::unavailable, fmt::format("target {} is no member", e.targets[s].value)};
    }
  }
  for (uint32_t s = 0; s < shards_.size(); ++s) read_idle(s);
  if (request_.hedge_after > nanoseconds{0}) {
    std::weak_ptr<extent_read> weak = weak_from_this();
    home_.post_after(request_.hedge_after, [weak] {
      if (auto self = weak.lock()) self->on_hedge_time();
    });
  }
  advance();
}

// One read for each row of adjacent bytes that nobody has asked for.
void extent_read::read_idle(uint32_t shard) {
  shard_state& st = shards_[shard];
  if (st.failed) return;
  const extent_info& e = *request_.info;
  for (auto it = st.segments.begin(); it != st.segments.end();) {
    if (it->second.state != progress::idle) {
      ++it;
      continue;
    }
    read_shard r;
    r.at = {e.id, shard};
    r.offset = it->first;
    r.guard = std::make_shared<read_guard>();
    std::vector<uint64_t> offsets;
    uint64_t end = it->first;
    while (it != st.segments.end() && it->first == end && it->second.state == progress::idle) {
      it->second.state = progress::reading;
      offsets.push_back(it->first);
      r.into.emplace_back(it->second.at, it->second.bytes);
      end += it->second.bytes;
      ++it;
    }
    st.guards.push_back(r.guard);
    who_.targets.at(e.targets[shard])
        ->read(std::move(r),
               [self = shared_from_this(), shard, offsets](result<void> got) { self->arrived(shard, offsets, got); });
  }
}

void extent_read::arrived(uint32_t shard, const std::vector<uint64_t>& offsets, const result<void>& r) {
  if (finished_) return;
  shard_state& st = shards_[shard];
  for (uint64_t o : offsets) {
    segment& seg = st.segments.at(o);
    if (seg.state == progress::reading) seg.state = r ? progress::there : progress::idle;
  }
  if (!r) {
    st.failed = true;
    st.source = false;
    last_error_ = r.error();
  }
  advance();
}

bool extent_read::missing(uint32_t shard) const {
  const auto& segs = shards_[shard].segments;
  return std::any_of(segs.begin(), segs.end(),
                     [](const auto& s) { return s.second.wanted && s.second.state != progress::there; });
}

uint64_t extent_read::hedge_bytes() const {
  uint64_t lo = UINT64_MAX, hi = 0;
  for (const auto& st : shards_) {
    for (const auto& [offset, seg] : st.segments) {
      if (!seg.wanted || seg.state == progress::there) continue;
      lo = std::min(lo, offset);
      hi = std::max(hi, offset + seg.bytes);
    }
  }
  return lo < hi ? (hi - lo) * request_.info->data : 0;
}

void extent_read::on_hedge_time() {
  if (finished_) return;
  // Somebody else may be needed as a source, so only as many count as late as the code can do without.
  uint32_t gone = 0, late = 0;
  for (uint32_t s = 0; s < shards_.size(); ++s) gone += shards_[s].failed ? 1 : 0;
  for (uint32_t s = 0; s < shards_.size(); ++s) late += !shards_[s].failed && missing(s) ? 1 : 0;
  if (late == 0 || gone + late > request_.info->parity) return;
  if (request_.may_hedge && !request_.may_hedge(hedge_bytes())) return;
  out_.hedged = true;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (!shards_[s].failed && missing(s)) shards_[s].late = true;
  }
  advance();
}

std::vector<uint32_t> extent_read::to_decode() {
  std::vector<uint32_t> lost;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if ((shards_[s].failed || shards_[s].late) && missing(s)) lost.push_back(s);
  }
  return lost;
}

void extent_read::advance() {
  bool waiting = false;
  for (uint32_t s = 0; s < shards_.size(); ++s) waiting |= missing(s);
  if (!waiting) return finish(std::nullopt);
  auto lost = to_decode();
  if (lost.empty()) return;
  if (!choose_sources(lost)) {
    // Too few others. Those that are only late may still come; without them this is the end.
    bool hope = false;
    for (auto& st : shards_) {
      if (st.late && !st.failed) hope = true;
      st.late = false;
      st.source = false;
    }
    lost = to_decode();
    if (hope && lost.empty()) return;
    if (!hope || !choose_sources(lost)) {
      const extent_info& e = *request_.info;
      uint32_t left = 0;
      for (const auto& st : shards_) left += st.failed ? 0 : 1;
      return finish(error{
          errc::unavailable,
          fmt::format("extent {}: {} of {} shards can be read, {} are needed; the last answer was: {}", to_string(e.id),
                      left, e.shards(), e.data, last_error_ ? last_error_->message : std::string("none"))});
    }
  }
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (!shards_[s].source) continue;
    cover(s);
    read_idle(s);
  }
  if (covered()) decode(lost);
}

// k shards besides the lost ones: those that already are sources, then those that are being read anyway, data before
// parity. Widens the hull to what the lost ones lack.
bool extent_read::choose_sources(const std::vector<uint32_t>& lost) {
  const uint32_t k = request_.info->data;
  std::vector<std::pair<int, uint32_t>> order;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    const shard_state& st = shards_[s];
    if (st.failed || std::find(lost.begin(), lost.end(), s) != lost.end()) continue;
    const int rank = st.source ? 0 : st.late ? 3 : !st.segments.empty() ? 1 : 2;
    order.emplace_back(rank, s);
  }
  if (order.size() < k) return false;
  std::sort(order.begin(), order.end());
  for (auto& st : shards_) st.source = false;
  for (uint32_t i = 0; i < k; ++i) shards_[order[i].second].source = true;
  if (from_ == to_) from_ = UINT64_MAX;
  for (uint32_t s : lost) {
    for (const auto& [offset, seg] : shards_[s].segments) {
      if (!seg.wanted || seg.state == progress::there) continue;
      from_ = std::min(from_, offset);
      to_ = std::max(to_, offset + seg.bytes);
    }
  }
  return true;
}

// Makes the segments of a source reach over the hull; gaps go to scratch, or to zeros where the layout has only those.
void extent_read::cover(uint32_t shard) {
  const extent_info& e = *request_.info;
  auto& segs = shards_[shard].segments;
  const uint64_t size = shard_bytes(e), data_end = uint64_t{e.count} * e.block_bytes;
  auto fill = [&](uint64_t from, uint64_t to) {
    if (from >= to) return;
    const bool zero = shard < e.data && shard * size + from >= data_end && to - from <= most_padding;
    if (zero) {
      segs[from] = segment{to - from, zeros(), false, progress::there};
      return;
    }
    scratch_.emplace_back(new std::byte[to - from]);
    segs[from] = segment{to - from, scratch_.back().get(), false, progress::idle};
  };
  uint64_t at = from_;
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  for (const auto& [offset, seg] : segs) {
    if (offset + seg.bytes <= at) continue;
    if (offset >= to_) break;
    if (offset > at) gaps.emplace_back(at, offset);
    at = offset + seg.bytes;
  }
  if (at < to_) gaps.emplace_back(at, to_);
  for (auto [from, to] : gaps) {
    // Split where the zeros begin, so that they are not read.
    const uint64_t end = shard >= e.data || data_end >= (shard + 1) * size ? size
                         : data_end <= shard * size                        ? 0
                                                                           : data_end - shard * size;
    fill(from, std::min(to, std::max(from, end)));
    fill(std::max(from, std::min(to, end)), to);
  }
}

bool extent_read::covered() const {
  for (const auto& st : shards_) {
    if (!st.source) continue;
    for (const auto& [offset, seg] : st.segments) {
      if (offset < to_ && offset + seg.bytes > from_ && seg.state != progress::there) return false;
    }
  }
  return true;
}

void extent_read::decode(const std::vector<uint32_t>& lost) {
  const extent_info& e = *request_.info;
  // The reads that lost the race must not write any more: the code writes there now.
  for (uint32_t s : lost) {
    for (auto& g : shards_[s].guards) g->revoke();
  }
  auto code = codec::get(e.data, e.parity);
  if (!code) return finish(code.error());
  std::vector<uint32_t> have;
  std::set<uint64_t> edges{from_, to_};
  auto add_edges = [&](uint32_t s) {
    for (const auto& [offset, seg] : shards_[s].segments) {
      for (uint64_t edge : {offset, offset + seg.bytes}) {
        if (edge > from_ && edge < to_) edges.insert(edge);
      }
    }
  };
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (shards_[s].source) have.push_back(s), add_edges(s);
  }
  for (uint32_t s : lost) add_edges(s);
  // Between two edges every shard is in one piece.
  auto piece = [&](uint32_t s, uint64_t from) -> std::pair<const segment*, std::byte*> {
    auto it = shards_[s].segments.upper_bound(from);
    if (it == shards_[s].segments.begin()) return {nullptr, nullptr};
    --it;
    if (it->first + it->second.bytes <= from) return {nullptr, nullptr};
    return {&it->second, it->second.at + (from - it->first)};
  };
  for (auto a = edges.begin(), b = std::next(a); b != edges.end(); ++a, ++b) {
    std::vector<const std::byte*> sources;
    std::vector<uint32_t> want;
    std::vector<std::byte*> out;
    for (uint32_t s : lost) {
      auto [seg, at] = piece(s, *a);
      if (!seg || !seg->wanted || seg->state == progress::there) continue;
      want.push_back(s);
      out.push_back(at);
    }
    if (want.empty()) continue;
    for (uint32_t s : have) sources.push_back(piece(s, *a).second);
    if (auto r = (*code)->reconstruct(have, sources, want, out, *b - *a); !r) return finish(r.error());
  }
  for (uint32_t s : lost) {
    for (auto& [offset, seg] : shards_[s].segments) {
      (void)offset;
      if (seg.wanted) seg.state = progress::there;
    }
  }
  out_.decoded += static_cast<uint32_t>(lost.size());
  advance();
}

void extent_read::cancel() {
  if (finished_) return;
  finish(error{errc::cancelled, "the read was ended before all of it had come"});
}

void extent_read::finish(std::optional<error> trouble) {
  TROUPE_CHECK(!finished_, "an extent is read once");
  finished_ = true;
  for (auto& st : shards_) {
    for (auto& g : st.guards) g->revoke();
  }
  const extent_info& e = *request_.info;
  out_.good.assign(request_.wanted.size(), false);
  for (size_t i = 0; i < request_.wanted.size(); ++i) {
    const auto& w = request_.wanted[i];
    bool whole = !shards_.empty();
    if (whole) {
      for (const auto& p : pieces_of(e, w.ordinal))
        whole &= shards_[p.shard].segments.at(p.shard_offset).state == progress::there;
    }
    if (!whole) continue;
    out_.good[i] = crc32c(w.into) == e.block_crcs[w.ordinal];
    if (!out_.good[i] && !trouble)
      trouble = error{errc::corrupt,
                      fmt::format("extent {}: block {} does not hold its checksum", to_string(e.id), w.ordinal)};
  }
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (shards_[s].failed) out_.bad_shards.push_back(s);
  }
  out_.trouble = std::move(trouble);
  auto done = std::move(done_);
  done_ = nullptr;
  done(std::move(out_));
}

}  // namespace troupe::kv
