#include "kernels/model/engram_hash.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace troupe::kernels {
namespace {

using nlohmann::json;
__extension__ typedef unsigned __int128 uint128;

// SeedSequence of NumPy (after O'Neill, "Developing a seed_seq alternative"): mixes the seed into four words and
// expands them to the generator's state.
class seed_sequence {
 public:
  explicit seed_sequence(uint64_t seed) {
    std::vector<uint32_t> entropy{static_cast<uint32_t>(seed)};
    if (seed >> 32) entropy.push_back(static_cast<uint32_t>(seed >> 32));
    uint32_t constant = 0x43b0d7e5;
    auto hash = [&constant](uint32_t v) {
      v ^= constant;
      constant *= 0x931e8875;
      v *= constant;
      return v ^ (v >> 16);
    };
    auto mix = [](uint32_t x, uint32_t y) {
      const uint32_t r = 0xca01f9dd * x - 0x4973f715 * y;
      return r ^ (r >> 16);
    };
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(i < entropy.size() ? entropy[i] : 0);
    for (size_t from = 0; from < pool_.size(); ++from)
      for (size_t to = 0; to < pool_.size(); ++to)
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
  }

  template <size_t N>
  std::array<uint64_t, N> words() const {
    std::array<uint64_t, N> out{};
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < 2 * N; ++i) {
      uint32_t v = pool_[i % pool_.size()];
      v ^= constant;
      constant *= 0x58f38ded;
      v *= constant;
      v ^= v >> 16;
      out[i / 2] |= static_cast<uint64_t>(v) << (32 * (i % 2));
    }
    return out;
  }

 private:
  std::array<uint32_t, 4> pool_{};
};

class pcg64 {
 public:
  explicit pcg64(uint64_t seed) {
    const auto w = seed_sequence(seed).words<4>();
    increment_ = (((static_cast<uint128>(w[2]) << 64) | w[3]) << 1) | 1;
    step();
    state_ += (static_cast<uint128>(w[0]) << 64) | w[1];
    step();
  }
  uint64_t next() {
    step();
    const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const unsigned turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << ((64 - turn) & 63));
  }

 private:
  void step() {
    constexpr uint128 multiplier = (static_cast<uint128>(0x2360ed051fc65da4ULL) << 64) | 0x4385df649fccf645ULL;
    state_ = state_ * multiplier + increment_;
  }
  uint128 state_ = 0, increment_ = 0;
};

bool is_prime(uint32_t n) {
  if (n < 2) return false;
  for (uint32_t d = 2; static_cast<uint64_t>(d) * d <= n; ++d)
    if (n % d == 0) return false;
  return true;
}

}  // namespace

std::vector<int64_t> numpy_integers(uint64_t seed, uint64_t high, size_t count) {
  pcg64 generator(seed);
  std::vector<int64_t> out;
  const uint64_t threshold = (UINT64_MAX - (high - 1)) % high;
  while (out.size() < count) {
    const uint128 product = static_cast<uint128>(generator.next()) * high;
    if (static_cast<uint64_t>(product) < threshold) continue;
    out.push_back(static_cast<int64_t>(product >> 64));
  }
  return out;
}

std::vector<int64_t> engram_multipliers(uint32_t layer, uint32_t compressed_vocabulary, uint32_t max_ngram) {
  const uint64_t high = static_cast<uint64_t>(INT64_MAX) / compressed_vocabulary / 2;
  auto out = numpy_integers(uint64_t{10007} * layer, high, max_ngram);
  for (int64_t& m : out) m = m * 2 + 1;
  return out;
}

std::vector<std::vector<std::vector<uint32_t>>> engram_primes(size_t layers, uint32_t vocabulary, uint32_t orders,
                                                              uint32_t heads) {
  std::vector<std::vector<std::vector<uint32_t>>> out(layers);
  uint32_t next = vocabulary;
  for (auto& layer : out) {
    layer.resize(orders);
    for (auto& order : layer)
      while (order.size() < heads) {
        while (!is_prime(next)) ++next;
        order.push_back(next++);
      }
  }
  return out;
}

result<engram_hash> engram_hash::load(const std::string& directory, const model_config& c) {
  engram_hash h;
  if (c.engram_layer_ids.empty()) return h;
  h.columns_ = c.engram_columns();
  h.heads_ = c.engram_n_heads;
  h.max_ngram_ = c.engram_max_ngram_size;
  const uint32_t orders = h.max_ngram_ - 1;
  auto primes = engram_primes(c.engram_layer_ids.size(), static_cast<uint32_t>(c.engram_vocab_size), orders, h.heads_);
  std::vector<std::vector<int64_t>> multipliers;
  for (uint32_t l : c.engram_layer_ids)
    multipliers.push_back(engram_multipliers(l, c.engram_compressed_vocab_size, h.max_ngram_));

  std::string source = directory + "/engram_hash.json";
  if (std::filesystem::exists(source)) {
    TROUPE_TRY(std::string text, read_text_file(source));
    json root = json::parse(text, nullptr, false);
    if (!root.is_object() || !root.contains("token_map") || !root["token_map"].is_array())
      return fail(errc::corrupt, "{}: no token_map list", source);
    for (const json& e : root["token_map"]) {
      if (!e.is_number_integer()) return fail(errc::corrupt, "{}: token_map holds {}", source, e.dump());
      h.map_.push_back(e.get<int32_t>());
    }
    if (root.contains("multipliers")) {
      const json& m = root["multipliers"];
      if (!m.is_array() || m.size() != multipliers.size())
        return fail(errc::corrupt, "{}: multipliers must list {} layers", source, multipliers.size());
      for (size_t i = 0; i < m.size(); ++i) {
        if (!m[i].is_array() || m[i].size() != h.max_ngram_)
          return fail(errc::corrupt, "{}: multipliers[{}] must hold {} values", source, i, h.max_ngram_);
        for (size_t j = 0; j < m[i].size(); ++j) {
          // Decimal strings, because JSON numbers of other programs lose bits above 2^53.
          const std::string t = m[i][j].is_string() ? m[i][j].get<std::string>() : m[i][j].dump();
          auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), multipliers[i][j]);
          if (ec != std::errc{} || end != t.data() + t.size())
            return fail(errc::corrupt, "{}: multipliers[{}][{}] is {}", source, i, j, t);
        }
      }
    }
    if (root.contains("primes")) {
      const json& p = root["primes"];
      bool good = p.is_array() && p.size() == primes.size();
      for (size_t i = 0; good && i < p.size(); ++i) {
        good = p[i].is_array() && p[i].size() == orders;
        for (size_t o = 0; good && o < orders; ++o) {
          good = p[i][o].is_array() && p[i][o].size() == h.heads_;
          for (size_t k = 0; good && k < h.heads_; ++k) {
            good = p[i][o][k].is_number_unsigned() && p[i][o][k].get<uint64_t>() > 0 &&
                   p[i][o][k].get<uint64_t>() <= UINT32_MAX;
            if (good) primes[i][o][k] = p[i][o][k].get<uint32_t>();
          }
        }
      }
      if (!good)
        return fail(errc::corrupt, "{}: primes must be [{}][{}][{}] positive numbers", source, primes.size(), orders,
                    h.heads_);
    }
  } else {
    source = directory + "/tokenizer.json";
    TROUPE_TRY(std::string text, read_text_file(source));
    TROUPE_TRY(h.map_, compress_vocabulary(text, c.vocab_size, source));
  }
  if (h.map_.size() != c.vocab_size)
    return fail(errc::invalid_argument, "{}: maps {} token ids, text_config.vocab_size is {}", source, h.map_.size(),
                c.vocab_size);
  const int32_t largest = *std::max_element(h.map_.begin(), h.map_.end());
  if (*std::min_element(h.map_.begin(), h.map_.end()) < 0 ||
      static_cast<uint32_t>(largest) + 1 != c.engram_compressed_vocab_size)
    return fail(errc::invalid_argument, "{}: {} compressed ids, text_config.engram_compressed_vocab_size is {}", source,
                largest + 1, c.engram_compressed_vocab_size);
  if (c.engram_pad_token_id < 0 || static_cast<size_t>(c.engram_pad_token_id) >= h.map_.size())
    return fail(errc::invalid_argument, "text_config.engram_pad_token_id: {} is outside the vocabulary",
                c.engram_pad_token_id);
  h.pad_ = h.map_[c.engram_pad_token_id];
  for (size_t i = 0; i < primes.size(); ++i) {
    module m;
    m.multipliers = multipliers[i];
    uint64_t sum = 0;
    for (auto& order : primes[i])
      for (uint32_t p : order) {
        m.primes.push_back(p);
        m.offsets.push_back(static_cast<uint32_t>(sum));
        sum += p;
      }
    if (sum != c.engram_num_embeddings[i])
      return fail(
          errc::invalid_argument,
          "text_config.engram_num_embeddings[{}]: is {}, but the bucket sizes from engram_vocab_size {} sum to {}", i,
          c.engram_num_embeddings[i], c.engram_vocab_size, sum);
    h.modules_.push_back(std::move(m));
  }
  return h;
}

void engram_hash::rows(std::span<const int32_t> tokens, uint32_t position, uint32_t* out) const {
  int64_t ids[16];
  bool cut = false;
  for (uint32_t j = 0; j < max_ngram_; ++j) {
    cut = cut || j > position || tokens[position - j] < 0;
    ids[j] = cut ? pad_ : map_[tokens[position - j]];
  }
  for (const module& m : modules_) {
    uint64_t roll = static_cast<uint64_t>(ids[0]) * static_cast<uint64_t>(m.multipliers[0]);
    uint32_t column = 0;
    for (uint32_t j = 1; j < max_ngram_; ++j) {
      roll ^= static_cast<uint64_t>(ids[j]) * static_cast<uint64_t>(m.multipliers[j]);
      for (uint32_t head = 0; head < heads_; ++head, ++column)
        *out++ = static_cast<uint32_t>(roll % m.primes[column]) + m.offsets[column];
    }
  }
}

}  // namespace troupe::kernels
