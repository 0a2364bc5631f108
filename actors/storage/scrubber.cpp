#include "actors/storage/scrubber.hpp"

#include <atomic>
#include <mutex>
#include <utility>

#include "actors/protocol/messages.hpp"
#include "actors/storage/actor_executor.hpp"
#include "kv/store/catch_up.hpp"
#include "kv/store/scrub.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

enum scrubber_timer : uint8_t { scrubber_tick = 1, reclaim_timer = 2, scrub_timer = 3 };
constexpr nanoseconds members_wait = std::chrono::seconds(10);

// A run as the client's actor, where it happens, and this one see it.
struct scrub_run {
  std::mutex mutex;
  kv::scrub_report report;  // protected by mutex
  std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
};

class scrubber_state {
 public:
  using interface = scrubber_actor;
  static inline const char* name = "scrubber";
  explicit scrubber_state(interface::pointer self) : self_(self) {}
  ~scrubber_state() {
    if (run_) *run_->stop = true;
    if (home_) home_->close();
  }

  interface::behavior_type make_behavior(scrubber_options options) {
    options_ = std::move(options);
    options_.reclaim.only = options_.owner;
    home_ = std::make_shared<actor_executor>(self_, scrubber_tick);
    not_before_ = now(self_) + 2 * options_.lease;
    reclaim_.arm(self_, options_.reclaim_every);
    if (options_.scrub_every > nanoseconds{0}) scrub_.arm(self_, options_.scrub_every);
    catch_up();
    return {
        [this](const kv_scrub& m) {
          if (running_) {
            auto s = state();
            s.outcome = {errc::unavailable, "a scrub is under way already"};
            return s;
          }
          start(m, 0);
          return state();
        },
        [this](const kv_scrub_query& m) {
          auto s = state();
          if (m.run != 0 && m.run != number_) {
            s.outcome = {errc::not_found, fmt::format("run {} is not known", m.run)};
            return s;
          }
          if (m.stop && run_) *run_->stop = true;
          return s;
        },
        [this](const cluster_view& v) {
          const auto epoch = storage_epoch_of(v);
          if (epoch <= epoch_) return;
          epoch_ = epoch;
          not_before_ = now(self_) + 2 * options_.lease;
          if (options_.scrub_every > nanoseconds{0}) scrub_.arm(self_, options_.repair_after);
        },
        [this](const tick& t) {
          if (home_->run(t)) return;
          if (reclaim_.fired(t)) reclaim();
          if (scrub_.fired(t)) {
            if (!running_) start(kv_scrub{true, false, false, 3600}, options_.bytes_per_s);
            scrub_.arm(self_, options_.scrub_every);
          }
        },
    };
  }

 private:
  kv_scrub_state state() {
    kv_scrub_state s;
    s.run = number_;
    s.running = running_;
    s.reclaimed = reclaimed_;
    s.expired = before_.expired;
    s.evicted = before_.evicted;
    s.reclaimed_bytes = before_.bytes;
    if (run_) {
      std::lock_guard lock(run_->mutex);
      s.report = run_->report;
    }
    if (failure_) s.outcome = to_status(*failure_);
    return s;
  }

  void start(const kv_scrub& m, uint64_t bytes_per_s) {
    ++number_;
    running_ = true;
    repairing_ = m.repair;
    failure_.reset();
    before_ = {};
    run_ = std::make_shared<scrub_run>();
    kv::scrub_options o;
    o.repair = m.repair;
    o.restore = m.restore || options_.index_lost;
    o.drop_lost = m.drop_lost;
    o.orphan_grace_s = m.grace_s;
    o.primary = options_.owner;
    o.bytes_per_s = bytes_per_s;
    o.stop = run_->stop;
    o.progress = [run = run_](const kv::scrub_report& r) {
      std::lock_guard lock(run->mutex);
      run->report = r;
    };
    // In the client's actor; what it finds comes back to this one.
    auto scrub = [this, home = home_, run = run_, o, wall = options_.wall](store_state& s) {
      // All targets may take shards: one that comes back meanwhile is not being drained.
      kv::members who = s.client->who();
      who.placing.clear();
      for (const auto& [id, t] : who.targets) who.placing.push_back({id.value, (id.value - 1) / s.disks + 1, 1});
      kv::scrub(std::move(who), o, *s.home, *wall, [this, home, run](result<kv::scrub_report> r) {
        if (r) {
          std::lock_guard lock(run->mutex);
          run->report = *r;
        }
        home->post([this, failed = r ? std::optional<error>{} : r.error()] { ended(failed); });
      });
    };
    options_.session->when_ready(
        members_wait, [this, home = home_, scrub, repair = m.repair, options = options_.reclaim,
                       may = now(self_) >= not_before_](result<void> ready, store_state& s) {
          if (!ready || !s.client)
            return home->post(
                [this, e = ready ? error{errc::unavailable, "no storage node answers"} : ready.error()] { ended(e); });
          if (!repair || !may) return scrub(s);
          kv::reclaim_expired(s.client->who(), options, *s.home, [this, home, scrub, &s](result<kv::reclaim_report> r) {
            if (r) home->post([this, r = *r] { gave_back(r); });
            scrub(s);
          });
        });
  }

  void ended(const std::optional<error>& failed) {
    running_ = false;
    failure_ = failed;
    if (failed) log::warn("scrub: {}", failed->message);
    if (failed || !options_.index_lost || !repairing_) return;
    std::lock_guard lock(run_->mutex);
    if (!run_->report.repaired()) return;
    log::info("scrub: the index is complete again, {} extents came back", run_->report.restored);
    options_.index_lost = false;
    if (options_.index_complete) options_.index_complete();
  }

  void gave_back(const kv::reclaim_report& r) {
    before_ = r;
    reclaimed_ += r.expired + r.evicted;
  }

  // Records that this owner lacks, because it was away.
  void catch_up() {
    options_.session->when_ready(members_wait, [self = options_.owner](result<void> ready, store_state& s) {
      if (!ready || !s.client) return;
      kv::catch_up(s.client->who(), self, *s.home, [](result<kv::catch_up_report> r) {
        if (!r)
          log::warn("index: cannot take over what the others know: {}", r.error().message);
        else if (r->seen > 0)
          log::info("index: {} of {} records of other owners looked at", r->applied, r->seen);
      });
    });
  }

  void reclaim() {
    reclaim_.arm(self_, options_.reclaim_every);
    if (reclaiming_ || now(self_) < not_before_) return;
    reclaiming_ = true;
    options_.session->post([this, home = home_, options = options_.reclaim](store_state& s) {
      auto over = [this, home](result<kv::reclaim_report> r) {
        home->post([this, n = r ? r->expired + r->evicted : 0] {
          reclaimed_ += n;
          reclaiming_ = false;
        });
      };
      if (!s.client) return over(kv::reclaim_report{});
      kv::reclaim_expired(s.client->who(), options, *s.home, [this, home, options, over, &s](auto first) {
        if (!first) return over(first);
        home->post([this, n = first->expired] { reclaimed_ += n; });
        kv::evict_above_mark(s.client->who(), options, *s.home, over);
      });
    });
  }

  interface::pointer self_;
  scrubber_options options_;
  std::shared_ptr<actor_executor> home_;
  std::shared_ptr<scrub_run> run_;  // the last one
  uint64_t number_ = 0, reclaimed_ = 0;
  bool running_ = false, repairing_ = false, reclaiming_ = false;
  kv::reclaim_report before_;  // of the run
  std::optional<error> failure_;
  storage_epoch epoch_;
  nanoseconds not_before_{0};  // no reclaim until then
  timer reclaim_{reclaim_timer}, scrub_{scrub_timer};
};

}  // namespace

scrubber_actor spawn_scrubber(caf::local_actor* parent, scrubber_options options) {
  return spawn<scrubber_state>(parent, std::move(options));
}

}  // namespace troupe::actors
