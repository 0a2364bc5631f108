// Which rows of the Engram tables a token reads: a hash of the last few tokens' compressed ids, pure in the token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/model/config.hpp"

namespace troupe::kernels {

/// numpy.random.default_rng(seed).integers(0, high, size=count) with high > 2^32: PCG64 (XSL-RR 128/64) seeded through
/// SeedSequence (O'Neill's seed_seq_fe), bounded by Lemire's method.
std::vector<int64_t> numpy_integers(uint64_t seed, uint64_t high, size_t count);

/// Multipliers of one Engram layer: integers(0, (2^63 - 1) / compressed vocabulary / 2) * 2 + 1, seeded with
/// 10007 * layer.
std::vector<int64_t> engram_multipliers(uint32_t layer, uint32_t compressed_vocabulary, uint32_t max_ngram);

/// Bucket sizes [engram layer][order - 2][head]: primes >= vocabulary in ascending order, none used twice.
std::vector<std::vector<std::vector<uint32_t>>> engram_primes(size_t layers, uint32_t vocabulary, uint32_t orders,
                                                              uint32_t heads);

/// The hash of all Engram layers. Thread rules: const after construction.
class engram_hash {
 public:
  /// From `directory`/engram_hash.json where it exists (token_map, and if given multipliers and primes), else from
  /// `directory`/tokenizer.json. corrupt or invalid_argument if the map does not cover the vocabulary, its size differs
  /// from engram_compressed_vocab_size, or the primes of a layer do not sum to engram_num_embeddings.
  static result<engram_hash> load(const std::string& directory, const model_config& config);

  /// Row numbers of the token at `position`, for every Engram layer: out [layers][columns], order-major, head-minor.
  /// `tokens` are the sequence's tokens from position 0; negative ids are dead (an image span). Look-backs before
  /// position 0, or at and behind a dead token, count as the pad id.
  void rows(std::span<const int32_t> tokens, uint32_t position, uint32_t* out) const;

  uint32_t layers() const { return static_cast<uint32_t>(modules_.size()); }
  uint32_t columns() const { return columns_; }
  const std::vector<int32_t>& token_map() const { return map_; }
  const std::vector<int64_t>& multipliers(uint32_t layer) const { return modules_[layer].multipliers; }
  const std::vector<uint32_t>& primes(uint32_t layer) const { return modules_[layer].primes; }

 private:
  struct module {
    std::vector<int64_t> multipliers;  // per look-back
    std::vector<uint32_t> primes;      // [columns]
    std::vector<uint32_t> offsets;     // [columns], running sum of primes
  };
  std::vector<int32_t> map_;
  std::vector<module> modules_;
  uint32_t columns_ = 0, heads_ = 0, max_ngram_ = 0;
  int32_t pad_ = 0;  // compressed
};

/// Compressed ids [vocabulary] from the text of a tokenizer.json: ids whose normalised text is equal share an id, in
/// order of first appearance. Normalisation: NFKC, NFD, no nonspacing marks, lower case, runs of [ \t\r\n] to one
/// space, a lone space kept as U+E000, stripped. An id whose bytes are not UTF-8 is keyed by its raw token.
result<std::vector<int32_t>> compress_vocabulary(const std::string& tokenizer_json, uint32_t vocabulary,
                                                 const std::string& source);

}  // namespace troupe::kernels
