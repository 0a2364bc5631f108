// Runs requests with one engine alone, many at once, the way a rank's scheduler does: prompts in chunks beside decoding
// sequences, the next request in when one ends.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/engine/cpu_engine.hpp"
#include "kernels/engine/page_pool.hpp"

namespace troupe::kernels::measure {

/// One request.
struct request {
  std::vector<token_id> tokens;
  sampling_params sampling{.temperature = 0};
  stop_params stop;
  bool speculate = true;
};

/// What came out of it.
struct answer {
  std::vector<token_id> tokens;
  finish_reason finish = finish_reason::none;
  uint64_t drafted = 0, accepted = 0;
};

/// An engine with its page pool. One thread at a time calls it.
class engine_runner {
 public:
  /// `limits.pages` is set to what `limits.slots` sequences of the full context need; adaptive_drafts and clock as in
  /// cpu_engine_config. Errors are the engine's.
  static result<std::unique_ptr<engine_runner>> make(std::shared_ptr<const model> weights, engine_limits limits,
                                                     draft_observer on_drafts = {}, bool adaptive_drafts = false,
                                                     const clock_source* clock = nullptr);
  /// The same of any engine, for instance one of a group; `config.limits.pages` is set. `on_step` sees every result, on
  /// the engine's thread; it must not block.
  static result<std::unique_ptr<engine_runner>> make(cpu_engine_config config,
                                                     std::function<void(const step_result&)> on_step = {});
  ~engine_runner();

  engine& get() { return *engine_; }

  /// Runs all requests, at most as many at once as there are slots, and returns the answers in their order. Every
  /// decoding sequence may verify all its drafts (unless they are adaptive). invalid_argument for a request that does
  /// not fit into the context; timeout if a step takes minutes; else the engine's errors. After an error the runner is
  /// of no further use.
  result<std::vector<answer>> run(const std::vector<request>& requests);

 private:
  struct running {
    size_t index = 0;
    uint32_t done = 0;  // prompt rows in place
    bool finished = false;
    std::vector<page_id> pages;
  };

  engine_runner() : pool_(0) {}
  step_plan next_plan(const std::vector<request>& requests, size_t& started, std::vector<slot_id> closing);
  result<step_result> next_result();

  std::vector<running> slots_;
  std::vector<bool> used_;
  page_pool pool_;
  uint64_t plan_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<step_result> results_;  // protected by mutex_; bounded by the steps of one plan
  std::unique_ptr<engine> engine_;
};

/// `requests` cut so that prompt and answer fit into `context`: prompts keep their last tokens.
void fit(std::vector<request>& requests, uint32_t context);

}  // namespace troupe::kernels::measure
