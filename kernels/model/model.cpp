#include "kernels/model/model.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

namespace troupe::kernels {

result<std::shared_ptr<const model>> load_model(const std::string& directory) {
  TROUPE_TRY(model_config config, load_config(directory));
  TROUPE_TRY(model_plan plan, make_plan(config));
  TROUPE_TRY(checkpoint files, checkpoint::open_directory(directory));
  TROUPE_TRY(model_weights weights, load_weights(files, config, plan));
  TROUPE_TRY(engram_hash hash, engram_hash::load(directory, config));
  auto m = std::make_shared<model>(
      model{directory, config, std::move(plan), std::move(files), std::move(weights), std::move(hash), {}, {}});
  m->plain_freqs = plain_frequencies(config.rope_theta, config.qk_rope_head_dim);
  m->compress_freqs = yarn_frequencies(config.compress_rope_theta, config.qk_rope_head_dim, config.scaling);
  return std::shared_ptr<const model>(std::move(m));
}

result<std::string> fingerprint(const model& m, const std::string& backend, const std::string& replay_mode) {
  TROUPE_TRY(std::string config, read_text_file(m.directory + "/config.json"));
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!hash || EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) != 1)
    return fail(errc::internal, "OpenSSL offers no SHA-256");
  auto add = [&](const void* data, size_t size) {
    const uint64_t length = size;
    EVP_DigestUpdate(hash.get(), &length, sizeof length);
    EVP_DigestUpdate(hash.get(), data, size);
  };
  add(config.data(), config.size());
  for (auto header : m.files.headers()) add(header.data(), header.size());
  for (auto& [name, t] : m.files.tensors()) {
    add(name.data(), name.size());
    add(t.data.data(), std::min<size_t>(t.data.size(), 4096));
  }
  add(backend.data(), backend.size());
  add(replay_mode.data(), replay_mode.size());
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(hash.get(), digest, &size);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace troupe::kernels
