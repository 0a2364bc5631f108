// The clients of a simulated cluster: plays a workload into the fronts as a gateway would, tries again where a client
// would, and keeps what became of every request.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sim/events/log.hpp"
#include "runtime/sim/workload/workload.hpp"
#include "runtime/sim/world.hpp"

namespace troupe::sim {

/// How clients behave.
struct load_options {
  uint32_t max_attempts = 8;  // of a request that fails or whose front is lost; one that is refused as wrong has one
  nanoseconds retry{std::chrono::milliseconds(250)};  // before another attempt, at least
  nanoseconds patience{std::chrono::minutes(10)};     // with a cluster that is full, from the arrival on
};

/// What became of a request.
struct request_outcome {
  uint64_t index = 0;
  nanoseconds arrival{0}, first_token{0}, end{0};  // virtual time; first_token 0: none came
  uint32_t input = 0, wanted = 0, output = 0;      // tokens
  uint32_t cached = 0;                             // prompt tokens that were not computed
  uint32_t drafted = 0, accepted = 0;
  uint32_t attempts = 1, refusals = 0;
  bool finished = false;     // else it failed
  uint64_t tokens_hash = 0;  // of the answer
  errc failure{};            // of the last attempt
  std::string failure_text;
  bool operator==(const request_outcome&) const = default;
};

/// Not thread safe; world, source and log outlive it, and it must live until the world's actors have ended or
/// `abandon` was called.
class load {
 public:
  load(world& w, workload_source& source, event_log& log, load_options options = {});
  ~load();

  /// Requests arrive from now on.
  void start();
  /// No further request arrives.
  void close() { closed_ = true; }
  /// Every request that was to come has come and ended; or the source has failed.
  bool done() const { return (closed_ || exhausted_) && open_.empty(); }
  const result<void>& source_error() const { return source_error_; }

  uint64_t submitted() const { return submitted_; }
  uint64_t finished() const { return finished_; }
  size_t open() const { return open_.size(); }
  uint64_t tokens() const { return tokens_; }
  /// In the order in which they ended.
  const std::vector<request_outcome>& outcomes() const { return outcomes_; }
  /// A broken promise to a client, as a sentence; empty: none.
  const std::string& violation() const { return violation_; }

 private:
  struct request;
  class sink;
  void fetch();
  void arrive();
  void attempt(const std::shared_ptr<request>& r);
  void event(const std::shared_ptr<request>& r, uint32_t attempt, actors::client_event e);
  void again(const std::shared_ptr<request>& r, nanoseconds after, errc why, const std::string& text);
  void end(const std::shared_ptr<request>& r, bool finished, errc why, const std::string& text);
  void later(nanoseconds d, std::function<void()> f);

  world& world_;
  workload_source& source_;
  event_log& log_;
  const load_options options_;
  nanoseconds begin_{0};
  std::optional<workload_request> next_;
  bool closed_ = false, exhausted_ = false;
  result<void> source_error_;
  std::map<uint64_t, std::shared_ptr<request>> open_;
  std::vector<request_outcome> outcomes_;
  uint64_t submitted_ = 0, finished_ = 0, tokens_ = 0;
  std::string violation_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::sim
