#include "kv/erasure/codec.hpp"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>
#include <bit>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

constexpr uint32_t max_shards = max_data_shards + max_parity_shards;
constexpr size_t table_bytes = 32;  // ISA-L's, per coefficient
constexpr size_t max_cached = 64;

using tables = std::vector<unsigned char>;

// ISA-L takes an int length and pointers that it does not write through.
void multiply(uint32_t sources, uint32_t outputs, const tables& t, const std::byte* const* in, std::byte* const* out,
              size_t bytes) {
  std::array<unsigned char*, max_shards> from, to;
  constexpr size_t step = size_t{1} << 30;
  for (size_t at = 0; at < bytes; at += step) {
    for (uint32_t i = 0; i < sources; ++i)
      from[i] = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(in[i] + at));
    for (uint32_t i = 0; i < outputs; ++i) to[i] = reinterpret_cast<unsigned char*>(out[i] + at);
    ec_encode_data(static_cast<int>(std::min(step, bytes - at)), static_cast<int>(sources), static_cast<int>(outputs),
                   const_cast<unsigned char*>(t.data()), from.data(), to.data());
  }
}

}  // namespace

struct codec::impl {
  uint32_t k = 0, m = 0;
  std::vector<unsigned char> matrix;  // (k + m) rows of k; the first k are the identity
  tables encode_tables;

  struct pattern {
    uint64_t have = 0, want = 0;  // bit per shard
    bool operator==(const pattern&) const = default;
  };
  struct pattern_hash {
    size_t operator()(const pattern& p) const { return std::hash<uint64_t>{}(p.have * 0x9e3779b97f4a7c15u ^ p.want); }
  };
  using entry = std::pair<pattern, std::shared_ptr<const tables>>;
  std::mutex mutex;
  std::list<entry> recent;  // most recently used first
  std::unordered_map<pattern, std::list<entry>::iterator, pattern_hash> by_pattern;
  uint64_t hits = 0, misses = 0;

  std::shared_ptr<const tables> decode_tables(const pattern& p) {
    {
      std::lock_guard lock(mutex);
      if (const auto it = by_pattern.find(p); it != by_pattern.end()) {
        ++hits;
        recent.splice(recent.begin(), recent, it->second);
        return it->second->second;
      }
      ++misses;
    }
    auto made = std::make_shared<const tables>(make_tables(p));
    std::lock_guard lock(mutex);
    if (by_pattern.contains(p)) return made;  // another thread was quicker
    if (recent.size() == max_cached) {
      by_pattern.erase(recent.back().first);
      recent.pop_back();
    }
    recent.emplace_front(p, made);
    by_pattern[p] = recent.begin();
    return made;
  }

  // Survivors = (their rows of the matrix) x data, so data = inverse x survivors; a parity row times that gives parity.
  tables make_tables(const pattern& p) const {
    std::vector<unsigned char> rows(size_t{k} * k), inverse(size_t{k} * k);
    uint32_t row = 0;
    for (uint32_t s = 0; s < k + m; ++s)
      if (p.have >> s & 1) std::copy_n(matrix.begin() + size_t{s} * k, k, rows.begin() + size_t{row++} * k);
    TROUPE_CHECK(gf_invert_matrix(rows.data(), inverse.data(), static_cast<int>(k)) == 0,
                 "a Cauchy matrix of {}+{} did not invert for survivors {:x}", k, m, p.have);
    const auto wanted = static_cast<uint32_t>(std::popcount(p.want));
    std::vector<unsigned char> coefficients(size_t{wanted} * k);
    uint32_t at = 0;
    for (uint32_t s = 0; s < k + m; ++s) {
      if (!(p.want >> s & 1)) continue;
      unsigned char* to = coefficients.data() + size_t{at++} * k;
      for (uint32_t c = 0; c < k; ++c) {
        to[c] = 0;
        for (uint32_t i = 0; i < k; ++i) to[c] ^= gf_mul(matrix[size_t{s} * k + i], inverse[size_t{i} * k + c]);
      }
    }
    tables out(table_bytes * k * wanted);
    ec_init_tables(static_cast<int>(k), static_cast<int>(wanted), coefficients.data(), out.data());
    return out;
  }
};

codec::codec(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
codec::~codec() = default;
uint32_t codec::data() const { return impl_->k; }
uint32_t codec::parity() const { return impl_->m; }

codec::cache_stats codec::stats() const {
  std::lock_guard lock(impl_->mutex);
  return {impl_->hits, impl_->misses, impl_->recent.size()};
}

result<std::shared_ptr<const codec>> codec::make(uint32_t data, uint32_t parity) {
  if (data < 1 || data > max_data_shards || parity > max_parity_shards)
    return fail(errc::invalid_argument, "erasure code {}+{}: 1 to {} data and 0 to {} parity shards are possible", data,
                parity, max_data_shards, max_parity_shards);
  auto i = std::make_unique<impl>();
  i->k = data;
  i->m = parity;
  i->matrix.resize(size_t{data + parity} * data);
  gf_gen_cauchy1_matrix(i->matrix.data(), static_cast<int>(data + parity), static_cast<int>(data));
  i->encode_tables.resize(table_bytes * data * parity);
  if (parity)
    ec_init_tables(static_cast<int>(data), static_cast<int>(parity), i->matrix.data() + size_t{data} * data,
                   i->encode_tables.data());
  return std::shared_ptr<const codec>(new codec(std::move(i)));
}

result<std::shared_ptr<const codec>> codec::get(uint32_t data, uint32_t parity) {
  if (data > max_data_shards || parity > max_parity_shards) return make(data, parity);  // says why not
  static std::mutex mutex;
  static std::array<std::array<std::shared_ptr<const codec>, max_parity_shards + 1>, max_data_shards + 1> made;
  std::lock_guard lock(mutex);
  std::shared_ptr<const codec>& slot = made[data][parity];
  if (!slot) {
    TROUPE_TRY(slot, make(data, parity));
  }
  return slot;
}

result<void> codec::encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity,
                           size_t bytes) const {
  const impl& c = *impl_;
  if (data.size() != c.k || parity.size() != c.m)
    return fail(errc::invalid_argument, "encode {}+{}: {} data and {} parity shards given", c.k, c.m, data.size(),
                parity.size());
  if (c.m) multiply(c.k, c.m, c.encode_tables, data.data(), parity.data(), bytes);
  return {};
}

result<void> codec::reconstruct(std::span<const uint32_t> have, std::span<const std::byte* const> sources,
                                std::span<const uint32_t> want, std::span<std::byte* const> out, size_t bytes) const {
  impl& c = *impl_;
  const auto bad = [&](errc code, const char* what) { return fail(code, "rebuild of {}+{}: {}", c.k, c.m, what); };
  if (have.size() < c.k) return bad(errc::unavailable, "fewer survivors than data shards");
  if (have.size() > c.k) return bad(errc::invalid_argument, "more survivors than data shards: leave the others out");
  if (sources.size() != have.size()) return bad(errc::invalid_argument, "not one source per survivor");
  if (out.size() != want.size()) return bad(errc::invalid_argument, "not one output per wanted shard");
  impl::pattern p;
  for (size_t i = 0; i < have.size(); ++i) {
    if (have[i] >= c.k + c.m || (i && have[i] <= have[i - 1]))
      return bad(errc::invalid_argument, "survivors are not ascending shard numbers");
    p.have |= uint64_t{1} << have[i];
  }
  std::array<std::byte*, max_shards> by_shard{};
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] >= c.k + c.m || (p.want | p.have) >> want[i] & 1)
      return bad(errc::invalid_argument, "wanted shards are not different numbers of missing shards");
    p.want |= uint64_t{1} << want[i];
    by_shard[want[i]] = out[i];
  }
  if (want.empty()) return {};
  std::array<std::byte*, max_shards> ordered;
  uint32_t n = 0;
  for (uint32_t s = 0; s < c.k + c.m; ++s)
    if (p.want >> s & 1) ordered[n++] = by_shard[s];
  multiply(c.k, n, *c.decode_tables(p), sources.data(), ordered.data(), bytes);
  return {};
}

}  // namespace troupe::kv
