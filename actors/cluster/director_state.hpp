// The director's state: members and seats in director.cpp, groups of ranks in director_groups.cpp, going on with a
// cluster that runs in director_takeover.cpp.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "actors/cluster/director.hpp"
#include "actors/cluster/takeover.hpp"
#include "actors/protocol/messages.hpp"

namespace troupe::actors {

/// One thread at a time, as every actor.
class director_state {
 public:
  using interface = director_actor;
  static inline const char* name = "director";
  explicit director_state(interface::pointer self) : self_(self), links_(self) {}
  interface::behavior_type make_behavior(director_options options);

 private:
  enum timers : uint8_t { check_timer = 1, spread_timer = 2 };
  static constexpr size_t max_events = 64, max_beats = 64;
  // Group epochs skipped after a takeover: the director before may have given out views that nobody who came knows of.
  static constexpr uint64_t unseen_views = 1024;

  struct member {
    node_entry entry;
    node_agent_actor agent;
    std::string wanted_seat;
    nanoseconds heard{0};
    std::vector<double> beats_ms;  // when it was heard before, the last max_beats times
  };
  struct seat {
    role_assignment assignment;
    node_number node;  // 0 = empty
    bool open = true;  // to be filled
  };
  // A role whose ranks may become more or fewer.
  struct pool {
    role what = role::none;
    uint32_t least = 1, since_change = UINT32_MAX;
    double rate = 0, queued = 0;  // smoothed; as told last
    nanoseconds heard{0};         // 0: never
  };
  // How long a group has been given to get going.
  struct trouble {
    std::vector<group_member> members;  // for whom this counts
    nanoseconds since{0};               // it was last well, or its last view was given out
    uint32_t views = 0;                 // given out in vain
    bool failed = false;
    std::string why;
  };
  static int64_t to_ms(nanoseconds t) { return std::chrono::duration_cast<std::chrono::milliseconds>(t).count(); }

  // -- members --------------------------------------------------------------------------------------------------
  member* find(cluster_epoch epoch, node_number node, incarnation inc);
  join_reply join(const join_request& m);
  member& add(const join_request& m, node_number node, incarnation inc);
  std::optional<std::string> unknown_seat(const std::string& wanted) const;
  std::string spare_text(const member& n) const;
  std::vector<role_assignment> give_seat(member& n);
  void lose(node_number node, const std::string& why);
  void next_check();
  void check_members();
  bool gone(const member& n, nanoseconds at) const;
  heartbeat_reply heard(const heartbeat& m);
  ack suspects(const suspect_report& m);

  // -- views ----------------------------------------------------------------------------------------------------
  void choose_balancer();
  void changed();
  void spread();
  cluster_view view() const;
  status_report report();
  void note(std::string text);
  void seat_spares();

  // -- groups that do not get going ---------------------------------------------------------------------------------
  void check_groups();
  std::pair<std::string, bool> complaint(const group_view& g) const;
  void regroup(const wanted_group& w);

  // -- roles that change with the load ------------------------------------------------------------------------------
  void loaded(const pool_load& m);
  void plan_changes();
  void open_one(role what);
  void close_one(role what);

  // -- taking over what runs ----------------------------------------------------------------------------------------
  join_reply rejoin(const rejoin_request& m);
  void begin_takeover(cluster_epoch epoch);
  void lead();

  interface::pointer self_;
  peer_links links_;
  director_options options_;
  cluster_epoch epoch_;  // of the cluster's life: its own, or that of the cluster it has taken over
  director_term term_;
  nanoseconds settle_until_{0};
  std::optional<takeover> taking_;  // while it hears who is there, it decides nothing
  uint64_t group_step_ = 1;         // to the next epoch of a group
  std::vector<seat> seats_;
  std::vector<pool> pools_;  // prefill, decode; empty: roles stay
  nanoseconds planned_{0};
  std::map<node_number, member> members_;  // bounded by max_nodes, as numbers_
  std::map<std::string, node_number> numbers_;
  std::map<std::string, group_view> groups_;  // epoch 0: not formed yet
  std::map<std::string, trouble> troubles_;   // of the formed ones
  balancer_seat balancer_;
  std::deque<std::string> events_;  // the last max_events
  uint32_t next_node_ = 1;          // 0 names the director in resolve_request
  uint64_t next_incarnation_ = 0, version_ = 0;
  timer check_{check_timer};
  nanoseconds check_due_{0};
  timer spread_{spread_timer};  // armed: the view has changed since it was told
  nanoseconds spread_at_{-std::chrono::hours(1)};
};

}  // namespace troupe::actors
