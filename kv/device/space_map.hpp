// Which 4 KiB runs of which chunk files are taken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace troupe::kv {

/// Runs [first, first + runs) of a chunk file.
struct run_range {
  uint32_t chunk = 0;
  uint32_t first = 0;
  uint32_t runs = 0;
  bool operator==(const run_range&) const = default;
};

/// A bit per run and chunk. A shard lies in one row of runs of one chunk; the first row that fits is taken, searching
/// on from where the last one ended, so that shards written together lie together. Not thread safe.
class space_map {
 public:
  /// Adds a chunk of `runs` runs; run 0 is its header and taken. False: it is there already, or has no run to give.
  bool add_chunk(uint32_t chunk, uint32_t runs);

  /// Takes a row of `runs` > 0 runs, or nothing where none is free.
  std::optional<run_range> take(uint32_t runs);
  /// Takes exactly these. False (nothing taken): outside of the chunks, or not all free.
  bool take(const run_range& r);
  /// Gives them back. They must have been taken.
  void free(const run_range& r);
  /// All of them lie in a chunk, behind its header.
  bool contains(const run_range& r) const;
  /// Gives back everything that was taken in all chunks.
  void clear();

  /// Rows of free runs of a chunk, ascending; none of a chunk that is not there.
  std::vector<run_range> free_rows(uint32_t chunk) const;

  uint64_t taken() const { return taken_; }  // runs, headers not counted
  uint64_t total() const { return total_; }  // runs, headers not counted
  size_t chunks() const { return chunks_.size(); }
  uint32_t largest_free() const;  // runs in the longest free row; walks all bitmaps

 private:
  struct bitmap {
    std::vector<uint64_t> words;  // bit set: taken; bits past the end are set
    uint32_t runs = 0;
    uint32_t free = 0;
    uint32_t next = 1;             // where the search goes on
    uint32_t no_row = UINT32_MAX;  // no free row has so many runs; kept until something is freed
    bool taken(uint32_t run) const { return words[run / 64] >> (run % 64) & 1; }
    std::optional<uint32_t> find(uint32_t n, uint32_t from, uint32_t to) const;
    void set(uint32_t first, uint32_t n, bool taken);
  };

  std::map<uint32_t, bitmap> chunks_;
  uint32_t current_ = 0;  // chunk of the last take
  uint64_t taken_ = 0, total_ = 0;
};

}  // namespace troupe::kv
