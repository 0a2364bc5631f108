// Dense products at the released model's shapes against OpenBLAS on one thread, and one-row products against a memory
// copy, in one run. Prints a table; fails only below 0.4 of OpenBLAS, so that a busy machine does not fail it (the aim
// is 0.6).
//   gemm_bench [portable|avx2|avx512]
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/operators.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/rng.hpp"

extern "C" {
char* openblas_get_config(void);
char* openblas_get_corename(void);
void openblas_set_num_threads(int);
}

namespace {

using namespace troupe;
using namespace troupe::kernels;

/// Seconds of the fastest of several runs of f and of g, taken in turn so that both see the same machine: at least
/// three each and about a quarter of a second.
template <class F, class G>
std::pair<double, double> best_times(F&& f, G&& g) {
  auto seconds = [](auto&& run) {
    const auto t0 = steady_clock().now();
    run();
    return double((steady_clock().now() - t0).count()) * 1e-9;
  };
  std::pair<double, double> best{1e9, 1e9};
  double total = 0;
  for (int i = 0; i < 3 || (total < 0.25 && i < 1000); ++i) {
    const double a = seconds(f), b = seconds(g);
    best = {std::min(best.first, a), std::min(best.second, b)};
    total += a + b;
  }
  return best;
}

template <class F>
double best_time(F&& f) {
  return best_times(f, [] {}).first;
}

struct matrix {
  std::vector<uint8_t> data, scale;
  weight w;
};

/// A random matrix; the codes are plain random bytes (NaN codes excepted), the scales lie around one.
matrix make(rng& r, weight_format format, uint32_t rows, uint32_t cols) {
  matrix m;
  const size_t n = size_t(rows) * cols;
  m.data.resize(format == weight_format::f32     ? n * 4
                : format == weight_format::bf16  ? n * 2
                : format == weight_format::mxfp4 ? n / 2
                                                 : n);
  if (format == weight_format::f32) {
    for (size_t i = 0; i < n; ++i) {
      const float v = float(r.next() & 0xffff) / 65536 - 0.5f;
      memcpy(&m.data[i * 4], &v, 4);
    }
  } else if (format == weight_format::bf16) {
    for (size_t i = 0; i < n; ++i) {
      const uint16_t v = uint16_t(0x3c00 | (r.next() & 0x81ff));
      memcpy(&m.data[i * 2], &v, 2);
    }
  } else {
    for (size_t i = 0; i < m.data.size(); i += 8) {
      const uint64_t v = r.next() & 0xbfbfbfbfbfbfbfbf;
      memcpy(&m.data[i], &v, 8);
    }
    m.scale.resize(format == weight_format::mxfp4 ? n / 32 : size_t(rows / 32) * (cols / 32));
    for (uint8_t& s : m.scale) s = uint8_t(124 + r.below(5));
  }
  m.w = {m.data.data(), m.scale.empty() ? nullptr : m.scale.data(), format, rows, cols};
  return m;
}

const char* name_of(weight_format f) {
  switch (f) {
    case weight_format::f32:
      return "f32";
    case weight_format::bf16:
      return "bf16";
    case weight_format::mxfp4:
      return "mxfp4";
    default:
      return "fp8";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto which = argc > 1 ? cpu::isa_from_string(argv[1]) : cpu::best_isa();
  if (!which || !cpu::supported(*which)) {
    fmt::print("skipped: this CPU does not run {}\n", argc > 1 ? argv[1] : "?");
    return 0;
  }
  openblas_set_num_threads(1);
  fmt::print("OpenBLAS {}, kernel {}; ours: {}\n", openblas_get_config(), openblas_get_corename(),
             cpu::to_string(*which));
  const auto c = cpu::make_operators(1, *which);
  const cpu::kernel_table& kernels = cpu::kernels_of(*which);
  const uint64_t seed = 20261129;
  fmt::print("seed {}\n", seed);
  rng r(seed);

  struct shape {
    const char* what;
    weight_format format;
    uint32_t out, in, groups;
  };
  const shape shapes[] = {
      {"wq_a", weight_format::fp8_block, 1280, 5120, 1},
      {"wq_b", weight_format::fp8_block, 32768, 1280, 1},
      {"wkv", weight_format::fp8_block, 512, 5120, 1},
      {"wo_a", weight_format::fp8_block, 8192, 4096, 8},
      {"wo_b", weight_format::fp8_block, 5120, 8192, 1},
      {"shared w1", weight_format::fp8_block, 2304, 5120, 1},
      {"shared w2", weight_format::fp8_block, 5120, 2304, 1},
      {"expert w1", weight_format::mxfp4, 2304, 5120, 1},
      {"expert w2", weight_format::mxfp4, 5120, 2304, 1},
      {"router", weight_format::bf16, 384, 5120, 1},
      {"hc fn", weight_format::f32, 24, 20480, 1},
  };
  bool ok = true;
  fmt::print("\n{:<10} {:>5} {:>6} x {:<6} {:>6} {:>9} {:>9} {:>6}   (GFLOP/s; aim 0.60 of OpenBLAS)\n", "matrix",
             "rows", "out", "in", "format", "ours", "OpenBLAS", "ratio");
  for (const shape& s : shapes) {
    const matrix m = make(r, s.format, s.out, s.in);
    std::vector<float> wide(size_t(s.out) * s.in);
    for (uint32_t o = 0; o < s.out; ++o) kernels.dequantise_row(m.w, o, &wide[size_t(o) * s.in]);
    for (uint32_t rows : {16u, 64u, 256u}) {
      if (s.out > 10000 && rows > 64) continue;
      std::vector<float> x(size_t(rows) * s.in * s.groups), y(size_t(rows) * s.out), z(y.size());
      for (float& v : x) v = float(r.next() & 0xffff) / 65536 - 0.5f;
      const int out = int(s.out / s.groups), in = int(s.in), groups = int(s.groups);
      const auto [ours, theirs] = best_times(
          [&] { c->grouped_linear({}, x.data(), rows, m.w, s.groups, y.data()); },
          [&] {
            for (int g = 0; g < groups; ++g)
              cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, int(rows), out, in, 1.0f, x.data() + g * in,
                          in * groups, wide.data() + size_t(g) * out * in, in, 0.0f, z.data() + g * out, out * groups);
          });
      float worst = 0, largest = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        worst = std::max(worst, std::abs(y[i] - z[i]));
        largest = std::max(largest, std::abs(z[i]));
      }
      const double flop = 2.0 * rows * s.out * s.in;
      fmt::print("{:<10} {:>5} {:>6} x {:<6} {:>6} {:>9.1f} {:>9.1f} {:>6.2f}\n", s.what, rows, s.out, s.in,
                 name_of(s.format), flop / ours * 1e-9, flop / theirs * 1e-9, theirs / ours);
      if (worst > 1e-4f * largest) {
        fmt::print("FAILED: differs from OpenBLAS by {} of {}\n", worst, largest);
        ok = false;
      }
      if (theirs / ours < 0.4 && s.out >= 512 && *which == cpu::best_isa() && *which != cpu::isa::portable) {
        fmt::print("FAILED: below 0.40\n");
        ok = false;
      }
    }
  }

  const size_t copy_bytes = size_t(256) << 20;
  std::vector<uint8_t> a(copy_bytes, 1), b(copy_bytes, 2);
  const double copy = best_time([&] { memcpy(b.data(), a.data(), copy_bytes); });
  const double read = best_time([&] {
    uint64_t total = 0;
    const uint64_t* p = reinterpret_cast<const uint64_t*>(a.data());
    for (size_t i = 0; i < copy_bytes / 8; i += 8)
      total += p[i] + p[i + 1] + p[i + 2] + p[i + 3] + p[i + 4] + p[i + 5] + p[i + 6] + p[i + 7];
    if (total == 42) fmt::print("!");
  });
  const double copy_rate = double(copy_bytes) / copy * 1e-9;
  fmt::print("\nmemory copy {:.1f} GB/s copied (twice that moved), scalar read {:.1f} GB/s\n", copy_rate,
             double(copy_bytes) / read * 1e-9);
  fmt::print("{:<10} {:>5} {:>6} {:>9} {:>12}   (packed weight bytes per second, one thread)\n", "matrix", "rows",
             "format", "GB/s", "of the copy");
  for (weight_format f : {weight_format::fp8_block, weight_format::mxfp4, weight_format::bf16, weight_format::f32}) {
    const matrix m = make(r, f, 16384, 5120);  // beyond the caches
    for (uint32_t rows : {1u, 2u, 4u, 6u, 8u}) {
      std::vector<float> x(size_t(rows) * 5120, 0.5f), y(size_t(rows) * 16384);
      const double t = best_time([&] { c->linear({}, x.data(), rows, m.w, y.data()); });
      const double rate = double(m.data.size() + m.scale.size()) / t * 1e-9;
      fmt::print("{:<10} {:>5} {:>6} {:>9.1f} {:>12.2f}\n", "16384x5120", rows, name_of(f), rate, rate / copy_rate);
    }
  }
  return ok ? 0 : 1;
}
