#include "kernels/engine/cost_group.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "kernels/engine/cost_price.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

class group_impl;

// What the seat of a rank knows of its group.
class seat_impl final : public cost_seat {
 public:
  seat_impl(std::shared_ptr<group_impl> group, uint32_t rank, uint32_t ranks) : group_(std::move(group)), rank_(rank) {
    shape_.ranks = ranks;
  }
  ~seat_impl() override;

  const ep::group_shape& shape() const override { return shape_; }
  uint32_t rank() const override { return rank_; }
  result<ep::step_header> begin_step(const ep::step_header&) override { return no(); }
  void wake() override;
  void end() override;
  result<void> dispatch_send(uint32_t, uint32_t, std::span<const float>, std::span<const ep::route>,
                             uint32_t) override {
    return no();
  }
  result<ep::received> dispatch_wait(uint32_t) override { return no(); }
  result<void> combine_send(uint32_t, uint32_t, std::span<const float>, std::span<float>,
                            std::span<const uint32_t>) override {
    return no();
  }
  result<void> combine_wait(uint32_t) override { return no(); }
  std::span<const uint32_t> notes(uint32_t, uint32_t) const override { return {}; }
  std::vector<uint32_t> suspects() const override { return {}; }
  void attach(std::weak_ptr<cost_member> member) override;
  void leave() override;
  const cost_group& of() const override;
  std::shared_ptr<const ep::placement> intern(ep::placement placement) override;

 private:
  static tl::unexpected<error> no() { return fail(errc::unsupported, "a cost group has no exchanges"); }
  const std::shared_ptr<group_impl> group_;
  const uint32_t rank_;
  ep::group_shape shape_;
};

class group_impl final : public cost_group, public std::enable_shared_from_this<group_impl> {
 public:
  group_impl(cost_group_options o, cost_price price)
      : timer_(std::move(o.timer)), deadline_(o.deadline), price_(std::move(price)), ranks_(o.ranks), taken_(o.ranks) {
    work_.resize(o.ranks);
  }

  result<std::unique_ptr<ep::group>> seat(uint32_t rank) override {
    std::lock_guard lock(mutex_);
    if (rank >= ranks_.size() || taken_[rank])
      return fail(errc::invalid_argument, "seat {} of a group of {} is not free", rank, ranks_.size());
    taken_[rank] = true;
    return std::make_unique<seat_impl>(shared_from_this(), rank, static_cast<uint32_t>(ranks_.size()));
  }

  void kill(uint32_t rank, nanoseconds noticed) override {
    later(nanoseconds(0), [this, rank, noticed] {
      member& m = ranks_.at(rank);
      m.member.reset();
      m.there = false;
      m.gone = m.came = true;
      if (noticed < nanoseconds::max())
        later(noticed, [this, rank] {
          if (at_ != phase::over) lose({rank}, fmt::format("the connection to rank {} ended", rank));
        });
    });
  }
  void freeze(uint32_t rank) override {
    later(nanoseconds(0), [this, rank] { ranks_.at(rank).frozen = true; });
  }
  void thaw(uint32_t rank) override {
    later(nanoseconds(0), [this, rank] {
      member& m = ranks_.at(rank);
      if (!std::exchange(m.frozen, false)) return;
      if (at_ == phase::over) return missed(rank);
      go_on();
    });
  }
  void slow(uint32_t rank, uint32_t permille) override {
    later(nanoseconds(0), [this, rank, permille] { ranks_.at(rank).permille = std::max(permille, 1u); });
  }

  cost_group_stats stats() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  // From the seats.
  void attach(uint32_t rank, std::weak_ptr<cost_member> who) {
    later(nanoseconds(0), [this, rank, who = std::move(who)] {
      member& m = ranks_[rank];
      if (m.gone) return;
      m.member = who;
      m.came = m.there = true;
      if (at_ == phase::over) return missed(rank);
      go_on();
    });
  }
  void wake() {
    if (woken_.exchange(true)) return;
    later(nanoseconds(0), [this] {
      woken_ = false;
      begin();
    });
  }
  void leave(uint32_t rank) {
    later(nanoseconds(0), [this, rank] {
      ranks_[rank].left = true;
      ranks_[rank].member.reset();
      go_on();
    });
  }
  // The seat was given up without a word: nobody will come.
  void abandon(uint32_t rank) {
    later(nanoseconds(0), [this, rank] {
      ranks_[rank].there = false;
      ranks_[rank].member.reset();
    });
  }
  std::shared_ptr<const ep::placement> intern(ep::placement p) {
    std::lock_guard lock(mutex_);
    for (auto& weak : interned_)
      if (auto known = weak.lock(); known && *known == p) return known;
    auto made = std::make_shared<const ep::placement>(std::move(p));
    interned_[0] = std::exchange(interned_[1], made);
    return made;
  }

 private:
  // parked: no entry of the timer belongs to the group. waiting: a rank does not show up; until the deadline.
  enum class phase : uint8_t { parked, waiting, running, over };
  struct member {
    std::weak_ptr<cost_member> member;
    bool came = false;  // at least once
    bool there = false, gone = false, frozen = false, left = false;
    uint32_t permille = 1000;
    bool shows_up() const { return left || (there && !frozen); }
  };

  template <class F>
  void later(nanoseconds after, F f) {
    timer_->schedule(after, [keep = weak_from_this(), f = std::move(f)]() mutable {
      if (auto self = keep.lock()) f();
    });
  }

  // What stood still because somebody was missing, or because there was nothing to do.
  void go_on() {
    if (at_ == phase::waiting) {
      at_ = ended_ ? phase::running : phase::parked;
      ended_ ? end() : begin();
    } else {
      begin();
    }
  }

  // True if everybody is there; otherwise waits, and ends the group at the deadline.
  bool all_there() {
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const member& m) { return m.shows_up(); });
    if (all) return true;
    at_ = phase::waiting;
    // Nobody is there to notice that the others are not: who comes back goes on with the step.
    if (std::none_of(ranks_.begin(), ranks_.end(), [](const member& m) { return m.there && !m.frozen && !m.left; }))
      return false;
    later(deadline_, [this, ticket = ++ticket_] {
      if (at_ != phase::waiting || ticket != ticket_) return;
      std::vector<uint32_t> missing;
      for (uint32_t r = 0; r < ranks_.size(); ++r)
        if (!ranks_[r].shows_up()) missing.push_back(r);
      const std::string who = fmt::format("{}", fmt::join(missing, ", "));
      lose(std::move(missing), fmt::format("rank {} did not show up within {} ms", who, deadline_.count() / 1'000'000));
    });
    return false;
  }

  void begin() {
    if (at_ != phase::parked) return;
    // Before all have come once there is nobody to wait for.
    if (std::any_of(ranks_.begin(), ranks_.end(), [](const member& m) { return !m.came; })) return;
    ended_ = false;
    if (!all_there()) return;
    cost_step step;
    step.ranks = static_cast<uint32_t>(ranks_.size());
    for (const member& m : ranks_) {
      const auto rank = m.member.lock();
      if (m.left || !rank || !rank->sits_in(*this)) return finish({}, {});
    }
    uint32_t slowest = 0;
    std::shared_ptr<const ep::placement> places;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      work_[r] = {};
      auto m = ranks_[r].member.lock();
      if (!m) return finish({}, {});
      ep::step_header mine;
      m->begin_step(mine, work_[r]);
      merge(step.agreed, mine);
      if (!places) places = m->placement_in_force();
      slowest = std::max(slowest, ranks_[r].permille);
      step.rows += work_[r].rows;
      step.decoder_rows += work_[r].decoder_rows;
      step.drafting += work_[r].drafting;
    }
    if (!step.agreed.has_work && !step.agreed.moving && step.agreed.flip_step == ep::step_header::no_flip) return;
    for (const member& r : ranks_)
      if (auto m = r.member.lock())
        if (auto ok = m->run_step(step.agreed); !ok) return finish(ok, {});
    if (!step.agreed.has_work) {
      if (step.agreed.moving) later(load_interval, [this] { begin(); });
      return;
    }
    step.took = price_(work_, step.ranks, places, steps_, step.agreed.draft);
    step.took.total_ns = step.took.total_ns / 1000 * slowest + step.took.total_ns % 1000 * slowest / 1000;
    step.began = timer_->now();
    step.use = price_.use();
    at_ = phase::running;
    running_ = std::move(step);
    later(nanoseconds(static_cast<int64_t>(running_.took.total_ns)), [this] {
      if (at_ == phase::running) end();
    });
  }

  void end() {
    ended_ = true;
    if (!all_there()) return;
    ended_ = false;
    ++steps_;
    {
      std::lock_guard lock(mutex_);
      ++stats_.steps;
      stats_.busy += timer_->now() - running_.began;
      stats_.imbalance_permille = price_.imbalance_permille();
    }
    at_ = phase::parked;
    for (const member& r : ranks_)
      if (auto m = r.member.lock()) m->end_step(running_);
    begin();
  }

  static void merge(ep::step_header& all, const ep::step_header& mine) {
    all.has_work |= mine.has_work;
    all.encoder |= mine.encoder;
    all.decoder |= mine.decoder;
    all.draft |= mine.draft;
    all.moving |= mine.moving;
    all.micro_batches = std::max(all.micro_batches, mine.micro_batches);
    all.chunk_budget_ns = std::min(all.chunk_budget_ns, mine.chunk_budget_ns);
    if (mine.flip_step < all.flip_step) all.flip_version = {};
    if (mine.flip_step > all.flip_step || mine.flip_step == ep::step_header::no_flip) return;
    all.flip_step = mine.flip_step;
    all.flip_version = std::max(all.flip_version, mine.flip_version);
  }

  void lose(std::vector<uint32_t> suspects, const std::string& why) {
    finish(fail(errc::peer_lost, "step {}: {}", steps_ + 1, why), std::move(suspects));
  }

  void finish(const result<void>& why, std::vector<uint32_t> suspects) {
    at_ = phase::over;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].frozen || std::count(suspects.begin(), suspects.end(), r)) continue;
      const auto m = ranks_[r].member.lock();
      ranks_[r].member.reset();
      if (m && m->sits_in(*this)) m->group_over(why, suspects);
    }
  }

  // A rank that comes when its group has ended without it: to it, all others are gone.
  void missed(uint32_t rank) {
    auto m = ranks_[rank].member.lock();
    if (!m || !m->sits_in(*this)) return;
    ranks_[rank].member.reset();
    std::vector<uint32_t> others;
    for (uint32_t r = 0; r < ranks_.size(); ++r)
      if (r != rank) others.push_back(r);
    m->group_over(fail(errc::peer_lost, "the group has ended without rank {}", rank), others);
  }

  const std::shared_ptr<step_timer> timer_;
  const nanoseconds deadline_;

  // Of the timer.
  cost_price price_;
  std::vector<member> ranks_;
  std::vector<policies::step_work> work_;
  phase at_ = phase::parked;
  bool ended_ = false;  // the running step is over, but for who is missing
  uint64_t ticket_ = 0, steps_ = 0;
  cost_step running_;

  std::atomic<bool> woken_{false};
  mutable std::mutex mutex_;  // protects what follows
  std::vector<bool> taken_;
  cost_group_stats stats_;
  std::array<std::weak_ptr<const ep::placement>, 2> interned_;  // the one in force and the next, as a rule
};

seat_impl::~seat_impl() { group_->abandon(rank_); }
void seat_impl::wake() { group_->wake(); }
void seat_impl::end() { group_->abandon(rank_); }
void seat_impl::attach(std::weak_ptr<cost_member> member) { group_->attach(rank_, std::move(member)); }
void seat_impl::leave() { group_->leave(rank_); }
const cost_group& seat_impl::of() const { return *group_; }
std::shared_ptr<const ep::placement> seat_impl::intern(ep::placement placement) {
  return group_->intern(std::move(placement));
}

}  // namespace

result<std::shared_ptr<cost_group>> cost_group::make(cost_group_options o) {
  if (o.ranks == 0 || !o.timer || o.deadline <= nanoseconds(0))
    return fail(errc::invalid_argument, "cost group: {} ranks, a deadline of {} ns, timer {}", o.ranks,
                o.deadline.count(), o.timer != nullptr);
  TROUPE_TRY(cost_price price, cost_price::make(o.model, o.fabric, o.experts, o.seed));
  return std::shared_ptr<cost_group>(std::make_shared<group_impl>(std::move(o), std::move(price)));
}

}  // namespace troupe::kernels
