#include "actors/serving/expert_shard.hpp"

#include <algorithm>

#include "actors/protocol/messages.hpp"
#include "kernels/ep/expert_table.hpp"

namespace troupe::actors {
namespace {

enum expert_shard_timer : uint8_t { look_timer = 1 };
constexpr auto shard_look_every = std::chrono::milliseconds(10);  // while a move is under way: how far the engine is

class expert_shard_state {
 public:
  using interface = expert_shard_actor;
  static inline const char* name = "expert_shard";
  explicit expert_shard_state(interface::pointer self) : self_(self) {}

  interface::behavior_type make_behavior(std::shared_ptr<rank_host> host) {
    host_ = std::move(host);
    return {
        [this](const shard_group& m) {
          group_ = m.group;
          regroups_ = m.regroups;
          look();  // a move of the group before is over
        },
        [this](const load_query& m) { return loads(m); },
        [this](const placement_query& m) { return placement(m); },
        [this](const stage_placement& m) { return stage(m); },
        [this](const flip_placement& m) { return flip(m); },
        [this](const drop_placement& m) {
          auto* e = engine_of(m.group);
          if (!e) return refuse(m.group, m.to);
          placement_reply reply{{}, m.group, m.to, 0};
          if (auto ok = e->drop(m.to); !ok) reply.outcome = to_status(ok.error());
          look();
          return reply;
        },
        [this](const tick& t) {
          if (look_timer_.fired(t)) look();
        },
    };
  }

 private:
  kernels::engine* engine_of(group_epoch group) {
    return group == group_ && group != group_epoch{} ? host_->engine() : nullptr;
  }

  status stale(group_epoch asked) const {
    return {errc::stale, fmt::format("asked in group view {}, this rank is in {}", asked.value, group_.value)};
  }
  placement_reply refuse(group_epoch asked, placement_version to) const { return {stale(asked), asked, to, 0}; }

  load_report loads(const load_query& m) {
    load_report r;
    r.group = m.group;
    auto* e = engine_of(m.group);
    if (!e) {
      r.outcome = stale(m.group);
      return r;
    }
    auto w = e->take_expert_window(m.min_steps);
    if (w.regroups != regroups_) {
      r.outcome = {errc::stale, "the engine is in another group already"};
      return r;
    }
    r.placement = w.placement;
    r.steps = w.steps;
    r.received_steps = w.received_steps;
    r.loads = std::move(w.loads);
    r.received = std::move(w.received);
    const auto s = e->placement();
    r.free_slots = s.slots - std::min(s.slots, s.copies);
    return r;
  }

  placement_report placement(const placement_query& m) {
    placement_report r;
    r.group = m.group;
    auto* e = engine_of(m.group);
    const auto s = e ? e->placement() : kernels::placement_status{};
    if (!s.active || s.regroups != regroups_) {
      r.outcome = stale(m.group);
      return r;
    }
    const auto& facts = e->facts();
    r.placement = s.active->version;
    r.flips = s.flips;
    for (size_t l = 0; l < facts.encoder_layers + facts.decoder_layers; ++l) {
      r.slots.push_back(kernels::ep::slots_of(s.active->copies[l], s.ranks));
      if (!r.slots.back().empty()) continue;
      r.outcome = {errc::unsupported, fmt::format("layer {}: the ranks do not hold equally many experts", l)};
      break;
    }
    return r;
  }

  caf::result<placement_reply> stage(const stage_placement& m) {
    auto* e = engine_of(m.group);
    if (!e) return refuse(m.group, m.to);
    const auto now = e->placement();
    kernels::placement_move move;
    move.regroups = regroups_;
    move.from = m.from;
    move.to.version = m.to;
    move.loads_per_step = m.loads_per_step;
    for (const auto& layer : m.slots) {
      auto copies = kernels::ep::copies_of(layer, now.ranks, e->facts().experts);
      if (!copies) return placement_reply{to_status(copies.error()), m.group, m.to, 0};
      move.to.copies.push_back(std::move(*copies));
    }
    if (auto ok = e->stage(std::move(move)); !ok) return placement_reply{to_status(ok.error()), m.group, m.to, 0};
    return wait_for(m.group, m.to, false);
  }

  caf::result<placement_reply> flip(const flip_placement& m) {
    auto* e = engine_of(m.group);
    if (!e) return refuse(m.group, m.to);
    if (auto ok = e->flip(m.to); !ok) return placement_reply{to_status(ok.error()), m.group, m.to, 0};
    return wait_for(m.group, m.to, true);
  }

  caf::result<placement_reply> wait_for(group_epoch group, placement_version to, bool flip) {
    if (waiting_) answer({errc::cancelled, "another order came"}, 0);
    waiting_ = true;
    flip_ = flip;
    asked_in_ = group;
    to_ = to;
    promise_ = self_->make_response_promise<promise<placement_reply>>();
    look();
    return promise_;
  }

  void answer(status outcome, uint32_t loaded) {
    waiting_ = false;
    look_timer_.stop();
    promise_.deliver(placement_reply{std::move(outcome), asked_in_, to_, loaded});
  }

  // How far the engine is with what was asked for.
  void look() {
    if (!waiting_) return;
    auto* e = engine_of(asked_in_);
    const auto s = e ? e->placement() : kernels::placement_status{};
    if (!s.active || s.regroups != regroups_) return answer({errc::stale, "the group has ended"}, 0);
    if (s.active->version == to_) return answer({}, 0);
    const bool mine = s.phase != kernels::move_phase::none && s.next == to_;
    if (!mine) return answer({errc::cancelled, "the move was given up"}, 0);
    if (!flip_ && s.phase != kernels::move_phase::loading) return answer({}, s.to_load);
    look_timer_.arm(self_, shard_look_every);
  }

  interface::pointer self_;
  std::shared_ptr<rank_host> host_;
  group_epoch group_;
  uint64_t regroups_ = 0;
  // The order that is not answered yet.
  bool waiting_ = false, flip_ = false;
  group_epoch asked_in_;
  placement_version to_;
  promise<placement_reply> promise_;
  timer look_timer_{look_timer};
};

}  // namespace

expert_shard_actor spawn_expert_shard(caf::local_actor* parent, std::shared_ptr<rank_host> host) {
  return spawn<expert_shard_state>(parent, std::move(host));
}

}  // namespace troupe::actors
