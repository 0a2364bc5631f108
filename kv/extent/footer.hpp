// The footer that makes a shard on a disk self-describing: who it is, where it lies, and checksums of all of it.
//
// A shard lies in consecutive 4 KiB runs of one chunk file: payload, zeros, footer. The footer takes the last 2,048
// bytes of the last run; where the payload's tail leaves less than that free, one further run is taken. A device can
// so be scanned by looking at the tail of every run. The payload is covered by CRC32C of granules of 4 KiB << crc_shift
// (the smallest shift with which everything fits; 0 for the shards of a fleet), counted from the shard's start.
//
// Bytes of a footer, little-endian: magic u64, version u16, body length u16 (whole footer without the last CRC), then
// the members in the order of `shard_footer` and `extent_info`, then CRC32C u32 of all bytes before. The rest of the
// 2,048 bytes is zero. The same bytes without the zeros are the shard's record in the database.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/extent/extent.hpp"

namespace troupe::kv {

inline constexpr uint32_t run_bytes = 4096;     // unit of allocation and of direct I/O
inline constexpr uint32_t footer_bytes = 2048;  // at the end of a shard's last run
inline constexpr uint16_t footer_version = 1;

/// Names a device (one directory of chunk files) for ever; random.
using device_uuid = std::array<uint8_t, 16>;

/// All that is known of one shard on one device.
struct shard_footer {
  device_uuid device{};
  uint32_t chunk = 0;          // number of the chunk file
  uint32_t first_run = 0;      // in the chunk; run 0 is the chunk's header
  uint32_t runs = 0;           // including the footer's
  uint64_t sequence = 0;       // of the write, counted per device: the higher one is newer
  uint32_t shard = 0;          // index in the extent, < k + m
  uint64_t payload_bytes = 0;  // shard_bytes(extent)
  uint8_t crc_shift = 0;       // a granule is run_bytes << crc_shift
  std::vector<uint32_t> crcs;  // of the granules of the payload
  extent_info extent;

  bool operator==(const shard_footer&) const = default;
  uint64_t granule() const { return uint64_t{run_bytes} << crc_shift; }
};

/// Runs of a shard of `payload_bytes` > 0, footer included.
uint32_t runs_of(uint64_t payload_bytes);

/// Bytes of those runs: size of a buffer in which a shard is written without another copy.
inline uint64_t shard_buffer_bytes(uint64_t payload_bytes) { return uint64_t{runs_of(payload_bytes)} * run_bytes; }

/// Smallest crc_shift with which the footer of a shard of this extent fits into 2,048 bytes. It always exists: the
/// fixed part takes under 1,024 bytes.
uint8_t crc_shift_of(const extent_info& e);

/// CRCs of the granules of `payload`.
std::vector<uint32_t> granule_crcs(std::span<const std::byte> payload, uint8_t crc_shift);

/// The footer's bytes without the zeros at the end. Checks the rules of `decode`: breaking one is a bug of the caller.
std::string encode(const shard_footer& f);

/// Reads a footer from the start of `bytes` (up to 2,048; zeros may follow). not_found: no magic, so no footer at all;
/// corrupt: anything else that `encode` did not write (torn, flipped, another version, members that contradict each
/// other, trailing bytes that are not zero). Never reads past `bytes`, whatever they hold.
result<shard_footer> decode_footer(std::span<const std::byte> bytes);

inline constexpr uint16_t chunk_header_version = 1;

/// First 4 KiB of a chunk file.
struct chunk_header {
  device_uuid device{};
  uint32_t number = 0;
  uint64_t bytes = 0;  // of the chunk file, header included; a multiple of 4 KiB
  bool operator==(const chunk_header&) const = default;
};

/// 4,096 bytes: magic u64, version u16, zero u16, members, CRC32C of all before, zeros.
void encode(const chunk_header& h, std::span<std::byte, run_bytes> out);

/// corrupt for anything that `encode` did not write.
result<chunk_header> decode_chunk_header(std::span<const std::byte, run_bytes> bytes);

}  // namespace troupe::kv
