#include "runtime/node/store_link.hpp"

#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/node/open_model.hpp"
#include "runtime/node/store_options.hpp"
#include "runtime/transport/process_transport.hpp"

namespace troupe::node {
namespace {

constexpr size_t link_threads = 2;              // that check and copy
constexpr uint64_t link_staging = 16ull << 20;  // for what is pulled
constexpr uint64_t link_window = 16ull << 20;   // bytes being read, and being written, at once

}  // namespace

result<std::optional<kv::hash_scheme>> cache_scheme(const config::settings& s) {
  if (!s.cache.enabled || s.storage.nodes == 0) return std::optional<kv::hash_scheme>{};
  TROUPE_TRY(auto scheme, storage_scheme(s));
  TROUPE_TRY(auto model, open_model(s));
  if (scheme.block_tokens != model->config.sliding_window) {
    log::warn("prompts are not cached: the store has blocks of {} tokens, the model pages of {}", scheme.block_tokens,
              model->config.sliding_window);
    return std::optional<kv::hash_scheme>{};
  }
  return std::optional(scheme);
}

store_link::store_link(const config::settings& s, const kv::hash_scheme& scheme)
    : settings_(s), options_(prefix_options_of(s)) {
  options_.store = actors::make_prefix_store(session_);
  options_.scheme = scheme;
}

result<std::unique_ptr<store_link>> store_link::make(const config::settings& s, const kv::hash_scheme& scheme) {
  std::unique_ptr<store_link> l(new store_link(s, scheme));
  transport::options t;
  t.shared_memory = s.transport.shared_memory;
  t.deadline = s.transport.peer_deadline;
  TROUPE_TRY(auto plane, transport::make_process_transport(t));
  l->plane_ = std::move(plane);
  l->pool_ = std::make_unique<kv::io_pool>(link_threads, 65'536);
  return l;
}

void store_link::start(const actors::role_context& context, actors::role_actors& role) {
  actors::store_client_options c;
  ++users_->count;
  c.keep = std::shared_ptr<void>(this, [u = users_](void*) {
    std::lock_guard lock(u->mutex);
    --u->count;
    u->changed.notify_all();
  });
  c.identity = context.identity;
  c.directory = context.directory;
  c.plane = plane_;
  c.compute = pool_.get();
  c.wall = &kv::system_unix_clock();
  c.scheme = options_.scheme;
  c.client = client_options_of(settings_.storage);
  c.client.seed = entropy_seed();
  c.client.read_window = c.client.write_window = link_window;
  c.staging_bytes = link_staging;
  auto client = actors::spawn_store_client(context.parent, session_, std::move(c));
  role.viewers.push_back(client);
  role.all.push_back(caf::actor_cast<actors::any_handle>(client));
}

void store_link::stop() { session_->close(); }

bool store_link::stopped() const {
  std::lock_guard lock(users_->mutex);
  return users_->count == 0;
}

store_link::~store_link() {
  stop();
  {
    std::unique_lock lock(users_->mutex);
    users_->changed.wait(lock, [this] { return users_->count == 0; });
  }
  pool_.reset();
  plane_.reset();
}

}  // namespace troupe::node
