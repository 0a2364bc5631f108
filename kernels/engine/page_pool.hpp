// Who owns which page of a rank's KV pool: the book-keeping only, the memory is the engine's (or its host's). A page
// has a set of owners and is free when the set is empty (docs/decisions.md, detail 24). Not thread safe: one actor owns
// it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/engine/engine.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kernels {

/// Why a page is held: by a running sequence, by a transfer (a peer reads it, or it is being filled from a peer), by
/// the store that is writing it out.
enum class page_owner : uint8_t { request = 0, transfer = 1, write_back = 2 };

/// What a pool exports. A page with several owners counts for each of them; free + owned = total.
struct page_counts {
  uint32_t total = 0, free = 0, owned = 0;
  uint32_t request = 0, transfer = 0, write_back = 0;
  bool operator==(const page_counts&) const = default;
};

/// Owners of the pages 0 .. total - 1. One thread at a time. Pages are zeroed by the engine when they are appended to a
/// sequence's table.
class page_pool {
 public:
  explicit page_pool(uint32_t total) : owners_(total, 0), generations_(total, 0) {
    free_.reserve(total);
    for (uint32_t p = total; p-- > 0;) free_.push_back(page_id{p});
  }

  /// `count` free pages, now owned by a request, each in a new generation; `exhausted` when there are fewer, and then
  /// nothing changes.
  result<std::vector<page_id>> take(uint32_t count) {
    if (count > free_.size()) return fail(errc::exhausted, "{} KV pages wanted, {} free", count, free_.size());
    std::vector<page_id> out(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
    for (auto p : out) {
      owners_[p.value] = bit(page_owner::request);
      ++generations_[p.value];
    }
    counts_[0] += count;
    return out;
  }

  /// One more owner for a page that has one; an owner it already has is a broken invariant.
  void add_owner(page_id page, page_owner who) {
    TROUPE_CHECK(page.value < owners_.size() && owners_[page.value] != 0, "page {} is free", page.value);
    TROUPE_CHECK(!(owners_[page.value] & bit(who)), "page {} has owner {} already", page.value, static_cast<int>(who));
    owners_[page.value] |= bit(who);
    ++counts_[static_cast<size_t>(who)];
  }
  void add_owner(std::span<const page_id> pages, page_owner who) {
    for (auto p : pages) add_owner(p, who);
  }

  /// The store may hold a quarter of the pool; what would go beyond is `exhausted`, changes nothing, and is not to be
  /// written.
  result<void> begin_write_back(std::span<const page_id> pages) {
    const uint64_t held = uint64_t{owned(page_owner::write_back)} + pages.size();
    if (held > total() / 4)
      return fail(errc::exhausted, "{} KV pages would be written back at once, {} of {} may be", held, total() / 4,
                  total());
    add_owner(pages, page_owner::write_back);
    return {};
  }

  /// Takes an owner away; a page without owners is free.
  void release(std::span<const page_id> pages, page_owner who) {
    for (auto p : pages) {
      TROUPE_CHECK(p.value < owners_.size() && (owners_[p.value] & bit(who)), "page {} does not have owner {}", p.value,
                   static_cast<int>(who));
      owners_[p.value] &= static_cast<uint8_t>(~bit(who));
      --counts_[static_cast<size_t>(who)];
      if (owners_[p.value] == 0) free_.push_back(p);
    }
  }

  uint32_t total() const { return static_cast<uint32_t>(owners_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  /// Pages that `who` owns, alone or with others.
  uint32_t owned(page_owner who) const { return counts_[static_cast<size_t>(who)]; }
  /// Pages that have an owner but no request: held by transfers and write-back alone.
  uint32_t held() const { return total() - free() - owned(page_owner::request); }
  /// How often the page has been taken: a reference with another number is to an earlier life of it.
  uint32_t generation(page_id page) const { return generations_.at(page.value); }

  /// All numbers; checks that every page is either free or owned, and counted as such.
  page_counts counts() const {
    page_counts c{total(), free(), 0, counts_[0], counts_[1], counts_[2]};
    for (uint8_t o : owners_) c.owned += o != 0;
    TROUPE_CHECK(c.free + c.owned == c.total, "free {} + owned {} != total {}", c.free, c.owned, c.total);
    return c;
  }

 private:
  static constexpr uint8_t bit(page_owner who) { return static_cast<uint8_t>(1u << static_cast<unsigned>(who)); }

  std::vector<uint8_t> owners_;  // bit set per page
  std::vector<uint32_t> generations_;
  std::vector<page_id> free_;
  std::array<uint32_t, 3> counts_{};
};

}  // namespace troupe::kernels
