#include "runtime/sim/cost_host.hpp"

#include <algorithm>

#include "kernels/engine/cpu_engine.hpp"
#include "kernels/engine/handoff.hpp"
#include "runtime/node/roles.hpp"

namespace troupe::sim {
namespace {

// As in a live process: by this long all members of a view must have come.
constexpr nanoseconds meeting_patience = std::chrono::seconds(5);
// Connecting the ranks of a group.
constexpr nanoseconds connect_time = std::chrono::milliseconds(1);

}  // namespace

void engine_meeting::arrive(const actors::group_view& view, uint32_t place,
                            std::function<void(result<std::shared_ptr<kernels::cost_group>>)> join) {
  const std::pair key{view.group, view.epoch.value};
  auto [it, fresh] = open_.try_emplace(key);
  auto& m = it->second;
  if (fresh) {
    m.members = static_cast<uint32_t>(view.members.size());
    m.number = ++meetings_;
    commons_.events->after(meeting_patience, [this, key, number = m.number] {
      auto late = open_.find(key);
      if (late == open_.end() || late->second.number != number) return;
      auto waiting = std::move(late->second.waiting);
      open_.erase(late);
      for (auto& [p, f] : waiting)
        f(fail(errc::timeout, "of {} ranks of {} {} came to meet", waiting.size(), key.first, waiting.size()));
    });
  }
  m.waiting[place] = std::move(join);
  if (m.waiting.size() < m.members) return;
  auto waiting = std::move(m.waiting);
  open_.erase(it);
  kernels::cost_group_options o;
  o.model = commons_.cost;
  o.timer = commons_.timer;
  o.ranks = static_cast<uint32_t>(view.members.size());
  o.deadline = commons_.step_deadline;
  o.experts = kernels::experts_of(*commons_.outline);
  o.seed = commons_.seed;
  auto group = kernels::cost_group::make(o);
  if (group) newest_[view.group] = *group;
  for (auto& [p, f] : waiting) f(group);
}

cost_host::cost_host(engine_commons& c, engine_meeting& m, size_t node, const actors::role_assignment& seat,
                     uint64_t incarnation, const config::ranks_section& ranks, const config::engine_section& engine)
    : commons_(c),
      meeting_(m),
      node_(node),
      seat_(seat),
      incarnation_(incarnation),
      ranks_(ranks),
      options_(engine),
      limits_(node::engine_limits_of(ranks, engine)) {}

cost_host::~cost_host() {
  stop();
  transport_.reset();  // what it has under way ends here, while there still is something to tell it to
}

void cost_host::later(nanoseconds d, std::function<void()> f) {
  commons_.events->after(d, [stopped = stopped_, f = std::move(f)] {
    if (!*stopped) f();
  });
}

void cost_host::open(kernels::engine::sink sink, std::function<void(result<std::string>)> done) {
  sink_ = std::move(sink);
  later(commons_.load_time, [this, done = std::move(done)] { done(load()); });
}

result<std::string> cost_host::load() {
  const auto& plan = commons_.outline->plan;
  const uint32_t longest = commons_.outline->config.max_position_embeddings;
  if (longest != 0) limits_.max_context = std::min(limits_.max_context, longest);
  TROUPE_TRY(transport_, commons_.wires->make(node_, true));
  TROUPE_TRY(pages_, transport_->allocate(size_t{limits_.pages} * plan.page_bytes));
  if (limits_.handoffs > 0) {
    TROUPE_TRY(states_, transport_->allocate(size_t{limits_.handoffs} * kernels::cost_state_bytes));
    memory_ = {transport_->address(), pages_->descriptor().encode(), states_->descriptor().encode()};
  }
  return fmt::format("{}/{}", seat_.seat(), incarnation_);
}

void cost_host::regroup(const actors::group_view& view, std::function<void(result<void>)> done) {
  const auto me =
      std::find_if(view.members.begin(), view.members.end(), [&](const auto& m) { return m.rank == seat_.index; });
  if (me == view.members.end())
    return later(nanoseconds{0}, [done = std::move(done), group = view.group] {
      done(fail(errc::invalid_argument, "the view of {} does not hold this rank", group));
    });
  const auto place = static_cast<uint32_t>(me - view.members.begin());
  later(connect_time, [this, view, place, done = std::move(done)] {
    meeting_.arrive(view, place, [this, stopped = stopped_, view, place, done](auto group) {
      if (*stopped) return;
      place_ = place;
      done(group ? enter(view, *group) : result<void>(fail(group.error())));
    });
  });
}

result<void> cost_host::enter(const actors::group_view& view, const std::shared_ptr<kernels::cost_group>& group) {
  group_ = group;
  members_ = static_cast<uint32_t>(view.members.size());
  if (frozen_) group_->freeze(place_);
  if (slow_permille_ != 1000) group_->slow(place_, slow_permille_);
  TROUPE_TRY(auto seat, group->seat(place_));
  auto placement = kernels::initial_placement(*commons_.outline, static_cast<uint32_t>(view.members.size()),
                                              ranks_.redundant_experts, kernels::first_placement_version(view.epoch));
  if (engine_) return engine_->regroup(std::move(seat), std::move(placement));
  kernels::cost_engine_config c;
  c.outline = commons_.outline;
  c.model = commons_.cost;
  c.timer = commons_.timer;
  c.limits = limits_;
  c.pages = pages_->bytes();
  if (states_) c.handoff = states_->bytes();
  c.group = std::move(seat);
  c.placement = std::move(placement);
  c.replay_mode = options_.replay;
  c.adaptive_drafts = true;
  TROUPE_TRY(engine_, kernels::make_cost_engine(std::move(c), [this](kernels::step_result r) {
               if (*stopped_) return;
               if (commons_.on_step) commons_.on_step(*this, r);
               if (sink_) sink_(std::move(r));
             }));
  return {};
}

void cost_host::pull(const actors::transfer_grant& from, const std::vector<kernels::page_id>& pages, uint32_t place,
                     std::function<void(result<uint64_t>)> done) {
  auto route = route_of(from, pages, place);
  if (!route) return later(nanoseconds{0}, [done = std::move(done), e = route.error()] { done(fail(e)); });
  kernels::sequence_export want{from.rows, from.state_bytes, from.state_checksum, {}};
  for (const auto& page : from.pages) want.page_checksums.push_back(page.checksum);
  kernels::pull_handoff(
      *transport_, commons_.outline->plan, *route, std::move(want),
      [this](std::function<void()> task) { later(nanoseconds{0}, std::move(task)); },
      [this, peer = route->peer, place, rows = from.rows, done = std::move(done)](result<uint64_t> r) {
        if (!r && r.error().code == errc::peer_lost) transport_->remove_peer(peer);
        if (!r) return done(std::move(r));
        const auto state =
            states_->bytes().subspan(size_t{place} * kernels::cost_state_bytes, kernels::cost_state_bytes);
        auto good = kernels::check_cost_state(engine_->facts(), rows, state);
        done(good ? std::move(r) : result<uint64_t>(fail(good.error())));
      });
}

result<kernels::handoff_route> cost_host::route_of(const actors::transfer_grant& from,
                                                   const std::vector<kernels::page_id>& pages, uint32_t place) {
  if (!states_ || !engine_) return fail(errc::unavailable, "this rank has no memory that peers can reach");
  if (from.state_bytes > kernels::cost_state_bytes)
    return fail(errc::corrupt, "a state of {} B, at most {} B fit", from.state_bytes, kernels::cost_state_bytes);
  kernels::handoff_route r;
  TROUPE_TRY(r.from_pages, transport::remote_region::decode(from.memory.pages));
  TROUPE_TRY(r.from_states, transport::remote_region::decode(from.memory.states));
  TROUPE_TRY(r.peer, transport_->add_peer(from.memory.address));
  r.from_state = uint64_t{from.state_place} * kernels::cost_state_bytes;
  r.to_pages = pages_;
  r.to_states = states_;
  r.to_state = uint64_t{place} * kernels::cost_state_bytes;
  for (const auto& page : from.pages) r.from.push_back(page.page);
  r.to = pages;
  return r;
}

void cost_host::crash(nanoseconds noticed) {
  if (group_) group_->kill(place_, noticed);
  group_ = nullptr;
  stop();
}

void cost_host::freeze(bool on) {
  frozen_ = on;
  if (!group_) return;
  on ? group_->freeze(place_) : group_->thaw(place_);
}

void cost_host::slow(uint32_t permille) {
  slow_permille_ = permille;
  if (group_) group_->slow(place_, permille);
}

void cost_host::stop() {
  if (std::exchange(*stopped_, true)) return;
  sink_ = nullptr;
  if (engine_) engine_->stop();
}

}  // namespace troupe::sim
