#include "policies/step_cost.hpp"

#include <algorithm>
#include <bit>

#include "policies/verify_lengths.hpp"

namespace troupe::policies {
namespace {

// Products of two 64-bit numbers do not fit 64 bits; the largest here are of the order of 1e30.
__extension__ using wide = unsigned __int128;

constexpr uint64_t fs_per_ns = 1'000'000;
constexpr uint64_t ns_per_s = 1'000'000'000;

uint64_t clamp(wide v) { return v > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(v); }
// Rounded up, so that no work is free and sums stay monotone.
uint64_t divide(wide v, uint64_t by) { return clamp((v + by - 1) / by); }
uint64_t ns_of(wide fs) { return divide(fs, fs_per_ns); }

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Between two points, rounded down; ns ascend or descend, n ascends.
uint64_t between(uint64_t n, uint64_t n0, uint64_t n1, uint64_t v0, uint64_t v1) {
  if (n1 == n0) return v0;
  const wide part = v1 >= v0 ? wide(v1 - v0) * (n - n0) / (n1 - n0) : wide(v0 - v1) * (n - n0) / (n1 - n0);
  return v1 >= v0 ? clamp(v0 + part) : part > v0 ? 0 : v0 - static_cast<uint64_t>(part);
}

// One row of a measured table, at n rows.
uint64_t along(const measured_table& t, size_t context, uint64_t n) {
  const uint64_t* ns = t.ns.data() + context * t.rows.size();
  const size_t last = t.rows.size() - 1;
  if (n <= t.rows[0]) return ns[0];  // a step of fewer rows than were measured costs what those cost
  for (size_t i = 1; i <= last; ++i)
    if (n <= t.rows[i]) return between(n, t.rows[i - 1], t.rows[i], ns[i - 1], ns[i]);
  if (last == 0) return clamp(wide(ns[0]) * n / t.rows[0]);
  return between(n, t.rows[last - 1], t.rows[last], ns[last - 1], std::max(ns[last - 1], ns[last]));
}

struct totals {
  wide rows = 0, decoder_rows = 0;
  uint64_t ranks = 0;
};

// A rank's own work, fs but for the reads.
struct own_parts {
  uint64_t attention_ns = 0, sampling_ns = 0, draft_ns = 0;
  uint64_t total() const { return attention_ns + sampling_ns + draft_ns; }
};

bool measured(const step_rates& r) { return !r.chunk.rows.empty() || !r.decode.rows.empty(); }

own_parts own_work(const step_rates& r, const step_work& w, uint32_t drafts, bool group_decodes) {
  own_parts p;
  if (measured(r)) {
    const uint64_t chunk = w.rows - std::min(w.rows, w.decoder_rows), decode = w.decoder_rows;
    p.attention_ns =
        table_ns(r.chunk, chunk, chunk ? (w.positions - std::min(w.positions, w.decoder_positions)) / chunk : 0);
    const measured_table& of = r.decode.rows.empty() ? r.chunk : r.decode;
    p.attention_ns += table_ns(of, decode, decode ? w.decoder_positions / decode : 0);
    if (drafts > 0) p.draft_ns = table_ns(r.draft, w.drafting, 0);
    return p;
  }
  const auto gemm = [](uint64_t read_ns, uint64_t row_fs, uint64_t rows) {
    return std::max(read_ns, ns_of(wide(row_fs) * rows));
  };
  uint64_t ns = gemm(r.encoder_read_ns, r.encoder_row_fs, w.rows);
  if (group_decodes) ns += gemm(r.decoder_read_ns, r.decoder_row_fs, w.decoder_rows);
  ns += ns_of(wide(r.encoder_attention_fs) * w.rows + wide(r.decoder_attention_fs) * w.decoder_rows +
              wide(r.encoder_position_fs) * w.positions + wide(r.decoder_position_fs) * w.decoder_positions +
              wide(r.context_fs) * w.context);
  p.attention_ns = ns;
  if (w.samples > 0) p.sampling_ns = gemm(r.head_read_ns, r.sample_fs, w.samples);
  if (drafts > 0) p.draft_ns = r.draft_ns * drafts + ns_of(wide(r.draft_row_fs) * w.drafting * drafts);
  return p;
}

}  // namespace

void add_rows(step_work& work, uint64_t position, uint32_t rows, uint32_t decoder_rows, uint32_t samples) {
  const auto sum = [](uint64_t first, uint64_t n) { return n == 0 ? 0 : n * first + n * (n - 1) / 2; };
  work.rows += rows;
  work.decoder_rows += decoder_rows;
  work.positions += sum(position, rows);
  work.decoder_positions += sum(position + rows - decoder_rows, decoder_rows);
  work.sequences += rows > 0;
  work.context += rows > 0 ? position : 0;
  work.samples += samples;
}

uint64_t exchange_ns(const fabric& f, uint32_t ep, uint64_t items, uint64_t bytes, bool combine) {
  if (ep <= 1) return 0;
  const uint64_t domain = std::clamp<uint64_t>(f.domain, 1, ep);
  const wide all = wide(items) * bytes;
  const auto time = [](wide part, uint64_t rate) {
    return part == 0 ? 0 : divide(part * ns_per_s, std::max<uint64_t>(rate, 1));
  };
  const uint64_t inside = time(all * domain / ep, f.domain_rate);
  const uint64_t outside = time(all * (ep - domain) / ep, f.outside_rate);
  const auto doublings = static_cast<uint64_t>(std::bit_width(ep / domain)) - 1;
  return (combine ? f.combine_ns + doublings * f.combine_doubling_ns
                  : f.dispatch_ns + doublings * f.dispatch_doubling_ns) +
         std::max(inside, outside);
}

uint64_t table_ns(const measured_table& t, uint64_t rows, uint64_t context) {
  if (rows == 0 || t.rows.empty() || t.context.empty()) return 0;
  if (context <= t.context[0]) return along(t, 0, rows);
  for (size_t i = 1; i < t.context.size(); ++i)
    if (context <= t.context[i])
      return between(context, t.context[i - 1], t.context[i], along(t, i - 1, rows), along(t, i, rows));
  return along(t, t.context.size() - 1, rows);
}

step_cost_parts cost_of_step(const step_rates& r, const fabric& over, const group_step& step) {
  step_cost_parts out;
  totals sum;
  bool decodes = false;
  for (const step_work& w : step.ranks) {
    sum.rows += w.rows;
    sum.decoder_rows += w.decoder_rows;
    ++sum.ranks;
    decodes = decodes || w.decoder_rows > 0;
  }
  if (sum.rows == 0) return out;
  own_parts slowest;
  for (const step_work& w : step.ranks) {
    const own_parts p = own_work(r, w, step.drafts, decodes);
    if (p.total() > slowest.total()) slowest = p;
  }
  out.attention_ns = slowest.attention_ns + r.step_ns;
  out.sampling_ns = slowest.sampling_ns;
  out.draft_ns = slowest.draft_ns;
  if (r.top_k > 0 && r.experts > 0) {
    const uint32_t ep = std::max(step.ep, 1u);
    const uint64_t slots = step.slots ? step.slots : (r.experts + ep - 1) / ep;
    const auto layers = [&](wide rows, uint32_t count) {
      if (rows == 0 || count == 0) return;
      const uint64_t mean = divide(rows * r.top_k, sum.ranks);  // pairs that a rank sends, and receives on average
      const uint64_t busiest = divide(wide(mean) * std::max(step.imbalance_permille, 1000u), 1000);
      const uint64_t touched = std::min(slots, busiest);
      out.experts_ns += count * ns_of(std::max(wide(r.expert_read_fs) * touched, wide(r.expert_item_fs) * busiest));
      const uint64_t shown = 1000 - std::min(r.hidden_permille, 1000u);
      out.dispatch_ns += divide(wide(count) * exchange_ns(over, ep, mean, r.dispatch_bytes, false) * shown, 1000);
      out.combine_ns += divide(wide(count) * exchange_ns(over, ep, mean, r.combine_bytes, true) * shown, 1000);
    };
    layers(sum.rows, r.encoder_layers);
    layers(sum.decoder_rows, r.decoder_layers);
  }
  out.total_ns = out.attention_ns + out.dispatch_ns + out.experts_ns + out.combine_ns + out.sampling_ns + out.draft_ns;
  return out;
}

uint32_t accept_chance(const acceptance_model& m, uint64_t seed, uint64_t position) {
  constexpr uint64_t one = 1u << 20;
  const uint64_t request = mix(mix(seed ^ 0x5eedu) + position / 16) >> 44;
  const uint64_t token = mix(mix(seed + 1) + position) >> 44;
  const uint64_t score = (request + token) / 2;  // 0 .. 2^20 - 1
  const size_t steps = m.chance_permille.size() - 1;
  if (steps == 0) return m.chance_permille[0] * 1000;
  const uint64_t at = score * steps, i = at / one;
  const uint64_t low = m.chance_permille[i], high = m.chance_permille[i + 1];
  return static_cast<uint32_t>(between(at % one, 0, one, low * 1000, high * 1000));
}

bool accepts(const acceptance_model& m, uint64_t seed, uint64_t position) {
  return (mix(mix(seed + 2) ^ position) >> 32) % 1'000'000 < accept_chance(m, seed, position);
}

uint64_t handoff_bytes(const kv_sizes& kv, uint64_t tokens) {
  if (kv.page_tokens == 0) return kv.state_bytes;
  return (tokens + kv.page_tokens - 1) / kv.page_tokens * kv.page_bytes + kv.state_bytes;
}

result<const fabric*> find_fabric(const cost_model& m, const std::string& name) {
  if (m.fabrics.empty()) return fail(errc::not_found, "the cost model {} has no fabric", m.name);
  if (name.empty()) return &m.fabrics.front();
  for (const fabric& f : m.fabrics)
    if (f.name == name) return &f;
  return fail(errc::not_found, "the cost model {} has no fabric {}", m.name, name);
}

namespace {

result<void> check_table(const measured_table& t, const char* name) {
  if (t.rows.empty() && t.context.empty() && t.ns.empty()) return {};
  if (t.rows.empty() || t.context.empty() || t.ns.size() != t.rows.size() * t.context.size())
    return fail(errc::invalid_argument, "rates.{}: {} rows, {} contexts and {} times", name, t.rows.size(),
                t.context.size(), t.ns.size());
  if (t.rows[0] == 0) return fail(errc::invalid_argument, "rates.{}.rows[0]: is 0", name);
  for (size_t i = 1; i < t.rows.size(); ++i)
    if (t.rows[i] <= t.rows[i - 1]) return fail(errc::invalid_argument, "rates.{}.rows[{}]: does not ascend", name, i);
  for (size_t i = 1; i < t.context.size(); ++i)
    if (t.context[i] <= t.context[i - 1])
      return fail(errc::invalid_argument, "rates.{}.context[{}]: does not ascend", name, i);
  for (size_t i = 0; i < t.ns.size(); ++i) {
    if (t.ns[i] == 0) return fail(errc::invalid_argument, "rates.{}.ns[{}]: is 0", name, i);
    if (i % t.rows.size() > 0 && t.ns[i] < t.ns[i - 1])
      return fail(errc::invalid_argument, "rates.{}.ns[{}]: more rows take less time", name, i);
  }
  return {};
}

}  // namespace

result<void> check_model(const cost_model& m) {
  const step_rates& r = m.rates;
  if (auto ok = check_table(r.chunk, "chunk"); !ok) return ok;
  if (auto ok = check_table(r.decode, "decode"); !ok) return ok;
  if (auto ok = check_table(r.draft, "draft"); !ok) return ok;
  if (!measured(r) && (r.encoder_layers == 0 || r.encoder_row_fs == 0))
    return fail(errc::invalid_argument, "rates: neither encoder layers and their row cost nor a measured table");
  if (r.hidden_permille > 1000) return fail(errc::invalid_argument, "rates.hidden_permille: is above 1000");
  if (m.fabrics.empty()) return fail(errc::invalid_argument, "fabrics: is empty");
  for (size_t i = 0; i < m.fabrics.size(); ++i)
    if (m.fabrics[i].domain == 0 || m.fabrics[i].domain_rate == 0 || m.fabrics[i].outside_rate == 0)
      return fail(errc::invalid_argument, "fabrics[{}]: domain and rates must be positive", i);
  if (m.acceptance.chance_permille.empty()) return fail(errc::invalid_argument, "acceptance.chance_permille: is empty");
  for (size_t i = 0; i < m.acceptance.chance_permille.size(); ++i)
    if (m.acceptance.chance_permille[i] > 1000)
      return fail(errc::invalid_argument, "acceptance.chance_permille[{}]: is above 1000", i);
  return {};
}

}  // namespace troupe::policies
