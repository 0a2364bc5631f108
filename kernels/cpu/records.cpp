// Writing key/value records.
#include "kernels/formats/records.hpp"

#include <cstring>

#include "kernels/cpu/operators_impl.hpp"
#include "kernels/cpu/rotation.hpp"
#include "kernels/cpu/views.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {
namespace {

uint8_t* bytes(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }

/// A copy of x with its last 2 * pairs channels rotated.
const float* rotated(float* copy, const float* x, uint32_t dim, const float* angles, uint32_t pairs) {
  memcpy(copy, x, dim * sizeof(float));
  rotate(copy + dim - 2 * pairs, angles, pairs, 1.0f);
  return copy;
}

}  // namespace

void cpu_operators::window_records(place, const float* kv, uint32_t n, uint32_t dim, const float* angles,
                                   uint32_t pairs, std::byte* records) {
  const size_t width = formats::window_record_bytes(dim);
  float* copies = c_.shared[0].get<float>(size_t(n) * dim);
  each_row(c_, n, [&](uint32_t i) {
    const float* x =
        rotated(copies + size_t(i) * dim, kv + size_t(i) * dim, dim, angles + size_t(i) * pairs * 2, pairs);
    formats::encode_window_record(x, dim, bytes(records + i * width));
  });
}

void cpu_operators::store_records(place, const std::byte* records, const record_copy* copies, uint32_t n,
                                  const ring_view& ring) {
  for (uint32_t i = 0; i < n; ++i)
    memcpy(ring_record(ring, copies[i].slot, copies[i].position), records + size_t(copies[i].row) * ring.record_bytes,
           ring.record_bytes);
}

void cpu_operators::compress(place, const group_ref* groups, uint32_t count, const row_ref* rows, const float* kv,
                             const float* gate, const float* open, uint32_t ratio, const weight& norm, float eps,
                             float* latent) {
  TROUPE_CHECK(ratio >= 1 && ratio <= 16, "compression ratio {}", ratio);
  const size_t dim = norm.cols;
  each_row(c_, count, [&](uint32_t i) {
    const group_ref& g = groups[i];
    float* out = latent + i * dim;
    if (ratio == 1) return c_.kernels.rms_norm(kv + g.row * dim, norm, eps, out);
    const row_ref& row = rows[g.row];
    const float *kvs[16], *gates[16];
    for (uint32_t m = 0; m < ratio; ++m) {
      const uint32_t t = g.group * ratio + m;
      if (t >= row.first_position) {
        const size_t at = (size_t(row.first_row) + (t - row.first_position)) * dim;
        kvs[m] = kv + at;
        gates[m] = gate + at;
      } else {
        kvs[m] = open + ((size_t(g.slot) * ratio + m) * 2) * dim;
        gates[m] = kvs[m] + dim;
      }
    }
    c_.kernels.softmax_gate(kvs, gates, ratio, uint32_t(dim), out);
    c_.kernels.rms_norm(out, norm, eps, out);
  });
}

void cpu_operators::store_open(place, const float* kv, const float* gate, uint32_t dim, const record_copy* copies,
                               uint32_t n, uint32_t ratio, float* open) {
  for (uint32_t i = 0; i < n; ++i) {
    float* to = open + ((size_t(copies[i].slot) * ratio + copies[i].position % ratio) * 2) * dim;
    memcpy(to, kv + size_t(copies[i].row) * dim, dim * sizeof(float));
    memcpy(to + dim, gate + size_t(copies[i].row) * dim, dim * sizeof(float));
  }
}

void cpu_operators::store_main(place, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                               const float* angles, uint32_t pairs, const paged_view& entries) {
  float* copies = c_.shared[0].get<float>(size_t(count) * dim);
  each_row(c_, count, [&](uint32_t i) {
    const float* y = rotated(copies + size_t(i) * dim, x + size_t(i) * dim, dim, angles + size_t(i) * pairs * 2, pairs);
    formats::encode_main_entry(y, dim, bytes(paged_entry(entries, groups[i].slot, groups[i].group)));
  });
}

void cpu_operators::store_index_key(place, const float* x, const group_ref* groups, uint32_t count, uint32_t dim,
                                    const float* angles, uint32_t pairs, const paged_view& keys) {
  float* copies = c_.shared[0].get<float>(size_t(count) * dim);
  each_row(c_, count, [&](uint32_t i) {
    const float* y = rotated(copies + size_t(i) * dim, x + size_t(i) * dim, dim, angles + size_t(i) * pairs * 2, pairs);
    formats::encode_index_key(y, dim, bytes(paged_entry(keys, groups[i].slot, groups[i].group)));
  });
}

void cpu_operators::index_query(place, float* q, uint32_t n, uint32_t heads, uint32_t dim, const float* angles,
                                uint32_t pairs) {
  TROUPE_CHECK(dim <= 1024, "index head dim {}", dim);
  each_row(c_, n, [&](uint32_t i) {
    uint8_t key[formats::index_key_bytes(1024)];
    for (uint32_t h = 0; h < heads; ++h) {
      float* x = q + (size_t(i) * heads + h) * dim;
      rotate(x + dim - 2 * pairs, angles + size_t(i) * pairs * 2, pairs, 1.0f);
      formats::encode_index_key(x, dim, key);
      formats::decode_index_key(key, dim, x);
    }
  });
}

}  // namespace troupe::kernels::cpu
