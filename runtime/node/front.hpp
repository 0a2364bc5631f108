// The front process beside its entrypoint: gateway, canary, readiness.
#pragma once

#include <memory>

#include "runtime/config/config.hpp"
#include "runtime/gateway/server.hpp"
#include "runtime/node/actor_net.hpp"
#include "runtime/node/entrypoint_generator.hpp"
#include "runtime/observe/metrics.hpp"

namespace troupe::node {

/// Serves HTTP from its construction on; /ready says yes once a canary request has gone through and while the
/// entrypoint has somebody to decode. One thread (the process's main one), except `attach`.
class front {
 public:
  /// Loads the recipe and binds the address of front process number `index`. Errors name the file or the address.
  static result<std::unique_ptr<front>> start(const config::settings& s, uint32_t index, actor_net& net);
  ~front();

  /// The entrypoint from now on; null: it has ended. Any thread.
  void attach(actors::entrypoint_actor entrypoint);

  /// Looks after readiness: asks the entrypoint, runs the canary where it is due. Blocks at most a few seconds while a
  /// canary is under way, else milliseconds. Call it a few times a second. Returns true when readiness has changed.
  bool look_after();
  bool ready() const { return generator_.ready(); }
  /// Why it is not ready, for people.
  const std::string& reason() const { return reason_; }

  /// Where HTTP is served.
  std::string address() const { return server_->address(); }
  std::string model() const { return model_; }
  /// No new requests; running ones finish.
  void drain() { server_->drain(); }
  /// Requests whose answer has not left yet.
  uint32_t unanswered() const { return server_->unanswered(); }
  /// Waits until every answer has left, at most `limit`; false when some have not.
  bool wait_answered(nanoseconds limit) { return server_->wait_answered(limit); }
  void stop() { server_->stop(); }

 private:
  front(actor_net& net, kernels::model_facts facts, std::string model, std::optional<kv::hash_scheme> blocks);
  void show(const std::vector<actors::eplb_report>& experts);
  actor_net& net_;
  entrypoint_generator generator_;
  observe::metrics metrics_;
  std::string model_, reason_ = "the front process has not joined the cluster yet";
  std::string canary_failure_;  // the last one, logged once
  std::mutex mutex_;
  actors::entrypoint_actor entrypoint_;  // protected by mutex_
  uint64_t attached_ = 0;                // counts attach calls; protected by mutex_
  uint64_t proven_ = 0;                  // value of attached_ for which the canary went through
  std::unique_ptr<gateway::server> server_;

  // What the entrypoint counts, as metrics of this process. A new entrypoint starts from zero.
  void export_counts(const actors::front_report& r, uint64_t attached);
  actors::front_report counted_;
  uint64_t counted_of_ = 0;
  observe::counter pulled_, pulled_bytes_, pulled_seconds_, computed_again_, balanced_, alone_;
  observe::counter matches_, matches_failed_, hit_tokens_, miss_tokens_;
};

}  // namespace troupe::node
