#include "runtime/node/store_options.hpp"

#include <openssl/sha.h>

#include "runtime/node/open_model.hpp"

namespace troupe::node {
namespace {

int64_t seconds_of(nanoseconds d) { return std::chrono::duration_cast<std::chrono::seconds>(d).count(); }

}  // namespace

kv::client_options client_options_of(const config::storage_section& s) {
  kv::client_options c;
  c.hedge_after = s.hedge_after;
  c.agent_ttl_s = seconds_of(s.agent_ttl);
  c.chatbot_ttl_s = seconds_of(s.chatbot_ttl);
  c.step_s = seconds_of(s.ttl_step);
  return c;
}

kv::index_options index_options_of(const config::storage_section& s) {
  kv::index_options i;
  i.agent_ttl_s = seconds_of(s.agent_ttl);
  i.chatbot_ttl_s = seconds_of(s.chatbot_ttl);
  i.step_s = seconds_of(s.ttl_step);
  i.sync = s.durability == "power" ? kv::sync_write::yes : kv::sync_write::no;
  return i;
}

void describe_storage(const config::storage_section& s, uint32_t seat, actors::opened_storage& out) {
  out.data = s.data;
  out.parity = s.parity;
  out.seat = seat;
  out.seats = s.nodes;
  out.disks = s.disks;
  out.staging_bytes = s.staging;
  out.reclaim.high = s.high_mark / 100.0;
  out.reclaim.low = s.low_mark / 100.0;
  out.client = client_options_of(s);
  out.client.hedge_after = kv::client_options{}.hedge_after;
  out.client.read_window = out.client.write_window = s.window;
  out.scrub_bytes_per_s = s.scrub_rate;
}

actors::storage_times storage_times_of(const config::storage_section& s) {
  actors::storage_times t;
  t.repair_after = s.repair_after;
  t.scrub_every = s.scrub_every;
  return t;
}

actors::prefix_options prefix_options_of(const config::settings& s) {
  actors::prefix_options o;
  o.exact = s.engine.replay == "exact";
  o.match_timeout = s.cache.match_timeout;
  o.read_at_least = s.cache.read_at_least;
  o.read_at_most = s.cache.read_at_most;
  o.writes = s.cache.writes;
  return o;
}

result<kv::hash_scheme> storage_scheme(const config::settings& s) {
  kv::hash_scheme scheme;
  std::string fingerprint = s.storage.fingerprint;
  uint32_t tokens = s.storage.block_tokens;
  if (fingerprint.empty() || tokens == 0) {
    TROUPE_TRY(auto model, open_model(s));
    if (tokens == 0) tokens = model->config.sliding_window;
    if (fingerprint.empty()) {
      TROUPE_TRY(fingerprint, model_fingerprint(s, *model));
    }
  }
  scheme.block_tokens = tokens;
  // Any text names something; 64 hex digits stand for themselves, as for `troupe kv put --fingerprint`.
  const bool hex = fingerprint.size() == 64 && fingerprint.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (hex) {
    for (size_t i = 0; i < 32; ++i)
      scheme.fingerprint[i] = static_cast<uint8_t>(std::stoul(fingerprint.substr(2 * i, 2), nullptr, 16));
  } else {
    SHA256(reinterpret_cast<const unsigned char*>(fingerprint.data()), fingerprint.size(), scheme.fingerprint.data());
  }
  return scheme;
}

}  // namespace troupe::node
