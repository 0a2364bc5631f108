#include "runtime/recipe/bpe.hpp"

#include <algorithm>

namespace troupe::recipe {

namespace {

struct symbol {
  token_id id;
  int32_t previous, next;  // -1 = none
};

struct candidate {
  uint32_t rank;
  int32_t at;  // left symbol
  token_id joined;
  // A heap of std::push_heap gives the greatest first; the lowest rank, then the leftmost, shall come first.
  bool operator<(const candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
};

}  // namespace

void bpe_model::encode(std::string_view piece, std::vector<token_id>& ids) const {
  if (piece.empty()) return;
  if (piece.size() == 1) {
    ids.push_back(byte_token[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (ignore_merges) {
    if (auto it = whole.find(piece); it != whole.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  thread_local std::vector<symbol> symbols;
  thread_local std::vector<candidate> heap;
  symbols.clear();
  heap.clear();
  const auto n = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols.push_back({byte_token[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < n ? i + 1 : -1});
  }
  auto offer = [&](int32_t at) {
    int32_t next = symbols[at].next;
    if (next < 0) return;
    auto it = merges.find(pair_key(symbols[at].id, symbols[next].id));
    if (it == merges.end()) return;
    heap.push_back({it->second.rank, at, it->second.joined});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    candidate c = heap.back();
    heap.pop_back();
    symbol& left = symbols[c.at];
    if (left.id < 0 || left.next < 0) continue;  // merged away meanwhile
    auto it = merges.find(pair_key(left.id, symbols[left.next].id));
    if (it == merges.end() || it->second.joined != c.joined || it->second.rank != c.rank) continue;
    symbol& right = symbols[left.next];
    left.id = c.joined;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = c.at;
    if (left.previous >= 0) offer(left.previous);
    offer(c.at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
  // A piece of megabytes is rare; do not keep its memory for ever.
  if (symbols.capacity() > 1u << 16) {
    std::vector<symbol>().swap(symbols);
    std::vector<candidate>().swap(heap);
  }
}

}  // namespace troupe::recipe
