// How a front finds a scheduler for a request: it asks the active balancer of the role, and holds what it gets as a
// lease; without a balancer that answers it places by itself, round robin, and tells the next balancer of it.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "actors/protocol/balance.hpp"
#include "actors/serving/front_schedulers.hpp"

namespace troupe::actors {

/// What became of a search. exhausted, unavailable: nobody takes it now, try again after retry_after_ms.
struct found_place {
  status outcome;
  lease_number lease;
  actor_key target;
  uint32_t retry_after_ms = 0;
};

/// Part of an entrypoint: used from its handlers only.
class front_placer {
 public:
  using on_found = std::function<void(const found_place&)>;
  /// Tokens of a request that are in place now, for what balancers are told again and again.
  using rows_of = std::function<uint32_t(request_number)>;

  /// `timer_kinds`: two kinds of ticks that nobody else in the actor uses.
  front_placer(entrypoint_actor::pointer self, peer_links& links, const entrypoint_options& options,
               front_schedulers& schedulers, std::array<uint8_t, 2> timer_kinds, rows_of rows);

  /// Who the balancers of a newer view are. Called after front_schedulers::follow.
  void follow(const cluster_view& view);
  /// True when the tick was for this.
  bool ticked(const tick& t);

  /// A lease on nothing yet, for role `what` (prefill or decode).
  lease_number open(role what, request_number who, const place_wish& wish);
  /// Looks for a scheduler for it that is not in `avoid`. `done` is called once, perhaps before this returns, and not
  /// if the lease is ended before. Without a place the lease is over.
  void find(lease_number lease, const std::vector<actor_key>& avoid, on_found done);
  /// The lease is over (0: nothing happens). `why`: its scheduler refused, for retry_after_ms.
  void end(lease_number lease, errc why = {}, uint32_t retry_after_ms = 0);

  size_t leases() const { return held_.size(); }
  /// Places that balancers gave, and that this front chose by itself.
  uint64_t balanced() const { return balanced_; }
  uint64_t alone() const { return alone_; }

 private:
  struct lease {
    role what = role::none;
    request_number who;
    place_wish wish;
    actor_key target;
    bool asked = true;  // no answer so far
  };
  struct balancer {
    enum class state : uint8_t { unknown, resolving, attached };
    role what = role::none;
    state at = state::unknown;
    balancer_actor handle;
  };
  balancer& of(role what) { return balancers_[what == role::prefill ? 0 : 1]; }
  void attach(balancer& b);
  void lost(balancer& b, const std::string& why);
  lease_update everything(role what);
  void renew(balancer& b);
  void choose_alone(lease_number number, const std::vector<actor_key>& avoid, const on_found& done);
  void tell_end(role what, lease_number number, errc why, uint32_t retry_after_ms);

  entrypoint_actor::pointer self_;
  peer_links& links_;
  const entrypoint_options& options_;
  front_schedulers& schedulers_;
  rows_of rows_;
  balancer_seat seat_;
  std::array<balancer, 2> balancers_;
  std::map<lease_number, lease> held_;  // bounded by the requests: at most two each
  uint64_t next_ = 1, balanced_ = 0, alone_ = 0;
  timer again_, renew_;
};

}  // namespace troupe::actors
