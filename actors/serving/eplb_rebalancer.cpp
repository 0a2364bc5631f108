#include "actors/serving/eplb_rebalancer.hpp"

#include <algorithm>
#include <memory>

#include "actors/protocol/front.hpp"
#include "actors/protocol/messages.hpp"
#include "actors/storage/actor_executor.hpp"
#include "policies/eplb.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum eplb_timer : uint8_t { eplb_poll_timer = 1, eplb_planned = 2 };
constexpr auto eplb_answer_in = std::chrono::seconds(2);  // to a question that needs no work

enum class eplb_phase : uint8_t { idle, resolving, reading, counting, collecting, planning, staging, flipping };

const char* text_of(eplb_phase p) {
  constexpr const char* names[] = {"idle",       "resolving", "reading", "counting",
                                   "collecting", "planning",  "staging", "flipping"};
  return names[static_cast<size_t>(p)];
}

class eplb_rebalancer_state {
 public:
  using interface = eplb_rebalancer_actor;
  static inline const char* name = "eplb_rebalancer";
  explicit eplb_rebalancer_state(interface::pointer self)
      : self_(self), links_(self), home_(std::make_shared<actor_executor>(self, eplb_planned)) {}
  ~eplb_rebalancer_state() { home_->close(); }

  interface::behavior_type make_behavior(role_assignment assignment, node_identity identity, directory_actor directory,
                                         expert_shard_actor own, eplb_options options) {
    assignment_ = std::move(assignment);
    identity_ = identity;
    directory_ = std::move(directory);
    own_ = std::move(own);
    options_ = std::move(options);
    out_.group = assignment_.group;
    out_.interval = options_.interval;
    return {
        [this](const cluster_view& m) { follow(m); },
        [this](const eplb_query&) {
          out_.phase = text_of(phase_);
          return out_;
        },
        [this](const tick& t) {
          if (home_->run(t) || !poll_timer_.fired(t)) return;
          poll_timer_.arm(self_, options_.poll);
          look();
        },
    };
  }

 private:
  // -- the group ------------------------------------------------------------------------------------------------

  bool is_me(const group_member& m) const {
    return m.node == identity_.node && m.inc == identity_.inc && m.rank == assignment_.index;
  }
  std::string seat(size_t i) const { return fmt::format("{}/{}", view_.group, view_.members[i].rank); }

  void follow(const cluster_view& view) {
    fronts_.clear();
    for (const auto& n : view.nodes)
      for (const auto& r : n.roles)
        if (r.assignment.what == role::front) fronts_.push_back({n.node, n.inc, r.assignment.seat() + "/entrypoint"});
    for (const auto& g : view.groups)
      if (g.group == assignment_.group && g.epoch > view_.epoch) enter(g);
  }

  void enter(const group_view& g) {
    if (phase_ == eplb_phase::staging || phase_ == eplb_phase::flipping)
      give_up(fmt::format("the group has a new view, {}", g.epoch.value), false);
    for (const auto& s : shards_) links_.unwatch(s);
    view_ = g;
    ++turn_;
    shards_.assign(view_.members.size(), {});
    last_tried_ = {};
    slots_.clear();
    out_.leads = view_.members.size() > 1 && options_.interval > 0 && is_me(view_.members.front());
    out_.view = view_.epoch;
    out_.ranks = static_cast<uint32_t>(view_.members.size());
    out_.placement = {};
    out_.window = 0;
    phase_ = out_.leads ? eplb_phase::resolving : eplb_phase::idle;
    poll_timer_.stop();
    if (out_.leads) poll_timer_.arm(self_, options_.poll);
  }

  void look() {
    if (phase_ == eplb_phase::resolving) resolve();
    if (phase_ == eplb_phase::reading) read();
    if (phase_ == eplb_phase::counting) count();
  }

  // Callbacks of what was asked before the last change of plans do nothing.
  template <class F>
  auto now_only(F f) {
    return [this, turn = turn_, f = std::move(f)](const auto&... xs) mutable {
      if (turn == turn_) f(xs...);
    };
  }

  void resolve() {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const auto& m = view_.members[i];
      if (shards_[i]) continue;
      if (is_me(m)) {
        shards_[i] = own_;
        continue;
      }
      links_.ask(self_, directory_, eplb_answer_in, resolve_request{{m.node, m.inc, seat(i) + "/expert_shard"}},
                 now_only([this, i](const resolve_reply& r) { resolved(i, r); }),
                 [](const error&) {});  // asked again at the next look
    }
    if (std::all_of(shards_.begin(), shards_.end(), [](const auto& s) { return s != nullptr; }))
      phase_ = eplb_phase::reading;
  }

  void resolved(size_t i, const resolve_reply& r) {
    if (!r.outcome.ok() || !r.handle || shards_[i]) return;
    shards_[i] = caf::actor_cast<expert_shard_actor>(r.handle);
    links_.watch(shards_[i], [this, i, epoch = view_.epoch](const error& why) {
      if (epoch != view_.epoch) return;
      // Its handle is dead for good; the view will say so, or the directory gives another. With it the move is over.
      shards_[i] = nullptr;
      const auto text = fmt::format("{} is gone: {}", seat(i), why.message);
      if (phase_ == eplb_phase::staging)
        give_up(text, true);
      else
        trouble(text);
      phase_ = eplb_phase::resolving;
    });
  }

  // Asks every shard; `all` gets the answers in order when all are there, `bad` the first that fails.
  template <class Answer, class Request>
  void ask_all(const Request& request, nanoseconds timeout, std::function<void(std::vector<Answer>)> all,
               std::function<void(size_t, status)> bad) {
    struct gathering {
      std::vector<Answer> answers;
      size_t missing = 0;
      bool failed = false;
    };
    auto g = std::make_shared<gathering>();
    g->answers.resize(shards_.size());
    g->missing = shards_.size();
    ++turn_;
    auto failed = [g, bad](size_t i, status why) {
      if (std::exchange(g->failed, true)) return;
      bad(i, std::move(why));
    };
    for (size_t i = 0; i < shards_.size(); ++i)
      links_.ask(self_, shards_[i], timeout, request, now_only([g, i, all, failed](const Answer& a) {
                   if (g->failed) return;
                   if (!a.outcome.ok()) return failed(i, a.outcome);
                   g->answers[i] = a;
                   if (--g->missing == 0) all(std::move(g->answers));
                 }),
                 now_only([i, failed](const error& e) { failed(i, to_status(e)); }));
  }

  // The front processes show it among their metrics. Seldom: once a window or move.
  void publish() {
    out_.phase = text_of(phase_);
    for (const auto& f : fronts_)
      links_.ask(
          self_, directory_, eplb_answer_in, resolve_request{f},
          [this](const resolve_reply& r) {
            if (r.outcome.ok()) tell(self_, caf::actor_cast<entrypoint_actor>(r.handle), out_);
          },
          [](const error&) {});
  }

  // -- looking --------------------------------------------------------------------------------------------------

  // What is in force: at the start, and after any trouble.
  void read() {
    links_.ask(self_, own_, eplb_answer_in, placement_query{view_.epoch}, now_only([this](const placement_report& r) {
                 if (phase_ != eplb_phase::reading) return;
                 if (!r.outcome.ok() || r.slots.empty()) {
                   out_.text = r.outcome.text;
                   return;
                 }
                 const bool done = r.placement == last_tried_ && r.placement != out_.placement;
                 out_.placement = r.placement;
                 if (done) moved();
                 slots_ = r.slots;
                 phase_ = eplb_phase::counting;
               }),
               [](const error&) {});
  }

  void count() {
    links_.ask(self_, own_, eplb_answer_in, load_query{view_.epoch, UINT64_MAX}, now_only([this](const load_report& r) {
                 if (phase_ != eplb_phase::counting) return;
                 if (!r.outcome.ok()) return trouble(r.outcome.text);
                 if (r.placement != out_.placement) return trouble("another placement is in force than was read");
                 out_.window = r.steps;
                 if (r.steps >= options_.interval) collect();
               }),
               [](const error&) {});
  }

  void collect() {
    phase_ = eplb_phase::collecting;
    ask_all<load_report>(
        load_query{view_.epoch, 0}, eplb_answer_in, [this](std::vector<load_report> r) { decide(r); },
        [this](size_t i, const status& why) { trouble(fmt::format("{}: {}", seat(i), why.text)); });
  }

  void decide(const std::vector<load_report>& reports) {
    out_.window = 0;
    ++out_.looks;
    policies::eplb_input in;
    in.current = slots_;
    in.slots = static_cast<uint32_t>(slots_.front().size());
    in.gpus = static_cast<uint32_t>(reports.size());
    in.max_moves = options_.max_moves;
    in.min_gain = options_.min_gain;
    in.weights.resize(slots_.size());
    bool whole = true;
    for (const auto& r : reports) {
      if (r.placement != out_.placement) return trouble("the ranks do not have the same placement in force");
      in.max_moves = std::min(in.max_moves, r.free_slots);  // of the rank that has the least room
      // Rows that came count since the last flip, which was soon after the window began.
      whole = whole && r.received.size() >= slots_.size() && 2 * r.received_steps >= r.steps;
      for (size_t l = 0; l < slots_.size() && l < r.loads.size(); ++l) {
        auto& w = in.weights[l];
        w.resize(std::max(w.size(), r.loads[l].size()));
        for (size_t e = 0; e < r.loads[l].size(); ++e) w[e] += static_cast<double>(r.loads[l][e]);
      }
    }
    if (whole) out_.lb_measured = measured_lb(reports);
    if (!options_.planner) return planned(in, policies::plan_eplb(in));
    phase_ = eplb_phase::planning;
    auto shared = std::make_shared<const policies::eplb_input>(std::move(in));
    std::function<void(const result<policies::eplb_plan>&)> done =
        now_only([this, shared](const result<policies::eplb_plan>& plan) { planned(*shared, plan); });
    const bool taken = options_.planner->submit([shared, done, home = home_] {
      auto plan = std::make_shared<const result<policies::eplb_plan>>(policies::plan_eplb(*shared));
      home->post([done, plan] { done(*plan); });
    });
    if (!taken) trouble("too many plans are being made");
  }

  void planned(const policies::eplb_input& in, const result<policies::eplb_plan>& plan) {
    if (!plan) return trouble(plan.error().message);
    out_.lb_before = out_.lb_after = 0;
    for (size_t l = 0; l < slots_.size(); ++l) {
      out_.lb_before += policies::eplb_lb(in.weights[l], slots_[l], in.gpus) / static_cast<double>(slots_.size());
      out_.lb_after += plan->lb[l] / static_cast<double>(slots_.size());
    }
    out_.text = plan->reason;
    if (plan->moved == 0) {
      log::info("{}: experts stay where they are: lb {:.3f}; {}", view_.group, out_.lb_before, plan->reason);
      phase_ = eplb_phase::counting;
      return publish();
    }
    stage(plan->phy2log);
  }

  // Mean over the layers of busiest over mean rank, in rows that came.
  double measured_lb(const std::vector<load_report>& reports) const {
    double sum = 0;
    size_t layers = 0;
    for (size_t l = 0; l < slots_.size(); ++l) {
      uint64_t most = 0, all = 0;
      for (const auto& r : reports) {
        most = std::max(most, r.received[l]);
        all += r.received[l];
      }
      if (all == 0) continue;
      sum += static_cast<double>(most) * static_cast<double>(reports.size()) / static_cast<double>(all);
      ++layers;
    }
    return layers ? sum / static_cast<double>(layers) : 0;
  }

  // -- moving ---------------------------------------------------------------------------------------------------

  void stage(std::vector<std::vector<int32_t>> slots) {
    phase_ = eplb_phase::staging;
    last_tried_ = placement_version{std::max(last_tried_.value, out_.placement.value) + 1};
    log::info("{}: placement {}: lb {:.3f} -> {:.3f}; {}", view_.group, last_tried_.value, out_.lb_before,
              out_.lb_after, out_.text);
    ask_all<placement_reply>(
        stage_placement{view_.epoch, out_.placement, last_tried_, std::move(slots), options_.loads_per_step},
        options_.move_timeout,
        [this](const std::vector<placement_reply>& r) {
          loading_ = 0;
          for (const auto& one : r) loading_ += one.loaded;
          flip();
        },
        [this](size_t i, const status& why) {
          give_up(why.code == errc::timeout ? fmt::format("{} has not loaded its experts within {} s", seat(i),
                                                          options_.move_timeout / std::chrono::seconds(1))
                                            : fmt::format("{}: {}", seat(i), why.text),
                  true);
        });
  }

  void flip() {
    phase_ = eplb_phase::flipping;
    ask_all<placement_reply>(
        flip_placement{view_.epoch, last_tried_}, options_.move_timeout,
        [this](const std::vector<placement_reply>&) {
          // What is in force is read again, as after a start.
          phase_ = eplb_phase::reading;
          read();
        },
        [this](size_t i, const status& why) {
          // Too late to give it up: the step header takes it to all ranks, or the group fails. Reading will show.
          trouble(why.code == errc::timeout
                      ? fmt::format("{} has not taken placement {} within {} s", seat(i), last_tried_.value,
                                    options_.move_timeout / std::chrono::seconds(1))
                      : fmt::format("placement {} is not confirmed by {}: {}", last_tried_.value, seat(i), why.text));
          publish();
        });
  }

  void moved() {
    ++out_.moves;
    out_.loaded += std::exchange(loading_, 0);
    log::info("{}: placement {} is in force", view_.group, last_tried_.value);
    publish();
  }

  // Only before any rank was told to flip, or when the group has changed.
  void give_up(const std::string& why, bool tell) {
    ++out_.abandoned;
    loading_ = 0;
    if (tell)
      for (const auto& s : shards_)
        if (s)
          links_.ask(
              self_, s, eplb_answer_in, drop_placement{view_.epoch, last_tried_}, [](const placement_reply&) {},
              [](const error&) {});  // a rank that does not hear it replaces the move by the next one
    trouble(fmt::format("placement {} is given up: {}", last_tried_.value, why));
    publish();
  }

  void trouble(std::string why) {
    log::warn("{}: {}", view_.group, why);
    out_.text = std::move(why);
    ++turn_;
    if (phase_ != eplb_phase::idle && phase_ != eplb_phase::resolving) phase_ = eplb_phase::reading;
  }

  interface::pointer self_;
  peer_links links_;
  std::shared_ptr<actor_executor> home_;  // where plans come back to
  role_assignment assignment_;
  node_identity identity_;
  directory_actor directory_;
  expert_shard_actor own_;
  eplb_options options_;
  eplb_phase phase_ = eplb_phase::idle;
  group_view view_;
  std::vector<actor_key> fronts_;
  std::vector<expert_shard_actor> shards_;  // per member of the view
  uint64_t turn_ = 0;
  std::vector<std::vector<int32_t>> slots_;  // in force
  placement_version last_tried_;
  uint64_t loading_ = 0;  // experts of the move under way
  eplb_report out_;
  timer poll_timer_{eplb_poll_timer};
};

}  // namespace

eplb_rebalancer_actor spawn_eplb_rebalancer(caf::local_actor* parent, const role_assignment& assignment,
                                            const node_identity& identity, directory_actor directory,
                                            expert_shard_actor own, eplb_options options) {
  return spawn<eplb_rebalancer_state>(parent, assignment, identity, std::move(directory), std::move(own),
                                      std::move(options));
}

}  // namespace troupe::actors
