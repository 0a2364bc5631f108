#include "runtime/cli/kv_any_store.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "runtime/base/log.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/config/config.hpp"
#include "runtime/node/cluster_store.hpp"

namespace troupe::cli {
namespace {

template <class Store>
class adapted : public kv_any_store {
 public:
  explicit adapted(std::unique_ptr<Store> s) : store_(std::move(s)) {}
  const kv::store_layout& layout() const override { return store_->layout(); }
  std::string dir() const override { return store_->dir(); }
  std::vector<std::string> notes() override { return store_->notes(); }
  std::vector<kv::target_id> absent() override { return store_->absent(); }
  result<kv::put_chain_reply> put(kv::put_chain_request r) override { return store_->put(std::move(r)); }
  result<kv::get_chain_reply> get(kv::get_chain_request r) override { return store_->get(std::move(r)); }
  result<uint64_t> match(std::vector<kv::block_hash> c) override { return store_->match(std::move(c)); }
  result<std::vector<uint32_t>> lengths(const std::vector<kv::block_hash>& c) override { return store_->lengths(c); }
  result<kv::scrub_report> scrub(const kv::scrub_options& o) override { return store_->scrub(o); }
  result<kv::reclaim_report> maintain() override { return store_->maintain(); }
  kv::shard_usage usage() override { return store_->usage(); }
  kv::index_stats stats() override { return store_->stats(); }
  result<void> each_extent(const std::function<bool(const kv::index_change&)>& each) override {
    return store_->each_extent(each);
  }

 protected:
  std::unique_ptr<Store> store_;
};

class in_directory final : public adapted<kv::directory_store> {
 public:
  using adapted::adapted;
  std::vector<std::string> disks() override {
    std::vector<std::string> out;
    for (const auto& m : layout().members())
      if (store_->usage(m.id)) out.push_back(store_->disk_name(m.id));
    return out;
  }
  result<kv::chain_match> find(std::vector<kv::block_hash> c) override {
    TROUPE_TRY(const auto blocks, store_->match(std::move(c)));
    return kv::chain_match{blocks, {}};
  }
  kv::directory_store* directory() override { return store_.get(); }
};

class of_cluster final : public adapted<node::cluster_store> {
 public:
  using adapted::adapted;
  std::vector<std::string> disks() override { return store_->disk_names(); }
  result<kv::chain_match> find(std::vector<kv::block_hash> c) override { return store_->find(std::move(c)); }
};

}  // namespace

result<std::unique_ptr<node::cluster_store>> kv_open_cluster(const kv_store_options& options,
                                                             const kv::directory_options& where) {
  if (!options.dir.empty()) return fail(errc::invalid_argument, "--dir and a cluster: a command works on one store");
  if (options.targets > 0 || !options.chunk.empty() || !options.capacity.empty() || !options.without.empty() ||
      options.durable)
    return fail(errc::invalid_argument,
                "--targets, --chunk, --capacity, --without and --durable are for a store in a directory; a cluster's "
                "is described by its configuration");
  TROUPE_TRY(auto director, options.director());
  node::cluster_store_options o;
  o.director = director;
  o.block_tokens = where.expect.block_tokens;
  o.fingerprint = where.expect.fingerprint;
  o.hedge_after = where.hedge_after;
  if (options.io_threads > 0) o.threads = options.io_threads;
  log::init("kv", "warning");
  TROUPE_TRY(auto store, node::cluster_store::open(o));
  const auto& l = store->layout();
  if (!options.ec.empty() && (where.expect.data != l.data || where.expect.parity != l.parity))
    return fail(errc::invalid_argument, "--ec {}: the store of {} has {}+{}", options.ec, store->dir(), l.data,
                l.parity);
  return store;
}

result<std::unique_ptr<kv_any_store>> kv_open(const kv_store_options& options, const kv::directory_options& where,
                                              bool look) {
  if (options.on_cluster()) {
    TROUPE_TRY(auto store, kv_open_cluster(options, where));
    return std::make_unique<of_cluster>(std::move(store));
  }
  TROUPE_TRY(auto store, look ? kv_open_to_look(where) : kv::directory_store::open(where));
  return std::make_unique<in_directory>(std::move(store));
}

void kv_notes(const std::string& command, kv_any_store& store) {
  for (const auto& n : store.notes()) tell("troupe kv {}: {}\n", command, n);
}

}  // namespace troupe::cli
