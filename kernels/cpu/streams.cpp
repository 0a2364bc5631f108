// Residual streams (mHC) and Engram.
#include <cstring>

#include "kernels/cpu/operators_impl.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

void cpu_operators::embed_streams(place, const int32_t* tokens, uint32_t n, const weight& w, uint32_t hc, float* x) {
  each_row(c_, n, [&](uint32_t i) {
    float* row = x + size_t(i) * hc * w.cols;
    c_.kernels.dequantise_row(w, uint32_t(tokens[i]), row);
    for (uint32_t k = 1; k < hc; ++k) memcpy(row + size_t(k) * w.cols, row, w.cols * sizeof(float));
  });
}

void cpu_operators::hc_mix(place where, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const hc_weights& w,
                           float eps, float hc_eps, uint32_t iterations, float* pre, float* post, float* comb) {
  TROUPE_CHECK(hc >= 1 && hc <= 8 && w.fn.rows == (2 + hc) * hc, "hc {}, fn rows {}", hc, w.fn.rows);
  // fn . (x * r) is computed as (fn . x) * r: one pass less over the streams.
  float* m = c_.shared[0].get<float>(size_t(n) * w.fn.rows);
  linear(where, x, n, w.fn, m);
  each_row(c_, n, [&](uint32_t i) {
    const size_t width = size_t(hc) * hidden;
    const float r = 1.0f / __builtin_sqrtf(c_.kernels.mean_square(x + i * width, width) + eps);
    c_.kernels.hc_finish(m + size_t(i) * w.fn.rows, r, hc, w.base, w.scale, hc_eps, iterations, pre + size_t(i) * hc,
                         post + size_t(i) * hc, comb + size_t(i) * hc * hc);
  });
}

void cpu_operators::hc_collapse(place, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* pre,
                                float* u) {
  each_row(c_, n, [&](uint32_t i) {
    const float* row = x + size_t(i) * hc * hidden;
    float* out = u + size_t(i) * hidden;
    if (pre == nullptr) {
      memcpy(out, row, hidden * sizeof(float));
    } else {
      c_.kernels.hc_collapse(row, hc, hidden, pre + size_t(i) * hc, out);
    }
  });
}

void cpu_operators::hc_expand(place, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* y,
                              const float* post, const float* comb) {
  TROUPE_CHECK(hc <= 8, "hc {}", hc);
  each_row(c_, n, [&](uint32_t i) {
    c_.kernels.hc_expand(x + size_t(i) * hc * hidden, hc, hidden, y + size_t(i) * hidden, post + size_t(i) * hc,
                         comb + size_t(i) * hc * hc);
  });
}

void cpu_operators::hc_mean(place, const float* x, uint32_t n, uint32_t hc, uint32_t hidden, float* y,
                            size_t y_stride) {
  each_row(c_, n, [&](uint32_t i) { c_.kernels.hc_mean(x + size_t(i) * hc * hidden, hc, hidden, y + i * y_stride); });
}

void cpu_operators::engram_gather(place, const weight& table, const uint32_t* rows, uint32_t n, uint32_t columns,
                                  float* y) {
  each_row(c_, n, [&](uint32_t i) {
    for (uint32_t k = 0; k < columns; ++k) {
      const size_t at = size_t(i) * columns + k;
      c_.kernels.dequantise_row(table, rows[at], y + at * table.cols);
    }
  });
}

void cpu_operators::engram_gate(place, float* x, uint32_t n, uint32_t hc, uint32_t hidden, const float* kv,
                                const weight& q_weight, const weight& k_weight, float eps, const uint8_t* masked,
                                float* gates) {
  TROUPE_CHECK(q_weight.format == k_weight.format && hc <= 8, "engram weights of one format, hc {}", hc);
  each_row(c_, n, [&](uint32_t i) {
    float own[8];
    c_.kernels.engram_gate(x + size_t(i) * hc * hidden, hc, hidden, kv + size_t(i) * (hc + 1) * hidden, q_weight,
                           k_weight, eps, masked != nullptr && masked[i] != 0,
                           gates != nullptr ? gates + size_t(i) * hc : own);
  });
}

}  // namespace troupe::kernels::cpu
