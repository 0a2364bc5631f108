// The key of a block: a SHA-256 chain over everything that the bytes of the block depend on.
//
// Input of block i's digest, in this order, each field after its length in bytes as u32 little-endian:
//   fingerprint   32 bytes: weights, numeric backend, replay mode (hash_scheme)
//   salt          of the tenant, 0 to 256 bytes; given by the gateway, never by a client
//   parent        nothing for block 0, else the 16 bytes of block i - 1's hash
//   ids           the block's token ids, u32 little-endian each
//   block size    u32 little-endian, in tokens
//   tokens        u32 little-endian: cumulative count at the block's end, (i + 1) x block size
// The hash is the first 16 bytes of the digest, kept with the cumulative count. A block is hashed only when complete.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.hpp"

namespace troupe::kv {

/// What two parties must agree on before they may exchange hashes. Part of every handshake of the store.
struct hash_scheme {
  static constexpr std::string_view current_name = "troupe-sha256-chain";
  static constexpr uint32_t current_version = 1;

  std::string name{current_name};
  uint32_t version = current_version;
  uint32_t block_tokens = 128;            // tokens of a block; 1 to 65,536
  std::array<uint8_t, 32> fingerprint{};  // of model, numeric backend and replay mode

  bool operator==(const hash_scheme&) const = default;

  /// What shard footers and extent records carry: 8 bytes (little-endian) of a SHA-256 over all members. Never 0.
  uint64_t id() const;
};

/// Lets CAF (or any visitor in CAF's style) serialise it.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, hash_scheme& s) {
  return f(s.name, s.version, s.block_tokens, s.fingerprint);
}

/// Nothing if hashes of the two mean the same blocks; else `unsupported` that names the first member that differs, both
/// values, and what to do. `who` is how the message calls the other side.
result<void> check_same_scheme(const hash_scheme& ours, const hash_scheme& theirs, std::string_view who);

/// Hashes a chain as its tokens come. Copyable: a copy continues the same chain on its own (a fork of a conversation).
/// Not thread safe; copies on different threads are fine.
class block_hasher {
 public:
  static constexpr size_t max_salt = 256;

  /// At block 0. Errors: invalid_argument (block size out of 1..65,536, salt longer than 256 bytes), unsupported (a
  /// scheme name or version that this build does not compute).
  static result<block_hasher> make(const hash_scheme& scheme, std::string_view salt);
  /// Behind a block whose hash is known, its tokens not needed: a chain that somebody else began. Further errors:
  /// invalid_argument (not at the end of a block of this scheme).
  static result<block_hasher> resume(const hash_scheme& scheme, std::string_view salt, const block_hash& parent);

  block_hasher(const block_hasher&);
  block_hasher& operator=(const block_hasher&);
  block_hasher(block_hasher&&) noexcept;
  block_hasher& operator=(block_hasher&&) noexcept;
  ~block_hasher();

  /// Appends tokens; pushes the hash of each block that becomes complete to the end of `out`. Returns how many.
  /// Errors: invalid_argument when the chain would pass 2^32 - 1 - block size tokens; nothing is appended then.
  result<size_t> append(std::span<const uint32_t> tokens, std::vector<block_hash>& out);

  /// Hash of the last complete block; default (0 tokens) before the first.
  const block_hash& last() const;

  /// Tokens appended, including those of the incomplete block.
  uint64_t tokens() const;

 private:
  struct state;
  explicit block_hasher(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

/// The hashes of all complete blocks of a chain. Errors as block_hasher::make and append.
result<std::vector<block_hash>> hash_chain(const hash_scheme& scheme, std::string_view salt,
                                           std::span<const uint32_t> tokens);

}  // namespace troupe::kv
