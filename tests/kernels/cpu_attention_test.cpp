// Records, compressor, indexer and attention: against plain double precision on decoded records, and the same bits on
// every path and however a sequence is cut into calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/formats/records.hpp"
#include "tests/kernels/cpu_test_util.hpp"

namespace troupe::kernels::cpu {
namespace {

using formats::decode_index_key;
using formats::decode_main_entry;
using formats::decode_window_record;

const uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

/// One layer's state for a few slots: window ring, open groups, pages of main entries and index keys.
struct layer {
  uint32_t slots = 3, dim = 64, key_dim = 32, window = 16, ratio = 2, pairs = 8, max_groups = 96;
  std::vector<std::byte> ring_bytes, page_bytes;
  std::vector<uint32_t> table;
  std::vector<float> open;
  ring_view ring;
  paged_view entries, keys;

  explicit layer(uint32_t compression = 2) : ratio(compression) {
    const uint32_t rows = window + 8, record = uint32_t(formats::window_record_bytes(dim));
    ring_bytes.resize(size_t(slots) * rows * record);
    ring = {ring_bytes.data(), size_t(rows) * record, rows, record};
    const uint32_t per_page = window / ratio, pages = max_groups / per_page;
    const uint32_t entry = uint32_t(formats::main_entry_bytes(dim)), key = uint32_t(formats::index_key_bytes(key_dim));
    const size_t page = size_t(per_page) * (entry + key);
    page_bytes.resize(page * pages * slots);
    table.resize(size_t(slots) * pages);  // scattered: slot s's page i is i * slots + s
    for (uint32_t s = 0; s < slots; ++s)
      for (uint32_t i = 0; i < pages; ++i) table[s * pages + i] = i * slots + s;
    entries = {page_bytes.data(), page, table.data(), pages, per_page, 0, entry};
    keys = {page_bytes.data(), page, table.data(), pages, per_page, size_t(per_page) * entry, key};
    open.resize(size_t(slots) * ratio * 2 * dim);
  }
  const std::byte* entry(const paged_view& v, uint32_t slot, uint32_t group) const {
    return v.pages + v.table[slot * v.table_stride + group / v.per_page] * v.page_bytes + v.offset +
           (group % v.per_page) * v.entry_bytes;
  }
};

/// The inputs of one sequence of `length` tokens in slot 1, and the pass over it in chunks.
struct sequence {
  static constexpr uint32_t slot = 1, length = 75, heads = 6, key_heads = 4, topk = 8;
  layer shape;
  std::vector<float> kv, gate_kv, gate, norm_values, q, key_q, key_w, sink, freqs;
  std::vector<uint16_t> norm_bits, key_norm_bits;
  test_matrix wk;
  uint32_t floor = 0;

  explicit sequence(uint32_t ratio, uint64_t seed) : shape(ratio) {
    rng r(seed);
    kv = random_floats(r, length * shape.dim, 2);
    gate_kv = random_floats(r, length * shape.dim, 2);
    gate = random_floats(r, length * shape.dim, 3);
    q = random_floats(r, length * heads * shape.dim, 2);
    key_q = random_floats(r, length * key_heads * shape.key_dim);
    key_w = random_floats(r, length * key_heads);
    sink = random_floats(r, heads, 2);
    for (uint32_t i = 0; i < shape.dim; ++i) norm_bits.push_back(formats::encode_bf16(float(0.5 + r.uniform())));
    wk = test_matrix(r, weight_format::bf16, shape.key_dim, shape.dim);
    for (uint32_t j = 0; j < shape.pairs; ++j) freqs.push_back(float(std::pow(160000.0, -double(j) / shape.pairs)));
  }
  weight norm() const { return {norm_bits.data(), nullptr, weight_format::bf16, 1, shape.dim}; }

  struct outputs {
    std::vector<float> out, scores;
    std::vector<uint32_t> selected, counts, blocks, block_counts, within_selected, within_counts;
    layer state;
    std::vector<float> flat() const {
      std::vector<float> all = out;
      for (float s : scores) all.push_back(s);
      for (const auto* v : {&selected, &counts, &blocks, &block_counts, &within_selected, &within_counts})
        for (uint32_t x : *v) all.push_back(float(x));
      for (const auto* v : {&state.ring_bytes, &state.page_bytes})
        for (std::byte b : *v) all.push_back(float(uint8_t(b)));
      return all;
    }
  };

  /// What forward does for one attention layer, `chunk` rows per call.
  outputs run(operators& ops, uint32_t chunk) const {
    outputs o{std::vector<float>(q.size()),
              std::vector<float>(length * shape.max_groups),
              {},
              {},
              {},
              {},
              {},
              {},
              layer(shape.ratio)};
    o.selected.assign(length * topk, 999);
    o.within_selected.assign(length * topk, 999);
    o.counts.resize(length);
    o.within_counts.resize(length);
    o.blocks.assign(length * 3, 999);
    o.block_counts.resize(length);
    layer& l = o.state;
    const uint32_t dim = l.dim, ratio = l.ratio;
    for (uint32_t first = 0; first < length; first += chunk) {
      const uint32_t n = std::min(chunk, length - first);
      std::vector<row_ref> rows;
      std::vector<uint32_t> positions, group_positions;
      std::vector<record_copy> copies, open_copies;
      std::vector<group_ref> groups;
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t p = first + i;
        rows.push_back({slot, p, 0, first, floor});
        positions.push_back(p);
        copies.push_back({i, slot, p});
        if ((p + 1) % ratio == 0) {
          groups.push_back({i, slot, p / ratio});
          group_positions.push_back(p / ratio * ratio);
        }
      }
      const uint32_t count = uint32_t(groups.size());
      for (uint32_t p = (first + n) / ratio * ratio; p < first + n; ++p)
        if (p >= first) open_copies.push_back({p - first, slot, p});
      std::vector<float> angles(n * l.pairs * 2), group_angles(count * l.pairs * 2);
      ops.rope_angles({}, positions.data(), n, freqs.data(), l.pairs, angles.data());
      ops.rope_angles({}, group_positions.data(), count, freqs.data(), l.pairs, group_angles.data());
      std::vector<std::byte> records(n * l.ring.record_bytes);
      ops.window_records({}, &kv[first * dim], n, dim, angles.data(), l.pairs, records.data());
      std::vector<float> latent(count * dim), key(count * l.key_dim);
      ops.compress({}, groups.data(), count, rows.data(), &gate_kv[first * dim],
                   ratio > 1 ? &gate[first * dim] : nullptr, ratio > 1 ? l.open.data() : nullptr, ratio, norm(), 1e-20f,
                   latent.data());
      if (ratio > 1)
        ops.store_open({}, &gate_kv[first * dim], &gate[first * dim], dim, open_copies.data(),
                       uint32_t(open_copies.size()), ratio, l.open.data());
      ops.linear({}, latent.data(), count, wk.w, key.data());
      ops.store_index_key({}, key.data(), groups.data(), count, l.key_dim, group_angles.data(), l.pairs, l.keys);
      ops.store_main({}, latent.data(), groups.data(), count, dim, group_angles.data(), l.pairs, l.entries);
      std::vector<float> iq(key_q.begin() + first * key_heads * l.key_dim,
                            key_q.begin() + (first + n) * key_heads * l.key_dim);
      ops.index_query({}, iq.data(), n, key_heads, l.key_dim, angles.data(), l.pairs);
      const candidate_blocks blocks{4, 3, &o.blocks[first * 3], &o.block_counts[first]};
      ops.index_select({}, iq.data(), &key_w[first * key_heads], rows.data(), n, key_heads, l.key_dim, ratio, l.keys,
                       topk, &o.selected[first * topk], &o.counts[first], &blocks, nullptr,
                       &o.scores[first * l.max_groups], l.max_groups);
      ops.index_select({}, iq.data(), &key_w[first * key_heads], rows.data(), n, key_heads, l.key_dim, ratio, l.keys,
                       topk, &o.within_selected[first * topk], &o.within_counts[first], nullptr, &blocks, nullptr, 0);
      auto rotated = std::vector<float>(q.begin() + first * heads * dim, q.begin() + (first + n) * heads * dim);
      ops.rope({}, rotated.data(), n, heads, dim, angles.data(), l.pairs, false);
      ops.attention({}, rotated.data(), rows.data(), n, heads, dim, l.window, 1 / std::sqrt(float(dim)), sink.data(),
                    l.ring, records.data(), &o.selected[first * topk], &o.counts[first], topk, l.entries,
                    &o.out[first * heads * dim]);
      ops.store_records({}, records.data(), copies.data(), n, l.ring);
    }
    return o;
  }
};

class attention_layer : public testing::TestWithParam<uint32_t> {};

TEST_P(attention_layer, matches_double_precision) {
  const sequence s(GetParam(), 31);
  SCOPED_TRACE("seed 31");
  const auto ops = make_operators(1);
  const sequence::outputs o = s.run(*ops, sequence::length);
  const layer& l = o.state;
  const uint32_t dim = l.dim, ratio = l.ratio;

  // Compressed entries: softmax gate, norm, rotation, rounding (one code may differ at a rounding border).
  for (uint32_t g = 0; g < sequence::length / ratio; ++g) {
    std::vector<double> latent(dim);
    double square = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      double total = 0;
      for (uint32_t i = 0; i < ratio; ++i) {
        const size_t at = (g * ratio + i) * dim + d;
        const double e = ratio == 1 ? 1 : std::exp(double(s.gate[at]));
        total += e;
        latent[d] += e * s.gate_kv[at];
      }
      latent[d] /= total;
      square += latent[d] * latent[d];
    }
    for (uint32_t d = 0; d < dim; ++d) latent[d] *= formats::decode_bf16(s.norm_bits[d]) / std::sqrt(square / dim);
    for (uint32_t j = 0; j < l.pairs; ++j) {
      const double angle = float(g * ratio) * s.freqs[j], c = std::cos(angle), si = std::sin(angle);
      double &a = latent[dim - 2 * l.pairs + 2 * j], &b = latent[dim - 2 * l.pairs + 2 * j + 1];
      const double x = a * c - b * si, y = a * si + b * c;
      a = x;
      b = y;
    }
    std::vector<float> rounded(latent.begin(), latent.end()), stored(dim);
    std::vector<uint8_t> record(formats::main_entry_bytes(dim));
    formats::encode_main_entry(rounded.data(), dim, record.data());
    decode_main_entry(record.data(), dim, rounded.data());
    decode_main_entry(bytes(l.entry(l.entries, sequence::slot, g)), dim, stored.data());
    uint32_t differ = 0;
    for (uint32_t d = 0; d < dim; ++d) differ += rounded[d] != stored[d];
    EXPECT_LE(differ, 1u) << "group " << g;
  }

  for (uint32_t p = 0; p < sequence::length; ++p) {
    // Index scores from the stored keys, and the selection from the scores that the operator gave.
    const uint32_t visible = (p + 1) / ratio;
    std::vector<float> iq(sequence::key_heads * l.key_dim), angles(l.pairs * 2);
    std::copy_n(&s.key_q[p * iq.size()], iq.size(), iq.begin());
    ops->rope_angles({}, &p, 1, s.freqs.data(), l.pairs, angles.data());
    ops->index_query({}, iq.data(), 1, sequence::key_heads, l.key_dim, angles.data(), l.pairs);
    const float* scores = &o.scores[p * l.max_groups];
    for (uint32_t g = 0; g < l.max_groups; ++g) {
      if (g >= visible) {
        EXPECT_EQ(scores[g], -std::numeric_limits<float>::infinity());
        continue;
      }
      std::vector<float> key(l.key_dim);
      decode_index_key(bytes(l.entry(l.keys, sequence::slot, g)), l.key_dim, key.data());
      double want = 0, size = 0;
      for (uint32_t h = 0; h < sequence::key_heads; ++h) {
        double dot = 0;
        for (uint32_t d = 0; d < l.key_dim; ++d) {
          dot += double(iq[h * l.key_dim + d]) * key[d];
          size += std::fabs(double(iq[h * l.key_dim + d]) * key[d]);
        }
        want += s.key_w[p * sequence::key_heads + h] / std::sqrt(double(sequence::key_heads)) * std::max(dot, 0.0);
      }
      ASSERT_NEAR(scores[g], want / std::sqrt(double(l.key_dim)), size * 16 * 0x1p-24) << p << "," << g;
    }
    auto best = [&](std::vector<uint32_t> from, uint32_t k) {
      std::stable_sort(from.begin(), from.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
      from.resize(std::min<size_t>(from.size(), k));
      std::sort(from.begin(), from.end());
      return from;
    };
    std::vector<uint32_t> all(visible);
    std::iota(all.begin(), all.end(), 0u);
    const uint32_t* chosen = &o.selected[p * sequence::topk];
    EXPECT_EQ(std::vector<uint32_t>(chosen, chosen + o.counts[p]), best(all, sequence::topk)) << p;

    // Level one: the newest block, then the best by their maximum.
    std::vector<uint32_t> order((visible + 3) / 4), inside;
    std::iota(order.begin(), order.end(), 0u);
    auto block_score = [&](uint32_t b) {
      float m = -std::numeric_limits<float>::infinity();
      for (uint32_t g = b * 4; g < std::min(visible, b * 4 + 4); ++g) m = std::max(m, scores[g]);
      return b + 1 == order.size() ? std::numeric_limits<float>::infinity() : m;
    };
    std::vector<uint32_t> blocks = order;
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](uint32_t a, uint32_t b) { return block_score(a) > block_score(b); });
    if (blocks.size() > 3) blocks.resize(3);
    std::sort(blocks.begin(), blocks.end());
    EXPECT_EQ(std::vector<uint32_t>(&o.blocks[p * 3], &o.blocks[p * 3] + o.block_counts[p]), blocks) << p;
    for (uint32_t b : blocks)
      for (uint32_t g = b * 4; g < std::min(visible, b * 4 + 4); ++g) inside.push_back(g);
    const uint32_t* in = &o.within_selected[p * sequence::topk];
    EXPECT_EQ(std::vector<uint32_t>(in, in + o.within_counts[p]), best(inside, sequence::topk)) << p;

    // Attention over the window records and the selected entries.
    const uint32_t begin = p + 1 > l.window ? p + 1 - l.window : 0;
    std::vector<std::vector<float>> keys;
    for (uint32_t t = begin; t <= p; ++t) {
      std::vector<float> x(&s.kv[t * dim], &s.kv[t * dim] + dim), at(l.pairs * 2);
      ops->rope_angles({}, &t, 1, s.freqs.data(), l.pairs, at.data());
      ops->rope({}, x.data(), 1, 1, dim, at.data(), l.pairs, false);
      std::vector<uint8_t> record(formats::window_record_bytes(dim));
      formats::encode_window_record(x.data(), dim, record.data());
      decode_window_record(record.data(), dim, x.data());
      keys.push_back(x);
    }
    for (uint32_t e = 0; e < o.counts[p]; ++e) {
      keys.emplace_back(dim);
      decode_main_entry(bytes(l.entry(l.entries, sequence::slot, chosen[e])), dim, keys.back().data());
    }
    std::vector<float> q(&s.q[p * sequence::heads * dim], &s.q[(p + 1) * sequence::heads * dim]);
    ops->rope({}, q.data(), 1, sequence::heads, dim, angles.data(), l.pairs, false);
    for (uint32_t h = 0; h < sequence::heads; ++h) {
      std::vector<double> e;
      double total = std::exp(double(s.sink[h])), worst_logit = 0;
      for (const auto& key : keys) {
        double logit = 0, size = 0;
        for (uint32_t d = 0; d < dim; ++d) {
          logit += double(q[h * dim + d]) * key[d];
          size += std::fabs(double(q[h * dim + d]) * key[d]);
        }
        worst_logit =
            std::max(worst_logit, size / 8 * 8 * 0x1p-24);  // (dim / 16 + 4) roundings of partial sums, scaled
        e.push_back(std::exp(logit / 8));
        total += e.back();
      }
      for (uint32_t d = 0; d < dim; ++d) {
        double want = 0, size = 0;
        for (size_t j = 0; j < keys.size(); ++j) {
          want += e[j] / total * keys[j][d];
          size += e[j] / total * std::fabs(keys[j][d]);
        }
        const double tolerance = size * (2 * worst_logit + double(keys.size() + 8) * 0x1p-24);
        ASSERT_NEAR(o.out[(p * sequence::heads + h) * dim + d], want, tolerance) << p << "," << h << "," << d;
      }
    }
  }
}

TEST_P(attention_layer, same_bits_on_every_path_and_for_any_chunk) {
  const sequence s(GetParam(), 32);
  SCOPED_TRACE("seed 32");
  expect_same_on_every_path(sequence::length, [&](operators& ops, uint32_t chunk) { return s.run(ops, chunk).flat(); });
}

// A floor cuts the window: rows before it might as well hold garbage.
TEST_P(attention_layer, window_floor_hides_earlier_rows) {
  sequence a(GetParam(), 33);
  SCOPED_TRACE("seed 33");
  a.floor = 70;
  sequence b(GetParam(), 33);
  b.floor = 70;
  for (uint32_t i = 0; i < 70 * a.shape.dim; ++i) b.kv[i] = 1e3f;
  const auto ops = make_operators(1);
  const auto x = a.run(*ops, 5), y = b.run(*ops, 5);
  const size_t from = 70 * sequence::heads * a.shape.dim;
  EXPECT_TRUE(std::equal(x.out.begin() + from, x.out.end(), y.out.begin() + from));
  a.floor = b.floor = 0;
  EXPECT_NE(a.run(*ops, 5).out, b.run(*ops, 5).out) << "without a floor the garbage is seen";
}

INSTANTIATE_TEST_SUITE_P(ratios, attention_layer, testing::Values(1u, 2u));

TEST(index_select, ties_go_to_the_lowest_position) {
  layer l(1);
  const uint32_t n = 1, heads = 2, topk = 5;
  std::vector<float> q(heads * l.key_dim, 0.0f), w(heads, 1.0f);  // every score is exactly 0
  const row_ref row{0, 40, 0, 40, 0};
  std::vector<uint32_t> selected(topk), counts(1), blocks(2), block_counts(1);
  const candidate_blocks publish{8, 2, blocks.data(), block_counts.data()};
  make_operators(1)->index_select({}, q.data(), w.data(), &row, n, heads, l.key_dim, 1, l.keys, topk, selected.data(),
                                  counts.data(), &publish, nullptr, nullptr, 0);
  EXPECT_EQ(counts[0], topk);
  EXPECT_EQ(selected, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(blocks, (std::vector<uint32_t>{0, 5})) << "the lowest of the equal blocks, and the newest";
}

TEST(draft_attention, equals_attention_over_the_same_keys) {
  const uint32_t heads = 4, block = 5, n = 2, window = 16;
  layer l(1);
  const uint32_t dim = l.dim;
  rng r(34);
  SCOPED_TRACE("seed 34");
  const uint32_t record = l.ring.record_bytes;
  auto random_records = [&](std::byte* to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const auto x = random_floats(r, dim, 2);
      formats::encode_window_record(x.data(), dim, reinterpret_cast<uint8_t*>(to + i * record));
    }
  };
  random_records(l.ring_bytes.data(), l.ring_bytes.size() / record);
  std::vector<std::byte> context(7 * record), slots(n * block * record);
  random_records(context.data(), 7);
  random_records(slots.data(), n * block);
  const draft_ref sequences[] = {{0, 30, 0, 1, 26},
                                 {2, 9, 3, 0, 10}};  // one with new context rows 26..30, one with a floor
  const auto q = random_floats(r, n * block * heads * dim, 2), sink = random_floats(r, heads);
  std::vector<float> out(q.size());
  auto compute = [&](operators& ops, uint32_t) {
    ops.draft_attention({}, q.data(), sequences, n, block, heads, dim, window, 0.125f, sink.data(), l.ring,
                        context.data(), slots.data(), out.data());
    return out;
  };
  compute(*make_operators(1), n);
  // The same through `attention`: put all keys in order into a fresh ring and ask for a window over exactly these.
  for (uint32_t s = 0; s < n; ++s) {
    const draft_ref& d = sequences[s];
    std::vector<std::byte> keys;
    auto push = [&](const std::byte* p) { keys.insert(keys.end(), p, p + record); };
    const uint32_t begin = std::max(d.floor, d.last + 1 > window ? d.last + 1 - window : 0);
    for (uint32_t p = begin; p <= d.last; ++p)
      push(p >= d.first_position ? &context[(d.first_row + p - d.first_position) * record]
                                 : &l.ring_bytes[d.slot * l.ring.slot_stride + (p % l.ring.rows) * record]);
    for (uint32_t j = 0; j < block; ++j) push(&slots[(s * block + j) * record]);
    const uint32_t count = uint32_t(keys.size() / record);
    const ring_view all{keys.data(), 0, count, record};
    for (uint32_t j = 0; j < block; ++j) {
      const row_ref row{0, count - 1, 0, count, 0};
      std::vector<float> want(heads * dim);
      make_operators(1)->attention({}, &q[(s * block + j) * heads * dim], &row, 1, heads, dim, count, 0.125f,
                                   sink.data(), all, nullptr, nullptr, nullptr, 0, {}, want.data());
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_EQ(out[(s * block + j) * heads * dim + i], want[i]) << s << "," << j;
    }
  }
  expect_same_on_every_path(n, compute);
}

// More keys than one block, released head width; no selected entry counts when a row has none.
TEST(attention, long_windows_and_wide_heads) {
  const uint32_t heads = 5, dim = 512, window = 128;
  rng r(35);
  SCOPED_TRACE("seed 35");
  const uint32_t record = uint32_t(formats::window_record_bytes(dim));
  std::vector<std::byte> memory(136 * record);
  for (uint32_t i = 0; i < 136; ++i) {
    const auto x = random_floats(r, dim);
    formats::encode_window_record(x.data(), dim, reinterpret_cast<uint8_t*>(&memory[i * record]));
  }
  const ring_view ring{memory.data(), 0, 136, record};
  const auto q = random_floats(r, heads * dim, 3), sink = random_floats(r, heads);
  const row_ref row{0, 131, 0, 132, 0};
  auto compute = [&](operators& ops, uint32_t) {
    std::vector<float> out(heads * dim);
    ops.attention({}, q.data(), &row, 1, heads, dim, window, 1 / std::sqrt(512.0f), sink.data(), ring, nullptr, nullptr,
                  nullptr, 0, {}, out.data());
    return out;
  };
  const auto got = compute(*make_operators(1), 1);
  for (uint32_t h = 0; h < heads; ++h) {
    std::vector<double> want(dim);
    double total = std::exp(double(sink[h]));
    std::vector<float> key(dim);
    for (int pass = 0; pass < 2; ++pass)
      for (uint32_t p = 4; p <= 131; ++p) {
        decode_window_record(bytes(&memory[p * record]), dim, key.data());
        double logit = 0;
        for (uint32_t d = 0; d < dim; ++d) logit += double(q[h * dim + d]) * key[d];
        const double e = std::exp(logit / std::sqrt(512.0));
        if (pass == 0) total += e;
        for (uint32_t d = 0; pass == 1 && d < dim; ++d) want[d] += e / total * key[d];
      }
    for (uint32_t d = 0; d < dim; ++d) ASSERT_NEAR(got[h * dim + d], want[d], 2e-5) << h << "," << d;
  }
  expect_same_on_every_path(1, compute);
}

}  // namespace
}  // namespace troupe::kernels::cpu
