#include "kernels/engine/handoff.hpp"

#include <isa-l/crc64.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "states are little endian");

constexpr uint64_t state_magic = 0x31'4e'44'48'50'52'54'00;  // version in the highest digit

uint64_t add_bytes(uint64_t sum, const std::byte* data, size_t bytes) {
  return crc64_ecma_refl(sum, reinterpret_cast<const unsigned char*>(data), bytes);
}

// The parts of a page that are valid with `rows` tokens in it, in order.
template <class F>
void valid_parts(const model_plan& plan, uint32_t rows, F f) {
  for (const source_plan& s : plan.sources) {
    const uint32_t groups = rows / s.ratio;
    f(s.main_offset, size_t{groups} * s.main_bytes);
    f(s.key_offset, size_t{groups} * s.key_bytes);
  }
}

// First position whose record a state of `head` holds, for a layer (backbone layers, then draft blocks).
uint32_t first_record(const model& m, const handoff_head& head, uint32_t layer) {
  const uint32_t last_window = head.rows > m.plan.window ? head.rows - m.plan.window : 0;
  if (layer >= m.config.num_hidden_layers)
    return head.context_end == head.rows ? std::max(head.context_floor, last_window) : head.rows;
  return std::max(layer <= m.plan.encoder_layers ? head.window_floor : head.decoder_floor, last_window);
}

uint32_t open_rows(const source_plan& s, const handoff_head& head) { return head.rows % s.ratio; }

size_t state_bytes(const model& m, const handoff_head& head) {
  size_t bytes = sizeof(handoff_head);
  for (uint32_t l = 0; l < m.plan.moe_layers; ++l)
    bytes += size_t{head.rows - first_record(m, head, l)} * m.plan.window_record_bytes;
  for (const source_plan& s : m.plan.sources)
    bytes += size_t{open_rows(s, head)} * 2 * m.config.head_dim * sizeof(float);
  return bytes;
}

// Calls f(memory of the slot, bytes) for every piece of the state behind its head, in the order of the bytes.
template <class F>
void pieces(const model& m, const kv_state& state, uint32_t slot, const handoff_head& head, F f) {
  for (uint32_t l = 0; l < m.plan.moe_layers; ++l) {
    const uint32_t layers = m.config.num_hidden_layers;
    const ring_view& ring = l < layers ? state.window(l) : state.draft(l - layers);
    for (uint32_t p = first_record(m, head, l); p < head.rows;) {
      const uint32_t at = p % ring.rows, n = std::min(head.rows - p, ring.rows - at);
      f(ring.base + slot * ring.slot_stride + size_t{at} * ring.record_bytes, size_t{n} * ring.record_bytes);
      p += n;
    }
  }
  for (uint32_t s = 0; s < m.plan.sources.size(); ++s) {
    const source_plan& source = m.plan.sources[s];
    const size_t row = size_t{2} * m.config.head_dim;
    if (const uint32_t n = open_rows(source, head); n > 0)  // members of the open group, which begins at index 0
      f(reinterpret_cast<std::byte*>(state.open(s) + size_t{slot} * source.ratio * row), n * row * sizeof(float));
  }
}

uint64_t token_checksum(std::span<const token_id> tokens) { return checksum(std::as_bytes(tokens)); }

uint64_t model_checksum(const model_facts& facts) { return checksum(std::as_bytes(std::span(facts.fingerprint))); }

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) { return add_bytes(0, bytes.data(), bytes.size()); }

uint64_t page_checksum(const model_plan& plan, std::span<const std::byte> page, uint32_t rows) {
  uint64_t sum = 0;
  valid_parts(plan, rows, [&](size_t offset, size_t bytes) { sum = add_bytes(sum, page.data() + offset, bytes); });
  return sum;
}

uint32_t handoff_bytes(const model& m) {
  handoff_head head;  // every window full, every group but one of its members
  head.rows = head.context_end = m.plan.window;
  size_t bytes = state_bytes(m, head);
  for (const source_plan& s : m.plan.sources) bytes += size_t{s.ratio - 1} * 2 * m.config.head_dim * sizeof(float);
  return static_cast<uint32_t>((bytes + 63) / 64 * 64);
}

uint32_t write_handoff(const model& m, const model_facts& facts, operators& ops, place where, const kv_state& state,
                       uint32_t slot, std::span<const token_id> tokens, handoff_head head, std::span<std::byte> out) {
  head.magic = state_magic;
  head.model = model_checksum(facts);
  head.tokens = token_checksum(tokens.first(head.rows));
  head.bytes = static_cast<uint32_t>(state_bytes(m, head));
  TROUPE_CHECK(head.bytes <= out.size(), "a state of {} B for a place of {} B", head.bytes, out.size());
  std::memcpy(out.data(), &head, sizeof head);
  size_t at = sizeof head;
  pieces(m, state, slot, head, [&](const std::byte* from, size_t bytes) {
    ops.copy(where, out.data() + at, from, bytes);
    at += bytes;
  });
  ops.synchronise(where);
  return head.bytes;
}

result<handoff_head> head_of(const model& m, const model_facts& facts, uint32_t rows, std::span<const std::byte> in) {
  handoff_head head;
  if (in.size() < sizeof head) return fail(errc::corrupt, "{} bytes are no state", in.size());
  std::memcpy(&head, in.data(), sizeof head);
  if (head.magic != state_magic) return fail(errc::corrupt, "these bytes are no state, or of another version");
  if (head.model != model_checksum(facts))
    return fail(errc::invalid_argument, "the state is of another model or numeric backend");
  if (head.rows != rows)
    return fail(errc::invalid_argument, "the state holds {} tokens, {} were announced", head.rows, rows);
  if (head.window_floor > head.rows || head.decoder_floor > head.rows || head.context_end > head.rows ||
      head.context_floor > head.rows || head.bytes != state_bytes(m, head) || head.bytes > in.size())
    return fail(errc::corrupt, "a state of {} B for {} rows with floors {}, {}, {}", head.bytes, head.rows,
                head.window_floor, head.decoder_floor, head.context_floor);
  return head;
}

result<handoff_head> read_handoff_head(const model& m, const model_facts& facts, const sequence_open& open,
                                       std::span<const std::byte> in) {
  TROUPE_TRY(const handoff_head head, head_of(m, facts, open.imported.rows, in));
  if (head.rows > open.tokens.size() || head.tokens != token_checksum(std::span(open.tokens).first(head.rows)))
    return fail(errc::invalid_argument, "the state is that of other tokens");
  return head;
}

void read_handoff(const model& m, operators& ops, place where, kv_state& state, uint32_t slot, const handoff_head& head,
                  std::span<const std::byte> in) {
  size_t at = sizeof head;
  pieces(m, state, slot, head, [&](std::byte* to, size_t bytes) {
    ops.copy(where, to, in.data() + at, bytes);
    at += bytes;
  });
  ops.synchronise(where);
}

result<void> check_blocks(const model_plan& plan, const sequence_export& want, std::span<std::byte> pool,
                          std::span<const page_id> pages, size_t first, size_t count) {
  if (want.rows == 0 || want.page_checksums.size() != pages.size() ||
      pages.size() != (size_t{want.rows} + plan.window - 1) / plan.window)
    return fail(errc::invalid_argument, "{} rows in {} pages with {} checksums", want.rows, pages.size(),
                want.page_checksums.size());
  for (size_t i = first; i < std::min(first + count, pages.size()); ++i) {
    const size_t at = size_t{pages[i].value} * plan.page_bytes;
    if (at + plan.page_bytes > pool.size())
      return fail(errc::invalid_argument, "page {} is outside the pool of {} B", pages[i].value, pool.size());
    const auto page = pool.subspan(at, plan.page_bytes);
    const uint32_t rows = static_cast<uint32_t>(std::min<size_t>(plan.window, want.rows - i * plan.window));
    if (page_checksum(plan, page, rows) != want.page_checksums[i])
      return fail(errc::corrupt, "block {} of {} is not what was exported", i, pages.size());
    if (rows == plan.window) continue;
    size_t end = 0;
    valid_parts(plan, rows, [&](size_t offset, size_t bytes) {
      std::memset(page.data() + end, 0, offset - end);
      end = offset + bytes;
    });
    std::memset(page.data() + end, 0, page.size() - end);
  }
  return {};
}

result<void> check_handoff(const model_plan& plan, const sequence_export& want, std::span<std::byte> pool,
                           std::span<const page_id> pages, std::span<const std::byte> state) {
  if (auto ok = check_blocks(plan, want, pool, pages, 0, pages.size()); !ok) return ok;
  if (state.size() < want.state_bytes || checksum(state.first(want.state_bytes)) != want.state_checksum)
    return fail(errc::corrupt, "the state is not what was exported");
  return {};
}

}  // namespace troupe::kernels
