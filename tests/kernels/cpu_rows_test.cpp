// Norms, residual streams, Engram, router, experts and element-wise operators against plain double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/kernels/cpu_test_util.hpp"

namespace troupe::kernels::cpu {
namespace {

constexpr double eps32 = 0x1p-24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(rows, rms_norm) {
  const uint32_t n = 7, width = 96;
  rng r(21);
  SCOPED_TRACE("seed 21");
  const test_matrix w(r, weight_format::bf16, 1, width);
  auto x = random_floats(r, n * width, 3);
  std::fill(x.begin(), x.begin() + width, 0.0f);  // a zero row stays zero: eps keeps the root finite
  auto compute = [&](operators& ops, uint32_t batch) {
    std::vector<float> y(x.size());
    in_batches(n, batch,
               [&](uint32_t i, uint32_t m) { ops.rms_norm({}, &x[i * width], m, w.w, 1e-20f, &y[i * width]); });
    return y;
  };
  const auto y = compute(*make_operators(1), n);
  for (uint32_t i = 0; i < n; ++i) {
    double square = 0;
    for (uint32_t k = 0; k < width; ++k) square += double(x[i * width + k]) * x[i * width + k];
    const double root = 1 / std::sqrt(square / width + 1e-20);
    for (uint32_t k = 0; k < width; ++k) {
      const double want = x[i * width + k] * root * w.at(0, k);
      // the sum's order (width / 16 + 4 roundings, halved by the root), then mean, root, division and two products
      EXPECT_NEAR(y[i * width + k], want, std::fabs(want) * eps32 * (width / 32 + 2 + 5));
    }
  }
  expect_same_on_every_path(n, compute);
}

TEST(rows, embed_gather_and_elementwise) {
  rng r(22);
  SCOPED_TRACE("seed 22");
  const test_matrix table(r, weight_format::bf16, 20, 64), rows(r, weight_format::fp8_row, 50, 32);
  const auto ops = make_operators(2);
  const int32_t tokens[] = {3, 19, 0};
  std::vector<float> y(3 * 64), streams(3 * 4 * 64);
  ops->embed({}, tokens, 3, table.w, y.data());
  ops->embed_streams({}, tokens, 3, table.w, 4, streams.data());
  for (uint32_t i = 0; i < 3; ++i)
    for (uint32_t k = 0; k < 64; ++k) {
      EXPECT_EQ(double(y[i * 64 + k]), table.at(uint32_t(tokens[i]), k));
      for (uint32_t s = 0; s < 4; ++s) EXPECT_EQ(streams[(i * 4 + s) * 64 + k], y[i * 64 + k]);
    }
  const uint32_t index[] = {49, 1, 7, 0, 3, 48};
  std::vector<float> g(6 * 32);
  ops->engram_gather({}, rows.w, index, 2, 3, g.data());
  for (uint32_t i = 0; i < 6; ++i)
    for (uint32_t k = 0; k < 32; ++k) EXPECT_EQ(double(g[i * 32 + k]), rows.at(index[i], k));

  std::vector<float> a(37, 2.0f), b(37);
  std::iota(b.begin(), b.end(), 0.0f);
  ops->add({}, b.data(), 37, a.data());
  for (int i = 0; i < 37; ++i) EXPECT_EQ(a[size_t(i)], 2.0f + float(i));
  std::vector<float> joined(2 * 5);
  ops->concat({}, b.data(), 2, b.data() + 10, 3, 2, joined.data());
  EXPECT_EQ(joined, (std::vector<float>{0, 1, 10, 11, 12, 2, 3, 13, 14, 15}));
  const uint32_t order[] = {2, 0};
  std::vector<float> picked(4), back(6, -1);
  ops->gather_rows({}, b.data(), order, 2, 2, picked.data());
  EXPECT_EQ(picked, (std::vector<float>{4, 5, 0, 1}));
  ops->scatter_rows({}, picked.data(), order, 2, 2, back.data());
  EXPECT_EQ(back, (std::vector<float>{0, 1, -1, -1, 4, 5}));
}

TEST(rows, rope_and_its_inverse) {
  const uint32_t n = 3, heads = 2, dim = 32, pairs = 8;
  rng r(23);
  SCOPED_TRACE("seed 23");
  const auto ops = make_operators(1);
  const uint32_t positions[] = {0, 17, 1000000};
  std::vector<float> freqs(pairs), angles(n * pairs * 2);
  for (uint32_t j = 0; j < pairs; ++j) freqs[j] = float(std::pow(10000.0, -2.0 * j / (2 * pairs)));
  ops->rope_angles({}, positions, n, freqs.data(), pairs, angles.data());
  const auto x = random_floats(r, n * heads * dim);
  auto y = x;
  ops->rope({}, y.data(), n, heads, dim, angles.data(), pairs, false);
  for (uint32_t i = 0; i < n; ++i)
    for (uint32_t h = 0; h < heads; ++h)
      for (uint32_t d = 0; d < dim; d += 2) {
        const size_t at = (i * heads + h) * dim + d;
        if (d < dim - 2 * pairs) {
          EXPECT_EQ(y[at], x[at]);
          EXPECT_EQ(y[at + 1], x[at + 1]);
          continue;
        }
        const double angle = float(positions[i]) * freqs[(d - (dim - 2 * pairs)) / 2];
        EXPECT_NEAR(y[at], x[at] * std::cos(angle) - x[at + 1] * std::sin(angle), 4 * eps32);
        EXPECT_NEAR(y[at + 1], x[at] * std::sin(angle) + x[at + 1] * std::cos(angle), 4 * eps32);
      }
  ops->rope({}, y.data(), n, heads, dim, angles.data(), pairs, true);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 8 * eps32);
}

TEST(rows, residual_streams) {
  const uint32_t n = 6, hc = 4, hidden = 64, mixes = (2 + hc) * hc, iterations = 20;
  const float eps = 1e-20f, hc_eps = 1e-6f;
  rng r(24);
  SCOPED_TRACE("seed 24");
  const test_matrix fn(r, weight_format::f32, mixes, hc * hidden);
  const auto base = random_floats(r, mixes), scale = random_floats(r, 3, 0.3), x = random_floats(r, n * hc * hidden, 5),
             y = random_floats(r, n * hidden);
  const hc_weights w{fn.w, base.data(), scale.data()};
  struct outputs {
    std::vector<float> pre, post, comb, u, expanded, mean;
  };
  auto run = [&](operators& ops, uint32_t batch) {
    outputs o;
    o.pre.resize(n * hc);
    o.post.resize(n * hc);
    o.comb.resize(n * hc * hc);
    o.u.resize(n * hidden);
    o.mean.resize(n * hidden);
    o.expanded = x;
    in_batches(n, batch, [&](uint32_t i, uint32_t m) {
      const float* xi = &x[i * hc * hidden];
      ops.hc_mix({}, xi, m, hc, hidden, w, eps, hc_eps, iterations, &o.pre[i * hc], &o.post[i * hc],
                 &o.comb[i * hc * hc]);
      ops.hc_collapse({}, xi, m, hc, hidden, &o.pre[i * hc], &o.u[i * hidden]);
      ops.hc_expand({}, &o.expanded[i * hc * hidden], m, hc, hidden, &y[i * hidden], &o.post[i * hc],
                    &o.comb[i * hc * hc]);
      ops.hc_mean({}, xi, m, hc, hidden, &o.mean[i * hidden], hidden);
    });
    return o;
  };
  const auto ops = make_operators(1);
  const outputs o = run(*ops, n);
  for (uint32_t i = 0; i < n; ++i) {
    const float* xi = &x[i * hc * hidden];
    double square = 0;
    for (uint32_t k = 0; k < hc * hidden; ++k) square += double(xi[k]) * xi[k];
    const double root = 1 / std::sqrt(square / (hc * hidden) + eps);
    std::vector<double> m(mixes);
    for (uint32_t j = 0; j < mixes; ++j)
      for (uint32_t k = 0; k < hc * hidden; ++k) m[j] += fn.at(j, k) * xi[k] * root;
    double c[4][4];
    for (uint32_t k = 0; k < hc; ++k) {
      EXPECT_NEAR(o.pre[i * hc + k], sigmoid(m[k] * scale[0] + base[k]) + hc_eps, 1e-6);
      EXPECT_NEAR(o.post[i * hc + k], 2 * sigmoid(m[hc + k] * scale[1] + base[hc + k]), 2e-6);
      double total = 0;
      for (uint32_t j = 0; j < hc; ++j)
        total += c[k][j] = std::exp(m[2 * hc + k * hc + j] * scale[2] + base[2 * hc + k * hc + j]);
      for (uint32_t j = 0; j < hc; ++j) c[k][j] = c[k][j] / total + hc_eps;
    }
    for (uint32_t step = 0; step < 2 * iterations - 1; ++step) {  // columns, then (rows, columns) 19 times
      for (uint32_t a = 0; a < hc; ++a) {
        double total = hc_eps;
        for (uint32_t b = 0; b < hc; ++b) total += step % 2 ? c[a][b] : c[b][a];
        for (uint32_t b = 0; b < hc; ++b) (step % 2 ? c[a][b] : c[b][a]) /= total;
      }
    }
    for (uint32_t k = 0; k < hc; ++k)
      for (uint32_t j = 0; j < hc; ++j) EXPECT_NEAR(o.comb[(i * hc + k) * hc + j], c[k][j], 2e-6) << k << "," << j;
    for (uint32_t d = 0; d < hidden; ++d) {
      double u = 0, mean = 0;
      for (uint32_t k = 0; k < hc; ++k) {
        u += double(o.pre[i * hc + k]) * xi[k * hidden + d];
        mean += xi[k * hidden + d] / 4.0;
        double e = double(o.post[i * hc + k]) * y[i * hidden + d];
        for (uint32_t j = 0; j < hc; ++j) e += double(o.comb[(i * hc + j) * hc + k]) * xi[j * hidden + d];
        EXPECT_NEAR(o.expanded[(i * hc + k) * hidden + d], e, 22 * 5 * eps32);
      }
      EXPECT_NEAR(o.u[i * hidden + d], u, 20 * 4 * eps32);
      EXPECT_NEAR(o.mean[i * hidden + d], mean, 20 * 4 * eps32);
    }
  }
  expect_same_on_every_path(n, [&](operators& each, uint32_t batch) {
    const outputs e = run(each, batch);
    std::vector<float> all;
    for (const auto* v : {&e.pre, &e.post, &e.comb, &e.u, &e.expanded, &e.mean})
      all.insert(all.end(), v->begin(), v->end());
    return all;
  });
  std::vector<float> first(n * hidden);
  ops->hc_collapse({}, x.data(), n, hc, hidden, nullptr, first.data());
  for (uint32_t i = 0; i < n; ++i)
    for (uint32_t d = 0; d < hidden; ++d) EXPECT_EQ(first[i * hidden + d], x[i * hc * hidden + d]);
}

TEST(rows, engram_gate) {
  const uint32_t n = 5, hc = 4, hidden = 96;
  rng r(25);
  SCOPED_TRACE("seed 25");
  const test_matrix qw(r, weight_format::bf16, hc, hidden), kw(r, weight_format::bf16, hc, hidden);
  const auto x = random_floats(r, n * hc * hidden, 2);
  auto kv = random_floats(r, n * (hc + 1) * hidden, 2);
  std::fill(kv.begin(), kv.begin() + hidden, 0.0f);  // row 0, stream 0: dot = +0 gives sigmoid(1e-3)
  const uint8_t masked[] = {0, 0, 1, 0, 0};
  std::vector<float> gates(n * hc);
  auto compute = [&](operators& ops, uint32_t batch) {
    auto y = x;
    in_batches(n, batch, [&](uint32_t i, uint32_t m) {
      ops.engram_gate({}, &y[i * hc * hidden], m, hc, hidden, &kv[i * (hc + 1) * hidden], qw.w, kw.w, 1e-20f,
                      masked + i, &gates[i * hc]);
    });
    y.insert(y.end(), gates.begin(), gates.end());
    return y;
  };
  const auto y = compute(*make_operators(1), n);
  for (uint32_t i = 0; i < n; ++i)
    for (uint32_t k = 0; k < hc; ++k) {
      const float *xk = &x[(i * hc + k) * hidden], *key = &kv[(i * (hc + 1) + k) * hidden],
                  *value = &kv[(i * (hc + 1) + hc) * hidden];
      double dot = 0, xx = 0, kk = 0;
      for (uint32_t d = 0; d < hidden; ++d) {
        dot += double(xk[d]) * qw.at(k, d) * kw.at(k, d) * key[d];
        xx += double(xk[d]) * xk[d];
        kk += double(key[d]) * key[d];
      }
      dot *= 1 / std::sqrt(xx / hidden + 1e-20) / std::sqrt(kk / hidden + 1e-20) / std::sqrt(double(hidden));
      const double gate = masked[i] ? 0 : sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot));
      EXPECT_NEAR(gates[i * hc + k], gate, 3e-6) << i << "," << k;  // the root magnifies the dot's rounding near zero
      for (uint32_t d = 0; d < hidden; ++d) EXPECT_NEAR(y[(i * hc + k) * hidden + d], xk[d] + gate * value[d], 1e-5);
    }
  expect_same_on_every_path(n, compute);
}

TEST(rows, route) {
  const uint32_t n = 9, experts = 37, k = 6;
  rng r(26);
  SCOPED_TRACE("seed 26");
  auto logits = random_floats(r, n * experts, 4);
  const auto bias = random_floats(r, experts, 0.5);
  std::vector<float> zero_bias(experts, 0.0f);
  std::vector<uint32_t> ids(n * k);
  std::vector<float> weights(n * k);
  auto compute = [&](operators& ops, uint32_t batch) {
    in_batches(n, batch, [&](uint32_t i, uint32_t m) {
      ops.route({}, &logits[i * experts], m, experts, bias.data(), 1.0f, k, 1.5f, &ids[i * k], &weights[i * k]);
    });
    auto all = weights;
    for (uint32_t id : ids) all.push_back(float(id));
    return all;
  };
  const auto ops = make_operators(1);
  compute(*ops, n);
  for (uint32_t i = 0; i < n; ++i) {
    std::vector<double> s(experts);
    for (uint32_t e = 0; e < experts; ++e) s[e] = std::sqrt(std::log1p(std::exp(double(logits[i * experts + e]))));
    std::vector<uint32_t> order(experts);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return s[a] + bias[a] > s[b] + bias[b]; });
    double total = 0;
    for (uint32_t j = 0; j < k; ++j) total += s[order[j]];
    for (uint32_t j = 0; j < k; ++j) {
      EXPECT_EQ(ids[i * k + j], order[j]);
      EXPECT_NEAR(weights[i * k + j], s[order[j]] / (total + 1e-20) * 1.5, 1e-6);
    }
  }
  expect_same_on_every_path(n, compute);

  std::vector<float> flat(experts, 0.25f);  // ties: the lowest ids, in order
  ops->route({}, flat.data(), 1, experts, zero_bias.data(), 1.0f, k, 1.5f, ids.data(), weights.data());
  for (uint32_t j = 0; j < k; ++j) EXPECT_EQ(ids[j], j);
}

TEST(rows, experts_and_combine) {
  const uint32_t rows = 70, hidden = 96, ffn = 64, expert_count = 5, k = 3;
  const float limit = 10;
  rng r(27);
  SCOPED_TRACE("seed 27");
  std::vector<test_matrix> m;
  std::vector<expert_weights> experts;
  for (uint32_t e = 0; e < expert_count; ++e)
    for (int i = 0; i < 3; ++i) m.emplace_back(r, weight_format::mxfp4, i == 1 ? hidden : ffn, i == 1 ? ffn : hidden);
  for (uint32_t e = 0; e < expert_count; ++e) experts.push_back({m[e * 3].w, m[e * 3 + 1].w, m[e * 3 + 2].w});
  const auto x = random_floats(r, rows * hidden, 0.6), shared = random_floats(r, rows * hidden);
  std::vector<expert_item> items;
  for (uint32_t i = 0; i < rows; ++i)
    for (uint32_t j = 0; j < k; ++j)  // expert 4 is never used; expert 0 gets more than one tile of rows
      items.push_back({i, j == 0 ? 0 : uint32_t(1 + r.below(3)), float(r.uniform())});
  auto compute = [&](operators& ops, uint32_t batch) {
    std::vector<float> parts(items.size() * hidden), y(rows * hidden);
    in_batches(rows, batch, [&](uint32_t i, uint32_t count) {
      ops.expert_mlp({}, x.data(), &items[i * k], count * k, experts.data(), expert_count, limit,
                     &parts[i * k * hidden]);
      ops.combine_add({}, &parts[i * k * hidden], count, k, hidden, &shared[i * hidden], &y[i * hidden]);
    });
    parts.insert(parts.end(), y.begin(), y.end());
    return parts;
  };
  const auto got = compute(*make_operators(2), rows);
  bool clamped = false;
  for (size_t i = 0; i < items.size(); ++i) {
    const test_matrix *w1 = &m[items[i].expert * 3], *w2 = w1 + 1, *w3 = w1 + 2;
    const float* xi = &x[items[i].row * hidden];
    std::vector<double> h(ffn);
    for (uint32_t f = 0; f < ffn; ++f) {
      double g = 0, u = 0;
      for (uint32_t d = 0; d < hidden; ++d) {
        g += w1->at(f, d) * xi[d];
        u += w3->at(f, d) * xi[d];
      }
      clamped = clamped || g > limit || std::fabs(u) > limit;
      g = std::min(g, double(limit));
      u = std::clamp(u, -double(limit), double(limit));
      h[f] = g * sigmoid(g) * u * items[i].route_weight;
    }
    for (uint32_t d = 0; d < hidden; ++d) {
      double want = 0, size = 0;
      for (uint32_t f = 0; f < ffn; ++f) {
        want += w2->at(d, f) * h[f];
        size += std::fabs(w2->at(d, f)) * (std::fabs(h[f]) + 1);
      }
      ASSERT_NEAR(got[i * hidden + d], want, size * 40 * eps32) << "item " << i;
    }
  }
  EXPECT_TRUE(clamped) << "the inputs must reach the clamps";
  const float* y = &got[items.size() * hidden];
  for (uint32_t i = 0; i < rows; ++i)
    for (uint32_t d = 0; d < hidden; ++d) {
      const float* p = &got[i * k * hidden + d];
      ASSERT_EQ(y[i * hidden + d], ((p[0] + p[hidden]) + p[2 * hidden]) + shared[i * hidden + d]);
    }
  expect_same_on_every_path(rows, compute);
}

}  // namespace
}  // namespace troupe::kernels::cpu
