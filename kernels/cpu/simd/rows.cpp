// Kernels of one row at a time: norms, activations, residual streams, Engram gate, router scores.
#include "kernels/cpu/simd/elementary.hpp"
#include "kernels/cpu/simd/partial.hpp"
#include "kernels/cpu/simd/tables.hpp"
#include "kernels/cpu/simd/weights.hpp"

namespace troupe::kernels::cpu::TROUPE_ISA {
namespace {

template <weight_format F>
void rms_norm_as(const float* x, const weight& w, float r, float* y) {
  row_reader<F> row(w, 0);
  const vec rs = set1(r);
  for (uint32_t k = 0; k < w.cols; k += 16) {
    store(y + k, mul(mul(load(x + k), rs), row.get(k)));
  }
}

float reciprocal_root(float x) { return 1.0f / __builtin_sqrtf(x); }

float one(vec v) {
  float lanes[16];
  store(lanes, v);
  return lanes[0];
}

}  // namespace

float mean_square(const float* x, size_t count) {
  vec acc = zero();
  for (size_t k = 0; k < count; k += 16) {
    const vec v = load(x + k);
    acc = fma(v, v, acc);
  }
  return sum(acc) / float(count);
}

void rms_norm(const float* x, const weight& w, float eps, float* y) {
  const float r = reciprocal_root(mean_square(x, w.cols) + eps);
  switch (w.format) {
    case weight_format::f32:
      return rms_norm_as<weight_format::f32>(x, w, r, y);
    case weight_format::bf16:
      return rms_norm_as<weight_format::bf16>(x, w, r, y);
    case weight_format::fp8_block:
      return rms_norm_as<weight_format::fp8_block>(x, w, r, y);
    case weight_format::fp8_row:
      return rms_norm_as<weight_format::fp8_row>(x, w, r, y);
    case weight_format::mxfp4:
      return rms_norm_as<weight_format::mxfp4>(x, w, r, y);
  }
}

void add_to(const float* x, size_t count, float* y) {
  for (size_t k = 0; k < count; k += 16) {
    const size_t n = count - k;
    store_part(y + k, n, add(load_part(y + k, n, 0), load_part(x + k, n, 0)));
  }
}

void sigmoid_in_place(float* x, size_t count) {
  for (size_t k = 0; k < count; k += 16) store_part(x + k, count - k, sigmoid(load_part(x + k, count - k, 0)));
}

void softmax_gate(const float* const* kv, const float* const* gate, uint32_t ratio, uint32_t dim, float* out) {
  for (uint32_t k = 0; k < dim; k += 16) {
    vec m = load(gate[0] + k);
    for (uint32_t i = 1; i < ratio; ++i) m = max(m, load(gate[i] + k));
    vec total = zero();
    for (uint32_t i = 0; i < ratio; ++i) total = add(total, exp(sub(load(gate[i] + k), m)));
    vec acc = zero();
    for (uint32_t i = 0; i < ratio; ++i) acc = fma(div(exp(sub(load(gate[i] + k), m)), total), load(kv[i] + k), acc);
    store(out + k, acc);
  }
}

void hc_finish(const float* m, float r, uint32_t hc, const float* base, const float* scale, float hc_eps,
               uint32_t iterations, float* pre, float* post, float* comb) {
  float t[64] = {};  // hc values, then hc * hc
  for (uint32_t k = 0; k < hc; ++k) t[k] = m[k] * r * scale[0] + base[k];
  sigmoid_in_place(t, hc);
  for (uint32_t k = 0; k < hc; ++k) pre[k] = t[k] + hc_eps;
  for (uint32_t k = 0; k < hc; ++k) t[k] = m[hc + k] * r * scale[1] + base[hc + k];
  sigmoid_in_place(t, hc);
  for (uint32_t k = 0; k < hc; ++k) post[k] = 2.0f * t[k];

  for (uint32_t i = 0; i < hc * hc; ++i) t[i] = m[2 * hc + i] * r * scale[2] + base[2 * hc + i];
  for (uint32_t k = 0; k < hc; ++k) {
    float largest_logit = t[k * hc];
    for (uint32_t j = 1; j < hc; ++j) largest_logit = largest_logit > t[k * hc + j] ? largest_logit : t[k * hc + j];
    for (uint32_t j = 0; j < hc; ++j) t[k * hc + j] -= largest_logit;
  }
  for (uint32_t i = 0; i < hc * hc; i += 16) store_part(t + i, hc * hc - i, exp(load_part(t + i, hc * hc - i, 0)));
  for (uint32_t k = 0; k < hc; ++k) {
    float total = 0;
    for (uint32_t j = 0; j < hc; ++j) total += t[k * hc + j];
    for (uint32_t j = 0; j < hc; ++j) t[k * hc + j] = t[k * hc + j] / total + hc_eps;
  }
  auto columns = [&] {
    for (uint32_t j = 0; j < hc; ++j) {
      float total = 0;
      for (uint32_t k = 0; k < hc; ++k) total += t[k * hc + j];
      for (uint32_t k = 0; k < hc; ++k) t[k * hc + j] /= total + hc_eps;
    }
  };
  columns();
  for (uint32_t i = 1; i < iterations; ++i) {
    for (uint32_t k = 0; k < hc; ++k) {
      float total = 0;
      for (uint32_t j = 0; j < hc; ++j) total += t[k * hc + j];
      for (uint32_t j = 0; j < hc; ++j) t[k * hc + j] /= total + hc_eps;
    }
    columns();
  }
  for (uint32_t i = 0; i < hc * hc; ++i) comb[i] = t[i];
}

void hc_collapse(const float* x, uint32_t hc, uint32_t hidden, const float* weights, float* y) {
  for (uint32_t i = 0; i < hidden; i += 16) {
    vec acc = mul(set1(weights[0]), load(x + i));
    for (uint32_t k = 1; k < hc; ++k) acc = fma(set1(weights[k]), load(x + size_t(k) * hidden + i), acc);
    store(y + i, acc);
  }
}

void hc_expand(float* x, uint32_t hc, uint32_t hidden, const float* y, const float* post, const float* comb) {
  for (uint32_t i = 0; i < hidden; i += 16) {
    vec old[8];
    for (uint32_t k = 0; k < hc; ++k) old[k] = load(x + size_t(k) * hidden + i);
    const vec ys = load(y + i);
    for (uint32_t k = 0; k < hc; ++k) {
      vec acc = mul(set1(post[k]), ys);
      for (uint32_t j = 0; j < hc; ++j) acc = fma(set1(comb[j * hc + k]), old[j], acc);
      store(x + size_t(k) * hidden + i, acc);
    }
  }
}

void hc_mean(const float* x, uint32_t hc, uint32_t hidden, float* y) {
  const vec share = set1(1.0f / float(hc));
  for (uint32_t i = 0; i < hidden; i += 16) {
    vec acc = load(x + i);
    for (uint32_t k = 1; k < hc; ++k) acc = add(acc, load(x + size_t(k) * hidden + i));
    store(y + i, mul(acc, share));
  }
}

namespace {

template <weight_format F>
float engram_dot(const float* x, const float* key, const weight& q_weight, const weight& k_weight, uint32_t stream) {
  row_reader<F> q(q_weight, stream), k(k_weight, stream);
  vec acc = zero();
  for (uint32_t i = 0; i < q_weight.cols; i += 16) {
    acc = fma(mul(load(x + i), mul(q.get(i), k.get(i))), load(key + i), acc);
  }
  return sum(acc);
}

}  // namespace

void engram_gate(float* x, uint32_t hc, uint32_t hidden, const float* kv, const weight& q_weight,
                 const weight& k_weight, float eps, bool masked, float* gates) {
  const float* value = kv + size_t(hc) * hidden;
  const float share = reciprocal_root(float(hidden));
  for (uint32_t k = 0; k < hc; ++k) {
    float* xk = x + size_t(k) * hidden;
    const float* key = kv + size_t(k) * hidden;
    float gate = 0;
    if (!masked) {
      float dot = q_weight.format == weight_format::bf16
                      ? engram_dot<weight_format::bf16>(xk, key, q_weight, k_weight, k)
                      : engram_dot<weight_format::f32>(xk, key, q_weight, k_weight, k);
      dot = dot * reciprocal_root(mean_square(xk, hidden) + eps) * reciprocal_root(mean_square(key, hidden) + eps) *
            share;
      float size = __builtin_fabsf(dot);
      size = __builtin_sqrtf(size > 1e-6f ? size : 1e-6f);
      gate = one(sigmoid(set1(__builtin_copysignf(size, dot))));
    }
    gates[k] = gate;
    const vec g = set1(gate);
    for (uint32_t i = 0; i < hidden; i += 16) store(xk + i, fma(g, load(value + i), load(xk + i)));
  }
}

void router_scores(const float* logits, uint32_t count, float temperature, float* s) {
  const vec t = set1(temperature);
  for (uint32_t k = 0; k < count; k += 16)
    store_part(s + k, count - k, sqrt(softplus(div(load_part(logits + k, count - k, 0), t))));
}

void swiglu(const float* gate, const float* up, uint32_t count, float limit, float route_weight, float* h) {
  const vec high = set1(limit), low = set1(-limit), weight = set1(route_weight);
  for (uint32_t k = 0; k < count; k += 16) {
    const size_t n = count - k;
    const vec g = min(load_part(gate + k, n, 0), high);
    const vec u = max(min(load_part(up + k, n, 0), high), low);
    store_part(h + k, n, mul(mul(mul(g, sigmoid(g)), u), weight));
  }
}

void gumbel(const uint32_t* words, size_t count, float* out) {
  for (size_t i = 0; i < count; i += 16) {
    const size_t n = count - i < 16 ? count - i : 16;
    float from_zero[16], from_one[16];  // u, and 1 - u; each exact near its end of the range
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t k = j < n ? words[i + j] >> 8 : 0;
      from_zero[j] = (float(k) + 0.5f) * 0x1p-24f;
      from_one[j] = (float(0xffffff - k) + 0.5f) * 0x1p-24f;
    }
    const vec u = load(from_zero);
    const vec e = negate(select(less(set1(0.71f), u), log1p_small(negate(load(from_one))), log(u)));
    store_part(out + i, n, negate(log(e)));
  }
}

float exp_sum(const float* x, size_t count, float shift, float* out) {
  const vec s = set1(shift);
  vec acc = zero();
  for (size_t k = 0; k < count; k += 16) {
    const vec e = exp(sub(load_part(x + k, count - k, -__builtin_inff()), s));
    if (out != nullptr) store_part(out + k, count - k, e);
    acc = add(acc, e);
  }
  return sum(acc);
}

float log_one(float x) { return one(log(set1(x))); }

}  // namespace troupe::kernels::cpu::TROUPE_ISA
