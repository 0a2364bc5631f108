// A generator for unit tests of the gateway: it stands where the entrypoint stands in a cluster and plays a script per
// request on a thread of its own. Deterministic: what a request gets depends on the request only.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/gateway/generator.hpp"

namespace troupe::gateway::testing {

/// What a request gets.
struct script {
  std::vector<kernels::token_id> tokens;
  bool endless = false;  // repeat `tokens` until max_tokens
  size_t per_event = 1;  // tokens per event
  bool gated = false;    // advances only by `allow`
  errc failure{};        // after the tokens, instead of a finish
  std::string failure_text;
  uint32_t cached = 0;
};

class scripted_generator final : public generator {
 public:
  using playwright = std::function<script(const generate_request&)>;
  explicit scripted_generator(playwright p, uint32_t max_context = 512);
  ~scripted_generator() override;

  const kernels::model_facts& facts() const override { return facts_; }
  bool ready() const override;
  void submit(generate_request request, on_event callback) override;
  void cancel(const std::string& id) override;

  void set_ready(bool ready);
  /// Lets every gated request advance by `events` events more.
  void allow(size_t events);
  /// Requests that were submitted, in order.
  std::vector<generate_request> seen() const;
  size_t cancelled() const;  // cancels that met a running request
  size_t active() const;     // requests without their last event
  uint64_t tokens_given() const;
  /// Waits until `condition` (looked at after every change) holds; false after `limit`.
  bool wait(const std::function<bool()>& condition, std::chrono::seconds limit = std::chrono::seconds(30));

 private:
  struct play {
    generate_request request;
    on_event callback;
    script what;
    size_t given = 0, allowed = 0;
    bool cancel = false;
  };
  void run();
  generate_event next_event(play& p);

  kernels::model_facts facts_;
  playwright write_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, play> plays_;
  std::vector<generate_request> seen_;
  bool ready_ = true, stop_ = false;
  size_t cancelled_ = 0, generation_ = 0;
  uint64_t tokens_ = 0;
  std::thread thread_;
};

/// Says what it was told: "You said: <prompt>" and an end of sentence, in the bytes of tiny-v41's tokenizer.
script echo(const generate_request& request);

/// Byte tokens of tiny-v41's tokenizer.
std::vector<kernels::token_id> byte_tokens(std::string_view text);

}  // namespace troupe::gateway::testing
