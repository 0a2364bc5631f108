// Drives one engine the way a rank and its scheduler do, in the calling thread: for the engine's tests and for rank
// processes of larger ones.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/engine/cpu_engine.hpp"
#include "kernels/engine/page_pool.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::testing_support {

/// One request and how it is run.
struct prompt {
  std::vector<token_id> tokens;
  sampling_params sampling{.temperature = 0};
  stop_params stop{.max_tokens = 16, .ignore_eos = true};
  bool speculate = true;
  uint32_t prompt_length = 0;  // 0: tokens.size()
  uint32_t chunk = 0;          // rows per step of the prompt; 0: as many as fit
  sequence_import imported;    // rows > 0: what another engine has done; tokens then holds its first token too
  bool decoder_replay = true;  // decoder layers on the last window only, as in serving; false: on everything
};

/// What came out of a request.
struct completion {
  std::vector<token_id> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<token_logprob>> top;
  finish_reason finish = finish_reason::none;
  uint32_t drafted = 0, accepted = 0, steps = 0;
  bool same_output(const completion& o) const {
    return tokens == o.tokens && logprobs == o.logprobs && top == o.top && finish == o.finish;
  }
};

/// An engine with its page pool and a queue of its results. One thread calls it.
class engine_driver {
 public:
  /// `config.weights` and limits are the caller's; the driver owns the page memory unless the caller gives it.
  explicit engine_driver(cpu_engine_config config) : pool_(config.limits.pages) {
    if (config.pages.empty()) {
      memory_.resize(size_t{config.limits.pages} * config.weights->plan.page_bytes);
      config.pages = memory_;
    }
    start([&](engine::sink sink) { return make_cpu_engine(std::move(config), std::move(sink)); });
  }
  /// Any engine with a pool of `pages` pages.
  engine_driver(uint32_t pages, const std::function<result<std::unique_ptr<engine>>(engine::sink)>& make)
      : pool_(pages) {
    start(make);
  }
  ~engine_driver() { engine_->stop(); }

  engine& get() { return *engine_; }
  page_pool& pool() { return pool_; }
  std::vector<std::byte>& memory() { return memory_; }
  uint64_t next_plan() { return ++plan_; }
  /// Steps of `run` that ran in two micro-batches.
  uint64_t split_steps() const { return split_steps_; }

  /// The next result; an answer that does not come within a minute ends the test.
  step_result next() {
    std::unique_lock lock(mutex_);
    const bool came = arrived_.wait_for(lock, std::chrono::minutes(1), [&] { return !results_.empty(); });
    TROUPE_CHECK(came, "no step result within a minute, last plan {}", plan_);
    step_result r = std::move(results_.front());
    results_.pop_front();
    return r;
  }

  /// Runs one plan to its end and returns its results.
  std::vector<step_result> run(step_plan plan) {
    plan.id = next_plan();
    auto ok = engine_->submit(plan);
    TROUPE_CHECK(ok.has_value(), "submit: {}", ok.error().message);
    std::vector<step_result> out;
    do out.push_back(next());
    while (!out.back().plan_done);
    for (const step_result& r : out) split_steps_ += r.micro_batches > 1;
    return out;
  }

  /// `count` more pages for a slot.
  std::vector<page_id> pages(slot_id slot, uint32_t count) {
    auto taken = pool_.take(count);
    TROUPE_CHECK(taken.has_value(), "{}", taken.error().message);
    auto& held = held_[slot.value];
    held.insert(held.end(), taken->begin(), taken->end());
    return *taken;
  }
  const std::vector<page_id>& held(slot_id slot) { return held_[slot.value]; }
  void give_back(slot_id slot) {
    pool_.release(held_[slot.value], page_owner::request);
    held_.erase(slot.value);
  }

  /// Runs all prompts at once: as many as there are slots, chunks and decodes mixed in each step, the rest when a slot
  /// becomes free. Returns the completions in the order of the prompts.
  std::vector<completion> complete(const std::vector<prompt>& prompts, uint32_t verify_budget = 64,
                                   uint32_t max_steps = 1) {
    struct running {
      size_t index;
      uint32_t done = 0;  // prompt rows in place
      uint32_t known = 0;
      bool finished = false;
    };
    std::vector<completion> out(prompts.size());
    std::map<uint32_t, running> slots;
    std::vector<slot_id> closing;
    size_t started = 0;
    const uint32_t window = engine_->facts().window;
    const engine_limits& limits = engine_->limits();
    for (;;) {
      step_plan plan;
      plan.max_steps = max_steps;
      plan.verify_budget = verify_budget;
      plan.close = closing;
      const std::vector<slot_id> freed = std::exchange(closing, {});
      for (slot_id s : freed) slots.erase(s.value);
      for (uint32_t s = 0; s < limits.slots && started < prompts.size(); ++s) {
        // A slot closed by this plan gives its pages back with the result.
        if (slots.count(s) || std::find(freed.begin(), freed.end(), slot_id{s}) != freed.end()) continue;
        const prompt& p = prompts[started];
        const uint32_t length = p.prompt_length ? p.prompt_length : static_cast<uint32_t>(p.tokens.size());
        plan.open.push_back({slot_id{s}, p.tokens, length, p.sampling, p.stop, p.speculate, p.imported});
        const uint32_t known = static_cast<uint32_t>(p.tokens.size());
        slots[s] = {started++, p.imported.rows > 0 ? known : 0, known};
        held_[s] = p.imported.pages;
      }
      if (slots.empty() && plan.close.empty() && started == prompts.size()) break;
      uint32_t budget = limits.max_chunk;
      for (auto& [s, r] : slots) {
        const prompt& p = prompts[r.index];
        const uint32_t n = static_cast<uint32_t>(p.tokens.size());
        sequence_step step;
        step.slot = slot_id{s};
        uint32_t reach = 0;
        if (r.done < n) {
          step.position = r.done;
          step.rows = std::min({n - r.done, budget, p.chunk ? p.chunk : n});
          if (step.rows == 0) continue;
          budget -= step.rows;
          const uint32_t length = p.prompt_length ? p.prompt_length : n;
          if (p.decoder_replay) step.decoder_from = step.decoder_floor = length > window ? length - window : 0;
          step.sample = step.position + step.rows == n;
          reach = step.position + step.rows;
          r.done = reach;
        } else {
          // A page more than the step needs leaves room for drafts.
          reach = std::min(r.known + max_steps * (1 + limits.max_draft), limits.max_context);
        }
        const uint32_t wanted = (reach + window - 1) / window, have = static_cast<uint32_t>(held(slot_id{s}).size());
        if (wanted > have) step.pages = pages(slot_id{s}, wanted - have);
        plan.sequences.push_back(step);
      }
      for (const step_result& result : run(std::move(plan))) {
        TROUPE_CHECK(result.failure == errc{}, "step failed: {}", result.failure_text);
        for (slot_id s : result.closed) give_back(s);
        for (const sequence_result& q : result.sequences) {
          running& r = slots[q.slot.value];
          completion& c = out[r.index];
          c.tokens.insert(c.tokens.end(), q.tokens.begin(), q.tokens.end());
          c.logprobs.insert(c.logprobs.end(), q.logprobs.begin(), q.logprobs.end());
          c.top.insert(c.top.end(), q.top.begin(), q.top.end());
          c.drafted += q.drafted;
          c.accepted += q.accepted;
          c.steps += !q.tokens.empty();
          r.known += static_cast<uint32_t>(q.tokens.size());
          if (q.finish == finish_reason::none || r.finished) continue;
          c.finish = q.finish;
          r.finished = true;
          closing.push_back(q.slot);
        }
      }
    }
    return out;
  }

 private:
  template <class Make>
  void start(const Make& make) {
    auto made = make([this](step_result r) {
      std::lock_guard lock(mutex_);
      results_.push_back(std::move(r));
      arrived_.notify_all();
    });
    TROUPE_CHECK(made.has_value(), "engine: {}", made.error().message);
    engine_ = std::move(*made);
  }

  std::vector<std::byte> memory_;
  page_pool pool_;
  std::map<uint32_t, std::vector<page_id>> held_;
  uint64_t plan_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t split_steps_ = 0;
  std::deque<step_result> results_;
  std::unique_ptr<engine> engine_;
};

/// Token ids by the golden set's linear congruential generator: ids 3 .. vocabulary - 2.
inline std::vector<token_id> random_tokens(uint64_t seed, uint32_t count, uint32_t vocabulary) {
  std::vector<token_id> out;
  uint64_t x = seed;
  for (uint32_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    out.push_back(static_cast<token_id>(3 + (x >> 33) % (vocabulary - 4)));
  }
  return out;
}

}  // namespace troupe::kernels::testing_support
