// Chains of random hashes, extents of them, and databases to put them into.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kv/index/block_index.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv::testing_support {

inline constexpr uint32_t block_tokens = 128;
inline constexpr uint32_t made_block_bytes = 1'000;
inline constexpr int64_t start_s = 1'800'000'000;  // a multiple of an hour

/// The hashes of a chain of `blocks`; the first `shared` of `parent` are taken over.
inline std::vector<block_hash> made_chain(rng& draw, size_t blocks, const std::vector<block_hash>& parent = {},
                                          size_t shared = 0) {
  std::vector<block_hash> out(parent.begin(), parent.begin() + static_cast<ptrdiff_t>(shared));
  while (out.size() < blocks) {
    block_hash h;
    const uint64_t a = draw.next(), b = draw.next();
    std::memcpy(h.bytes.data(), &a, 8);
    std::memcpy(h.bytes.data() + 8, &b, 8);
    h.tokens = static_cast<uint32_t>((out.size() + 1) * block_tokens);
    out.push_back(h);
  }
  return out;
}

/// Blocks [first, first + count) of a chain as an extent.
inline extent_info made_extent_of(const std::vector<block_hash>& chain, size_t first, uint32_t count, uint64_t id,
                                  traffic_class traffic = traffic_class::agent) {
  extent_info e;
  e.id = {42, id};
  e.first = first;
  e.count = count;
  e.block_bytes = made_block_bytes;
  e.hashes.assign(chain.begin() + static_cast<ptrdiff_t>(first), chain.begin() + static_cast<ptrdiff_t>(first + count));
  if (first > 0) e.parent = chain[first - 1];
  e.slot_first = chain[first / slot_blocks * slot_blocks];
  e.data = 2, e.parity = 1;
  e.targets = {target_id{1}, target_id{2}, target_id{3}};
  e.traffic = traffic;
  e.written = start_s;
  e.expiry = start_s;
  e.scheme = 7;
  for (uint32_t j = 0; j < count; ++j) e.block_crcs.push_back(static_cast<uint32_t>(id * 16 + j));
  return e;
}

/// Blocks [first, end) as extents that end at slot boundaries; ids count up from `id`.
inline std::vector<extent_info> made_extents(const std::vector<block_hash>& chain, size_t first, size_t end,
                                             uint64_t& id, traffic_class traffic = traffic_class::agent) {
  std::vector<extent_info> out;
  while (first < end) {
    const size_t stop = std::min(end, (first / slot_blocks + 1) * slot_blocks);
    out.push_back(made_extent_of(chain, first, static_cast<uint32_t>(stop - first), id++, traffic));
    first = stop;
  }
  return out;
}

/// The slots of a chain, all for one owner.
inline std::vector<match_slot> slots_of(const std::vector<block_hash>& chain) {
  std::vector<match_slot> out;
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i % slot_blocks == 0) out.push_back({i / slot_blocks, {}});
    out.back().hashes.push_back(chain[i]);
  }
  return out;
}

/// Opens an index, or ends the test.
inline std::unique_ptr<block_index> open_index(db& database, index_options options = {}, int64_t now_s = start_s,
                                               nanoseconds now = {}) {
  auto r = block_index::open(database, options, now_s, now);
  if (!r) ADD_FAILURE() << r.error().message;
  return r ? std::move(*r) : nullptr;
}

/// Everything that `check` finds, as text.
inline std::vector<std::string> findings(block_index& index, bool repair = false, int64_t now_s = start_s) {
  std::vector<std::string> out;
  index_cursor at;
  while (!at.done) {
    auto r = index.check(at, 7, repair, now_s);
    if (!r) return out.push_back(r.error().message), out;
    for (const auto& f : *r) out.push_back(std::string(to_string(f.in)) + ": " + f.what);
  }
  return out;
}

/// A directory that is gone at the end.
class temp_dir {
 public:
  temp_dir() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-kv-XXXXXX").string();
    path_ = mkdtemp(name.data()) ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  temp_dir(const temp_dir&) = delete;
  ~temp_dir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace troupe::kv::testing_support
