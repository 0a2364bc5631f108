// The gateway's generator in a cluster: passes requests to the entrypoint actor of this process and its events back.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/protocol/front.hpp"
#include "kv/hash/block_hash.hpp"
#include "runtime/gateway/generator.hpp"

namespace troupe::node {

/// Any thread. Requests submitted while no entrypoint is attached end with `unavailable`; so do requests of an
/// entrypoint that ends without having answered them.
class entrypoint_generator final : public gateway::generator {
 public:
  /// `blocks`: how the cluster's store names blocks, if there is one to be used.
  explicit entrypoint_generator(kernels::model_facts facts, std::optional<kv::hash_scheme> blocks = {})
      : facts_(std::move(facts)), blocks_(std::move(blocks)) {}

  /// The entrypoint from now on; null detaches. Running requests stay with the old one.
  void attach(actors::entrypoint_actor entrypoint);
  /// What `ready` says; set by whoever runs the canary and watches the entrypoint.
  void set_ready(bool ready) { ready_.store(ready, std::memory_order_release); }

  const kernels::model_facts& facts() const override { return facts_; }
  bool ready() const override { return ready_.load(std::memory_order_acquire); }
  std::vector<kv::block_hash> blocks_of(std::string_view salt,
                                        std::span<const kernels::token_id> prompt) const override;
  void submit(gateway::generate_request request, on_event callback) override;
  void cancel(const std::string& id) override;

 private:
  actors::entrypoint_actor current() const;
  const kernels::model_facts facts_;
  const std::optional<kv::hash_scheme> blocks_;
  std::atomic<bool> ready_{false};
  mutable std::mutex mutex_;
  actors::entrypoint_actor entrypoint_;
};

/// Generates one token through `g` and waits for it, at most `limit`: the proof that a request can go through. Blocks;
/// not for actors.
result<void> run_canary(gateway::generator& g, nanoseconds limit);

}  // namespace troupe::node
