// Sampling with counter-based Gumbel noise.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/operators_impl.hpp"
#include "kernels/cpu/top_k.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kernels::cpu {
namespace {

constexpr float none = -std::numeric_limits<float>::infinity();

/// Index of the largest value, ties to the lowest; 0 if nothing is above -inf.
uint32_t argmax(const float* x, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; ++i)
    if (x[i] > x[best]) best = i;
  return best;
}

/// out = x / temperature, or x if greedy; false if a value of x is a NaN or infinite (all exponent bits set). One pass,
/// vectorised: an integer test, because a sum of floats could not be reordered.
bool scaled_copy(const float* x, uint32_t n, bool greedy, float temperature, float* out) {
  constexpr uint32_t exponent = 0x7f800000;
  uint32_t bad = 0;
  for (uint32_t i = 0; i < n; ++i) {
    bad |= uint32_t((std::bit_cast<uint32_t>(x[i]) & exponent) == exponent);
    out[i] = greedy ? x[i] : x[i] / temperature;
  }
  return bad == 0;
}

std::array<uint32_t, 4> noise(const sample_row& row, uint32_t block) {
  return philox({block, row.position, 0, 0}, {uint32_t(row.seed), uint32_t(row.seed >> 32)});
}

/// Sets every logit outside the row's top_k and top_p to -inf. l: logits / temperature.
void restrict(const kernel_table& kernels, const sample_row& row, uint32_t n, float* l, float* e, int32_t* work) {
  int32_t* keys = work + n;
  if (row.top_k > 0 && row.top_k < n) {
    for (uint32_t i = 0; i < n; ++i) keys[i] = order_key(l[i]);
    uint32_t next = 0;
    top_k(keys, n, row.top_k, work, [&](uint32_t i) {
      std::fill(l + next, l + i, none);
      next = i + 1;
    });
    std::fill(l + next, l + n, none);
  }
  if (row.top_p >= 1) return;
  const float total = kernels.exp_sum(l, n, l[argmax(l, n)], e);
  const double wanted = double(row.top_p) * double(total);
  for (uint32_t i = 0; i < n; ++i) keys[i] = order_key(l[i]);
  // Most distributions need few tokens: sort the best 64, then eight times as many, until they carry enough.
  int32_t* best = work + 2 * size_t(n);
  for (uint32_t tried = std::min(64u, n);; tried = tried > n / 8 ? n : tried * 8) {
    uint32_t m = 0;
    top_k(keys, n, tried, work, [&](uint32_t i) { best[m++] = int32_t(i); });
    std::sort(best, best + m, [&](int32_t a, int32_t b) { return keys[a] != keys[b] ? keys[a] > keys[b] : a < b; });
    double sum = 0;
    uint32_t kept = 0;
    while (kept < m && (kept == 0 || sum < wanted)) sum += double(e[best[kept++]]);
    if (sum < wanted && tried < n) continue;
    std::sort(best, best + kept);
    uint32_t next = 0;
    for (uint32_t j = 0; j < kept; ++j) {
      std::fill(l + next, l + best[j], none);
      next = uint32_t(best[j]) + 1;
    }
    std::fill(l + next, l + n, none);
    return;
  }
}

/// Adds the row's Gumbel noise to every finite value.
void add_noise(const kernel_table& kernels, const sample_row& row, uint32_t n, float* l) {
  uint32_t words[64];
  float g[64];
  for (uint32_t t = 0; t < n; t += 64) {
    const uint32_t count = std::min(64u, n - t);
    if (std::all_of(l + t, l + t + count, [](float x) { return x == none; })) continue;
    for (uint32_t j = 0; j < count; j += 4) {
      const auto four = noise(row, (t + j) / 4);
      std::copy(four.begin(), four.end(), words + j);
    }
    kernels.gumbel(words, count, g);
    for (uint32_t j = 0; j < count; ++j) l[t + j] += g[j];
  }
}

}  // namespace

void cpu_operators::sample(place, const float* logits, uint32_t n, uint32_t vocabulary, const sample_row* rows,
                           int32_t* tokens, float* logprobs, int32_t* top_tokens, float* top_logprobs) {
  if (n == 0) return;
  const kernel_table& kernels = c_.kernels;
  c_.pool.run(n, [&](uint32_t i, uint32_t thread) {
    const sample_row& row = rows[i];
    const float* given = logits + size_t(i) * vocabulary;
    float* l = c_.per_thread[thread].get<float>(size_t(vocabulary) * 5);
    float* e = l + vocabulary;
    int32_t* work = reinterpret_cast<int32_t*>(e + vocabulary);  // three times the vocabulary
    const bool greedy = !(row.temperature > 0);
    if (!scaled_copy(given, vocabulary, greedy, row.temperature, l)) {
      tokens[i] = -1;
      return;
    }
    for (uint32_t b = 0; b < row.banned_count; ++b)
      if (row.banned[b] >= 0 && uint32_t(row.banned[b]) < vocabulary) l[row.banned[b]] = none;
    if (!greedy) {
      restrict(kernels, row, vocabulary, l, e, work);
      add_noise(kernels, row, vocabulary, l);
    }
    const uint32_t token = argmax(l, vocabulary);
    tokens[i] = int32_t(token);
    if (row.logprobs < 0) return;

    const float top = given[argmax(given, vocabulary)];
    const float lse = top + kernels.log(kernels.exp_sum(given, vocabulary, top, nullptr));
    logprobs[i] = given[token] - lse;
    const uint32_t wanted = std::min({uint32_t(row.logprobs), max_top, vocabulary});
    if (wanted == 0) return;
    for (uint32_t t = 0; t < vocabulary; ++t) work[t] = order_key(given[t]);
    int32_t* best = top_tokens + size_t(i) * max_top;
    uint32_t m = 0;
    top_k(work, vocabulary, wanted, work + vocabulary, [&](uint32_t t) { best[m++] = int32_t(t); });
    std::stable_sort(best, best + m, [&](int32_t a, int32_t b) { return work[a] > work[b]; });
    for (uint32_t j = 0; j < m; ++j) top_logprobs[size_t(i) * max_top + j] = given[best[j]] - lse;
  });
}

}  // namespace troupe::kernels::cpu
