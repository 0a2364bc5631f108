#include "kv/hash/block_hash.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie in memory");

// Fetched once: the implicit fetch of EVP_sha256() costs a third of a hash.
const EVP_MD* sha256() {
  static const EVP_MD* const md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  TROUPE_CHECK(md != nullptr, "OpenSSL has no SHA256");
  return md;
}

struct free_context {
  void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
};
using context = std::unique_ptr<EVP_MD_CTX, free_context>;

context make_context() {
  context c(EVP_MD_CTX_new());
  TROUPE_CHECK(c != nullptr, "OpenSSL gave no digest context");
  return c;
}

std::array<uint8_t, 32> digest(EVP_MD_CTX* c, std::span<const uint8_t> bytes) {
  std::array<uint8_t, 32> out;
  unsigned length = 0;
  const bool ok = EVP_DigestInit_ex2(c, sha256(), nullptr) && EVP_DigestUpdate(c, bytes.data(), bytes.size()) &&
                  EVP_DigestFinal_ex(c, out.data(), &length);
  TROUPE_CHECK(ok && length == out.size(), "OpenSSL refused a SHA-256 of {} bytes", bytes.size());
  return out;
}

void put_u32(std::vector<uint8_t>& to, uint32_t v) {
  const auto* p = reinterpret_cast<const uint8_t*>(&v);
  to.insert(to.end(), p, p + sizeof v);
}

void put_field(std::vector<uint8_t>& to, std::span<const uint8_t> bytes) {
  put_u32(to, static_cast<uint32_t>(bytes.size()));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::span<const uint8_t> as_u8(std::string_view s) { return {reinterpret_cast<const uint8_t*>(s.data()), s.size()}; }

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (const uint8_t b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

}  // namespace

uint64_t hash_scheme::id() const {
  std::vector<uint8_t> in;
  put_field(in, as_u8(name));
  put_u32(in, version);
  put_u32(in, block_tokens);
  put_field(in, fingerprint);
  const auto d = digest(make_context().get(), in);
  uint64_t v = 0;
  std::memcpy(&v, d.data(), sizeof v);
  return std::max<uint64_t>(v, 1);
}

result<void> check_same_scheme(const hash_scheme& ours, const hash_scheme& theirs, std::string_view who) {
  const auto differs = [&](const char* what, std::string a, std::string b, const char* advice) {
    return fail(errc::unsupported, "{} hashes blocks with {} {}, here it is {}: {}", who, what, b, a, advice);
  };
  if (ours.name != theirs.name)
    return differs("scheme", ours.name, theirs.name.substr(0, 64), "both sides need a build with the same block hash");
  if (ours.version != theirs.version)
    return differs("scheme version", std::to_string(ours.version), std::to_string(theirs.version),
                   "both sides need a build with the same block hash");
  if (ours.block_tokens != theirs.block_tokens)
    return differs("block size", std::to_string(ours.block_tokens), std::to_string(theirs.block_tokens),
                   "it is fixed when a store is made; change it back, or give the store another place");
  if (ours.fingerprint != theirs.fingerprint)
    return differs("fingerprint", hex(ours.fingerprint), hex(theirs.fingerprint),
                   "weights, numeric backend and replay mode must be those the store was made with; change them "
                   "back, or give the store another place");
  return {};
}

struct block_hasher::state {
  uint32_t block_tokens = 0;
  size_t prefix = 0;             // bytes of `message` that hold fingerprint and salt
  size_t ids = 0;                // where the token ids start
  std::vector<uint8_t> message;  // the whole input of the next digest
  uint32_t filled = 0;           // ids of the incomplete block
  block_hash last;
  context digest_context = make_context();

  state() = default;
  state(const state& o)
      : block_tokens(o.block_tokens),
        prefix(o.prefix),
        ids(o.ids),
        message(o.message),
        filled(o.filled),
        last(o.last) {}

  // Lays out the input of the block after `last`.
  void start_block() {
    message.resize(prefix);
    put_field(message, last.tokens ? std::span<const uint8_t>(last.bytes) : std::span<const uint8_t>());
    put_u32(message, block_tokens * 4);
    ids = message.size();
    message.resize(ids + size_t{block_tokens} * 4);
    put_u32(message, 4);
    put_u32(message, block_tokens);
    put_u32(message, 4);
    put_u32(message, last.tokens + block_tokens);
    filled = 0;
  }

  void finish_block() {
    const bool first = last.tokens == 0;
    const auto d = digest(digest_context.get(), message);
    std::copy_n(d.begin(), last.bytes.size(), last.bytes.begin());
    last.tokens += block_tokens;
    if (first) return start_block();
    // From block 1 on the layout stays; only parent and count change.
    std::memcpy(message.data() + prefix + 4, last.bytes.data(), last.bytes.size());
    const uint32_t next = last.tokens + block_tokens;
    std::memcpy(message.data() + message.size() - 4, &next, 4);
    filled = 0;
  }
};

block_hasher::block_hasher(std::unique_ptr<state> s) : state_(std::move(s)) {}
block_hasher::block_hasher(const block_hasher& o) : state_(std::make_unique<state>(*o.state_)) {}
block_hasher& block_hasher::operator=(const block_hasher& o) {
  if (this != &o) state_ = std::make_unique<state>(*o.state_);
  return *this;
}
block_hasher::block_hasher(block_hasher&&) noexcept = default;
block_hasher& block_hasher::operator=(block_hasher&&) noexcept = default;
block_hasher::~block_hasher() = default;

result<block_hasher> block_hasher::make(const hash_scheme& scheme, std::string_view salt) {
  hash_scheme known = scheme;
  known.name = hash_scheme::current_name;
  known.version = hash_scheme::current_version;
  if (auto same = check_same_scheme(known, scheme, "the caller"); !same) return fail(std::move(same.error()));
  if (scheme.block_tokens < 1 || scheme.block_tokens > 65'536)
    return fail(errc::invalid_argument, "block size {} is not 1 to 65536 tokens", scheme.block_tokens);
  if (salt.size() > max_salt)
    return fail(errc::invalid_argument, "tenant salt of {} bytes, at most {} are taken", salt.size(), max_salt);
  auto s = std::make_unique<state>();
  s->block_tokens = scheme.block_tokens;
  put_field(s->message, scheme.fingerprint);
  put_field(s->message, as_u8(salt));
  s->prefix = s->message.size();
  s->start_block();
  return block_hasher(std::move(s));
}

result<block_hasher> block_hasher::resume(const hash_scheme& scheme, std::string_view salt, const block_hash& parent) {
  TROUPE_TRY(block_hasher h, make(scheme, salt));
  if (parent.tokens == 0 && parent == block_hash{}) return h;
  if (parent.tokens == 0 || parent.tokens % scheme.block_tokens != 0 ||
      parent.tokens > UINT32_MAX - 2 * scheme.block_tokens)
    return fail(errc::invalid_argument, "a chain cannot go on behind {} tokens in blocks of {}", parent.tokens,
                scheme.block_tokens);
  h.state_->last = parent;
  h.state_->start_block();
  return h;
}

result<size_t> block_hasher::append(std::span<const uint32_t> tokens, std::vector<block_hash>& out) {
  state& s = *state_;
  // The input of the next block names its end, so a whole further block must fit into 32 bits as well.
  if (tokens.size() > UINT32_MAX - s.block_tokens - this->tokens())
    return fail(errc::invalid_argument, "{} tokens after {} would pass the longest chain of {} tokens", tokens.size(),
                this->tokens(), UINT32_MAX - s.block_tokens);
  size_t done = 0;
  while (!tokens.empty()) {
    const size_t n = std::min<size_t>(tokens.size(), s.block_tokens - s.filled);
    std::memcpy(s.message.data() + s.ids + size_t{s.filled} * 4, tokens.data(), n * 4);
    s.filled += static_cast<uint32_t>(n);
    tokens = tokens.subspan(n);
    if (s.filled < s.block_tokens) break;
    s.finish_block();
    out.push_back(s.last);
    ++done;
  }
  return done;
}

const block_hash& block_hasher::last() const { return state_->last; }

uint64_t block_hasher::tokens() const { return uint64_t{state_->last.tokens} + state_->filled; }

result<std::vector<block_hash>> hash_chain(const hash_scheme& scheme, std::string_view salt,
                                           std::span<const uint32_t> tokens) {
  TROUPE_TRY(block_hasher h, block_hasher::make(scheme, salt));
  std::vector<block_hash> out;
  out.reserve(tokens.size() / scheme.block_tokens);
  TROUPE_TRY([[maybe_unused]] const size_t n, h.append(tokens, out));
  return out;
}

}  // namespace troupe::kv
