// The state of an entrypoint (entrypoint.hpp): requests, tokens and ends in entrypoint.cpp, places in
// entrypoint_place.cpp.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/serving/front_match.hpp"
#include "actors/serving/front_placer.hpp"
#include "actors/serving/front_request.hpp"
#include "actors/serving/front_schedulers.hpp"

namespace troupe::actors {

/// Used by the actor itself only.
class entrypoint_state {
 public:
  using interface = entrypoint_actor;
  static inline const char* name = "entrypoint";
  explicit entrypoint_state(interface::pointer self) : self_(self), links_(self) {}
  ~entrypoint_state();
  interface::behavior_type make_behavior(entrypoint_options options);

 private:
  using request = front_request;
  using phase = front_request::phase;
  enum timer_kind : uint8_t { attach_kind = 1, place_kind = 2, drain_kind = 3, balancer_kind = 4, renew_kind = 5 };

  void follow(const cluster_view& view);
  void lost(const actor_key& key, const error& why);
  bool ready() const { return !draining_ && schedulers_->usable(role::decode) > 0; }
  void report_state();
  void submit(const client_submit& m);
  request* current(request_number number, uint32_t attempt);

  // Places.
  void enter(request& r, phase to);
  void new_round();
  void fill();
  void place(request_number number);
  void search(request_number number, request& r, role what);
  void found(request_number number, role what, const found_place& p);
  void wait_for_place(request_number number, uint32_t retry_after_ms);
  void find_next(request_number number, request& r);
  void keep_room(request_number number, request& r, const found_place& p);
  void drop_next(request_number number, request& r);
  void ask_scheduler(request_number number, const actor_key& key, lease_number lease);
  void answered(request_number number, const actor_key& key, uint32_t attempt, const enqueue_reply& reply);
  void give_up(request_number number, request& r);
  void cancel_at(const actor_key& key, request_number number, uint32_t attempt);
  uint32_t expected_answer(const request& r) const;
  template <class Message>
  void send(const scheduler_actor& to, Message m) {  // a request whose answer changes nothing
    links_.ask(
        self_, to, options_.ask_timeout, std::move(m), [](const ack&) {}, [](const error&) {});
  }

  // Tokens.
  void take(const token_batch& m);
  ack_item take(const stream_item& item, request& r);
  void last_item(request_number number, stream_item& i);
  void resume(request_number number, const error& why);

  // Ends: the only ways out of requests_.
  void finish(request_number number, client_event e);
  void fail(request_number number, errc code, std::string text, uint32_t retry_ms = 0);
  void client_cancelled(const std::string& id);

  front_report report() const;
  caf::result<drain_reply> drain(const drain_request& m);
  void check_drained();
  void answer_drains(const status& outcome, uint32_t left);
  void ticked(const tick& t);

  interface::pointer self_;
  peer_links links_;
  entrypoint_options options_;
  uint64_t view_version_ = 0;
  std::unique_ptr<front_schedulers> schedulers_;
  std::unique_ptr<front_placer> placer_;
  front_match match_{self_, options_.prefix};
  std::map<request_number, request> requests_;  // bounded by max_requests
  std::map<std::string, request_number> by_id_;
  std::map<std::string, eplb_report> experts_;  // bounded by the groups of the cluster
  uint64_t next_request_ = 1;
  uint32_t searches_ = 0;  // requests that look for a place
  uint64_t round_ = 1;     // of placing
  bool full_ = false, filling_ = false;
  std::array<double, 2> answers_{128, 128};  // tokens of an answer, mean of late, by traffic class
  bool draining_ = false;
  role_state reported_ = role_state::starting;
  front_report counters_;
  std::vector<promise<drain_reply>> drains_;
  timer place_{place_kind}, drain_{drain_kind};
};

}  // namespace troupe::actors
