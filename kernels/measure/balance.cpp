#include "kernels/measure/balance.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/ep/expert_table.hpp"
#include "kernels/ep/thread_group.hpp"
#include "policies/eplb.hpp"
#include "runtime/base/processor_clock.hpp"

namespace troupe::kernels::measure {
namespace {

class balance_run {
 public:
  balance_run(std::shared_ptr<const model> m, const std::vector<request>& requests, const balance_options& o)
      : model_(std::move(m)), requests_(requests), o_(o), times_(o.ranks) {}
  ~balance_run() { stop(); }

  result<std::vector<balance_window>> run() {
    if (auto ok = start(); !ok) return fail(ok.error());
    std::vector<balance_window> out;
    std::vector<std::vector<int32_t>> slots;
    const placement_status first = at(0).placement();
    for (uint32_t l = 0; l < model_->config.num_hidden_layers; ++l)
      slots.push_back(ep::slots_of(first.active->copies[l], o_.ranks));
    for (uint32_t w = 0; w < o_.windows; ++w) {
      TROUPE_TRY(balance_window row, window());
      if (w + 1 < o_.windows)
        if (auto ok = move(slots, row); !ok) return fail(ok.error());
      out.push_back(row);
    }
    return out;
  }

 private:
  struct rank_times {
    uint64_t steps = 0;
    int64_t experts = 0;
  };

  engine& at(uint32_t rank) { return runners_[rank]->get(); }

  result<void> start() {
    if (o_.ranks < 2 || requests_.empty())
      return fail(errc::invalid_argument, "balance: {} ranks, {} requests", o_.ranks, requests_.size());
    engine_limits limits{.slots = o_.slots, .max_chunk = 256, .max_context = o_.context};
    ep::thread_group_options deadline;
    deadline.deadline = std::chrono::minutes(2);  // ranks share cores
    TROUPE_TRY(auto group, ep::make_thread_group(engine_group_shape(*model_, limits, o_.ranks), deadline));
    for (uint32_t r = 0; r < o_.ranks; ++r) {
      cpu_engine_config c;
      c.weights = model_;
      c.limits = limits;
      c.group = std::move(group.ranks[r]);
      c.placement = initial_placement(*model_, o_.ranks, o_.redundant, placement_version{1});
      c.split.window = o_.split_window;
      c.clock = &thread_clock();  // the ranks share this machine's cores
      TROUPE_TRY(auto runner, engine_runner::make(std::move(c), [this, r](const step_result& s) {
                   std::lock_guard lock(mutex_);
                   ++times_[r].steps;
                   times_[r].experts += s.times.experts;
                   changed_.notify_all();
                 }));
      runners_.push_back(std::move(runner));
    }
    for (uint32_t r = 0; r < o_.ranks; ++r) threads_.emplace_back([this, r] { serve(r); });
    return {};
  }

  // Answers this rank's share of the requests, again and again.
  void serve(uint32_t rank) {
    std::vector<request> mine;
    for (size_t i = rank; i < std::max<size_t>(requests_.size(), o_.ranks); i += o_.ranks)
      mine.push_back(requests_[i % requests_.size()]);
    for (uint64_t round = 0; !stop_; ++round) {
      for (request& q : mine) q.sampling.seed += 1000003 * (round + 1);
      auto done = runners_[rank]->run(mine);
      if (done) continue;
      std::lock_guard lock(mutex_);
      if (!failure_ && !stop_) failure_ = done.error();
      changed_.notify_all();
      return;
    }
  }

  // Waits for what the engines bring about.
  template <class F>
  result<void> until(F f) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (failure_) return fail(*failure_);
      lock.unlock();
      const bool done = f();
      lock.lock();
      if (done) return {};
      changed_.wait_for(lock, std::chrono::milliseconds(2));
    }
  }

  result<balance_window> window() {
    {
      std::lock_guard lock(mutex_);
      times_.assign(o_.ranks, {});
    }
    for (uint32_t r = 0; r < o_.ranks; ++r) (void)at(r).take_expert_window(0);
    const nanoseconds begin = steady_clock().now();
    if (auto ok = until([&] { return at(0).take_expert_window(UINT64_MAX).steps >= o_.interval; }); !ok)
      return fail(ok.error());
    const nanoseconds end = steady_clock().now();
    balance_window out;
    const uint32_t layers = model_->config.num_hidden_layers;
    weights_.assign(layers, std::vector<double>(model_->config.n_routed_experts, 0.0));
    std::vector<uint64_t> most(layers, 0), all(layers, 0);
    for (uint32_t r = 0; r < o_.ranks; ++r) {
      const expert_window w = at(r).take_expert_window(0);
      if (r == 0) out.steps = w.steps;
      out.placement = w.placement;
      for (uint32_t l = 0; l < layers && l < w.loads.size(); ++l) {
        for (size_t e = 0; e < w.loads[l].size(); ++e) weights_[l][e] += static_cast<double>(w.loads[l][e]);
        most[l] = std::max(most[l], w.received[l]);
        all[l] += w.received[l];
      }
    }
    uint32_t used = 0;
    for (uint32_t l = 0; l < layers; ++l) {
      out.rows += all[l];
      out.layer_lb.push_back(all[l] ? static_cast<double>(most[l]) * o_.ranks / static_cast<double>(all[l]) : 1);
      if (all[l] == 0) continue;
      const double lb = out.layer_lb.back();
      out.lb += lb;
      out.lb_worst = std::max(out.lb_worst, lb);
      ++used;
    }
    if (used) out.lb /= used;
    if (out.steps) out.step_us = static_cast<double>((end - begin).count()) * 1e-3 / static_cast<double>(out.steps);
    std::lock_guard lock(mutex_);
    for (const rank_times& t : times_) {
      if (t.steps == 0) continue;
      const auto n = static_cast<double>(t.steps);
      out.busiest_expert_us = std::max(out.busiest_expert_us, static_cast<double>(t.experts) * 1e-3 / n);
      out.mean_expert_us += static_cast<double>(t.experts) * 1e-3 / n / o_.ranks;
    }
    return out;
  }

  result<void> move(std::vector<std::vector<int32_t>>& slots, balance_window& row) {
    policies::eplb_input in;
    in.weights = weights_;
    in.current = slots;
    in.slots = static_cast<uint32_t>(slots[0].size());
    in.gpus = o_.ranks;
    in.min_gain = o_.min_gain;
    TROUPE_TRY(auto plan, policies::plan_eplb(in));
    for (size_t l = 0; l < slots.size(); ++l) {
      row.plan_before += policies::eplb_lb(weights_[l], slots[l], o_.ranks) / static_cast<double>(slots.size());
      row.plan_after += plan.lb[l] / static_cast<double>(slots.size());
    }
    row.layer_plan = plan.lb;
    row.moved = plan.moved;
    if (plan.moved == 0) return {};
    placement_move m;
    m.from = at(0).placement().active->version;
    m.to.version = placement_version{m.from.value + 1};
    m.loads_per_step = o_.loads_per_step;
    for (const auto& layer : plan.phy2log) {
      TROUPE_TRY(auto copies, ep::copies_of(layer, o_.ranks, model_->config.n_routed_experts));
      m.to.copies.push_back(std::move(copies));
    }
    const uint64_t before = at(0).take_expert_window(UINT64_MAX).steps;
    for (uint32_t r = 0; r < o_.ranks; ++r)
      if (auto ok = at(r).stage(m); !ok) return ok;
    for (uint32_t r = 0; r < o_.ranks; ++r)
      if (auto ok = until([&] { return at(r).placement().phase == move_phase::staged; }); !ok) return ok;
    for (uint32_t r = 0; r < o_.ranks; ++r)
      if (auto ok = at(r).flip(m.to.version); !ok) return ok;
    for (uint32_t r = 0; r < o_.ranks; ++r)
      if (auto ok = until([&] {
            const auto s = at(r).placement();
            return s.active && s.active->version == m.to.version;
          });
          !ok)
        return ok;
    row.move_steps = at(0).take_expert_window(UINT64_MAX).steps - before;
    slots = plan.phy2log;
    return {};
  }

  void stop() {
    stop_ = true;
    for (auto& t : threads_) t.join();
    // All leave together: the one that goes first waits for the others' next step.
    std::vector<std::thread> ends;
    for (auto& r : runners_) ends.emplace_back([&r] { r->get().stop(); });
    for (auto& t : ends) t.join();
  }

  const std::shared_ptr<const model> model_;
  const std::vector<request>& requests_;
  const balance_options o_;
  std::vector<std::vector<double>> weights_;  // of the last window
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<rank_times> times_;  // protected by mutex_
  std::optional<error> failure_;   // protected by mutex_
  std::vector<std::unique_ptr<engine_runner>> runners_;
  std::vector<std::thread> threads_;
};

}  // namespace

result<std::vector<balance_window>> measure_balance(std::shared_ptr<const model> weights,
                                                    const std::vector<request>& requests,
                                                    const balance_options& options) {
  return balance_run(std::move(weights), requests, options).run();
}

}  // namespace troupe::kernels::measure
