#include "kv/device/space_map.hpp"

#include <algorithm>
#include <bit>

#include "runtime/base/check.hpp"

namespace troupe::kv {

// First run of a free row of n in [from, to), or nothing. Rows may end at `to` at the latest.
std::optional<uint32_t> space_map::bitmap::find(uint32_t n, uint32_t from, uint32_t to) const {
  uint32_t start = from;
  for (uint32_t at = from; at < to;) {
    const uint64_t word = words[at / 64] >> (at % 64);
    const uint32_t left = std::min(64 - at % 64, to - at);
    if (word & 1) {  // skip the taken ones
      at += std::min(left, static_cast<uint32_t>(std::countr_one(word)));
      start = at;
      continue;
    }
    at += std::min(left, static_cast<uint32_t>(std::countr_zero(word)));
    if (at - start >= n) return start;
  }
  return std::nullopt;
}

void space_map::bitmap::set(uint32_t first, uint32_t n, bool taken) {
  for (uint32_t at = first; at < first + n;) {
    const uint32_t bit = at % 64, count = std::min(64 - bit, first + n - at);
    const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
    uint64_t& word = words[at / 64];
    TROUPE_CHECK((word & mask) == (taken ? 0 : mask), "runs {} + {} are {} already", first, n,
                 taken ? "taken" : "free");
    word ^= mask;
    at += count;
  }
  if (taken) {
    free -= n;
  } else {
    free += n;
    no_row = UINT32_MAX;
  }
}

bool space_map::add_chunk(uint32_t chunk, uint32_t runs) {
  if (runs < 2 || chunks_.contains(chunk)) return false;
  bitmap& b = chunks_[chunk];
  b.runs = runs;
  b.words.assign((runs + 63) / 64, 0);
  if (runs % 64) b.words.back() = ~uint64_t{0} << (runs % 64);
  b.words[0] |= 1;
  b.free = runs - 1;
  total_ += b.free;
  return true;
}

std::optional<run_range> space_map::take(uint32_t n) {
  TROUPE_CHECK(n > 0, "no runs asked for");
  if (chunks_.empty()) return std::nullopt;
  // The current chunk first, then the others in turn.
  auto it = chunks_.lower_bound(current_);
  for (size_t i = 0; i < chunks_.size(); ++i, ++it) {
    if (it == chunks_.end()) it = chunks_.begin();
    bitmap& b = it->second;
    if (b.free < n || n >= b.no_row) continue;
    auto first = b.find(n, b.next, b.runs);
    if (!first && b.next > 1) first = b.find(n, 1, b.runs);
    if (!first) {
      b.no_row = n;
      continue;
    }
    b.set(*first, n, true);
    b.next = *first + n < b.runs ? *first + n : 1;
    current_ = it->first;
    taken_ += n;
    return run_range{it->first, *first, n};
  }
  return std::nullopt;
}

bool space_map::contains(const run_range& r) const {
  const auto it = chunks_.find(r.chunk);
  return it != chunks_.end() && r.runs > 0 && r.first > 0 && r.first < it->second.runs &&
         r.runs <= it->second.runs - r.first;
}

bool space_map::take(const run_range& r) {
  if (!contains(r)) return false;
  bitmap& b = chunks_.at(r.chunk);
  if (b.find(r.runs, r.first, r.first + r.runs) != r.first) return false;
  b.set(r.first, r.runs, true);
  taken_ += r.runs;
  return true;
}

void space_map::free(const run_range& r) {
  TROUPE_CHECK(contains(r), "runs {} + {} of chunk {} are on no disk", r.first, r.runs, r.chunk);
  chunks_.at(r.chunk).set(r.first, r.runs, false);
  taken_ -= r.runs;
}

void space_map::clear() {
  auto old = std::move(chunks_);
  chunks_.clear();
  taken_ = total_ = 0;
  current_ = 0;
  for (const auto& [number, b] : old) add_chunk(number, b.runs);
}

std::vector<run_range> space_map::free_rows(uint32_t chunk) const {
  std::vector<run_range> out;
  const auto it = chunks_.find(chunk);
  if (it == chunks_.end()) return out;
  const bitmap& b = it->second;
  for (uint32_t at = 1; at < b.runs; ++at) {
    if (b.taken(at)) continue;
    if (out.empty() || out.back().first + out.back().runs != at)
      out.push_back({chunk, at, 1});
    else
      ++out.back().runs;
  }
  return out;
}

uint32_t space_map::largest_free() const {
  uint32_t best = 0;
  for (const auto& [number, b] : chunks_) {
    if (b.free <= best) continue;
    uint32_t row = 0;
    for (uint32_t at = 1; at < b.runs;) {
      const uint64_t word = b.words[at / 64] >> (at % 64);
      const uint32_t left = std::min(64 - at % 64, b.runs - at);
      if (word & 1) {
        row = 0;
        at += std::min(left, static_cast<uint32_t>(std::countr_one(word)));
      } else {
        const uint32_t n = std::min(left, static_cast<uint32_t>(std::countr_zero(word)));
        row += n;
        at += n;
        best = std::max(best, row);
      }
    }
  }
  return best;
}

}  // namespace troupe::kv
