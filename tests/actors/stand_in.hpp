// A stand-in engine for tests of the actors: tokens from a formula, steps that take virtual time, and a strict reading
// of the engine's contract (every breach by a scheduler or rank aborts the test).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/serving/rank_host.hpp"
#include "kernels/ep/expert_table.hpp"
#include "runtime/base/check.hpp"
#include "runtime/sim/agenda.hpp"
#include "tests/actors/stand_in_options.hpp"

namespace troupe::actors {

class stand_in_engine final : public kernels::engine {
 public:
  using alive_fn = std::function<std::vector<uint32_t>()>;  // ranks of the group that do not show up

  stand_in_engine(sim::agenda& a, const stand_in_options& o, sink s, alive_fn missing)
      : agenda_(a),
        options_(o),
        sink_(std::move(s)),
        missing_(std::move(missing)),
        memory(std::make_shared<std::vector<uint64_t>>(o.limits.pages, 0)),
        content(*memory),
        states(o.limits.handoffs, 0),
        shots(o.limits.snapshots, 0) {}

  /// From now on a missing peer is noticed without a plan of this rank too, as a standing participant notices it.
  void notice_when_idle() {
    agenda_.after(options_.deadline / 4, [this, stopped = stopped_] {
      if (*stopped) return;
      if (!busy_ && !failed_) {
        if (auto gone = missing_(); !gone.empty()) {
          failed_ = true;
          kernels::step_result r;
          r.failure = errc::peer_lost;
          r.regroups = regroups_;
          r.applied = false;
          r.suspects = gone;
          sink_(std::move(r));
        }
      }
      notice_when_idle();
    });
  }

  const kernels::model_facts& facts() const override { return options_.facts; }
  const kernels::engine_limits& limits() const override { return options_.limits; }

  result<void> submit(kernels::step_plan plan) override {
    if (failed_ || *stopped_) return fail(errc::unavailable, "no group");
    if (queue_.size() >= 2) return fail(errc::exhausted, "two plans wait");
    TROUPE_CHECK(plan.id > last_plan_, "plan {} after {}", plan.id, last_plan_);
    last_plan_ = plan.id;
    queue_.push_back(std::move(plan));
    if (!busy_) begin();
    return {};
  }

  result<void> regroup(std::unique_ptr<kernels::ep::group>, kernels::ep::placement first) override {
    enter(std::move(first), regroups_ + 1);
    failed_ = false;
    ++regroups_;
    if (!busy_) begin();
    return {};
  }

  /// The first placement of a group; `regroup` does the same with the next.
  void enter(kernels::ep::placement first, uint64_t regroups) {
    places_ = {};
    places_.regroups = regroups;
    places_.ranks = 1;
    for (const auto& layer : first.copies)
      for (const auto& ranks : layer) places_.ranks = std::max(places_.ranks, ranks.back() + 1);
    places_.active = std::make_shared<const kernels::ep::placement>(std::move(first));
    places_.slots = options_.expert_slots;
    window_ = {};
  }

  result<void> stage(kernels::placement_move move) override {
    const bool newer = move.from == places_.active->version && move.to.version > move.from;
    if (failed_ || *stopped_) return fail(errc::unavailable, "no group");
    if (move.regroups != places_.regroups || !newer) return fail(errc::stale, "another group or placement");
    if (places_.phase == kernels::move_phase::flipping) return fail(errc::unavailable, "the last one is flipping");
    TROUPE_CHECK(move.to.copies.size() == places_.active->copies.size(), "{} layers", move.to.copies.size());
    next_ = std::make_shared<const kernels::ep::placement>(std::move(move.to));
    places_.next = next_->version;
    places_.phase = kernels::move_phase::loading;
    agenda_.after(options_.stage, [this, stopped = stopped_, version = places_.next] {
      if (*stopped || (options_.stage_hangs && options_.stage_hangs())) return;
      if (places_.phase == kernels::move_phase::loading && places_.next == version)
        places_.phase = kernels::move_phase::staged;
    });
    return {};
  }

  // Without the others' headers: each rank flips when it is told.
  result<void> flip(placement_version version) override {
    if (places_.active->version == version) return {};
    if (places_.phase != kernels::move_phase::staged || places_.next != version) return fail(errc::stale, "not staged");
    if (options_.flip_hangs && options_.flip_hangs()) {
      places_.phase = kernels::move_phase::flipping;
      return {};
    }
    places_.active = std::move(next_);
    places_.phase = kernels::move_phase::none;
    ++places_.flips;
    return {};
  }

  result<void> drop(placement_version version) override {
    if (places_.next == version) places_.phase = kernels::move_phase::none;
    return {};
  }

  kernels::placement_status placement() const override { return places_; }

  // Expert 2 of every layer gets as many rows as all others together; no first placement has two copies of it.
  kernels::expert_window take_expert_window(uint64_t min_steps) override {
    kernels::expert_window out;
    out.regroups = places_.regroups;
    out.placement = places_.active->version;
    out.steps = out.received_steps = window_.steps;
    if (window_.steps < min_steps) return out;
    const auto n = options_.facts.experts;
    for (size_t l = 0; l < places_.active->copies.size(); ++l) {
      out.loads.emplace_back(n, rows_);
      out.loads.back()[2] = rows_ * (n - 1);
      out.received.push_back(2 * rows_ * (n - 1) / places_.ranks);
    }
    window_ = {};
    rows_ = 0;
    return out;
  }

  void stop() override { *stopped_ = true; }

 private:
  struct slot {
    kernels::sequence_open open;
    uint32_t known = 0, committed = 0, cached = 0;
    bool sampled = false, finished = false;
    bool from_snapshot = false;  // until its first chunk
    std::vector<kernels::page_id> pages;
  };

  // Closes, opens and pages take effect before the step.
  void begin() {
    if (queue_.empty() || failed_) return;
    busy_ = true;
    now_ = std::move(queue_.front());
    queue_.pop_front();
    for (auto id : now_.close) {
      auto it = slots_.find(id);
      TROUPE_CHECK(it != slots_.end(), "close of slot {} that is not open", id.value);
      for (auto p : it->second.pages) TROUPE_CHECK(pages_.erase(p), "page {} twice", p.value);
      slots_.erase(it);
    }
    for (auto& o : now_.open) {
      TROUPE_CHECK(o.slot.value < options_.limits.slots, "slot {}", o.slot.value);
      slot s;
      s.open = o;
      s.known = static_cast<uint32_t>(o.tokens.size());
      for (uint32_t p = o.prompt_length; p < s.known; ++p)
        TROUPE_CHECK(o.tokens[p] == token_at(o.sampling.seed, p), "resumed with a wrong token at {}", p);
      if (o.imported.rows > 0) import(s);
      if (o.windows.position > 0) start_from_snapshot(s);
      TROUPE_CHECK(slots_.emplace(o.slot, std::move(s)).second, "slot {} opened twice", o.slot.value);
    }
    uint32_t chunk = 0, rows = 0;
    for (auto& q : now_.sequences) {
      auto it = slots_.find(q.slot);
      TROUPE_CHECK(it != slots_.end(), "step of slot {} that is not open", q.slot.value);
      auto& s = it->second;
      for (auto p : q.pages) {
        TROUPE_CHECK(p.value < options_.limits.pages && pages_.insert(p).second, "page {} is in use", p.value);
        if (s.pages.size() * options_.facts.window >= q.write_global_from) content[p.value] = 0;
        s.pages.push_back(p);
      }
      if (s.finished) continue;
      TROUPE_CHECK(q.export_to == kernels::no_handoff || (q.sample && q.export_to < states.size()), "export to {}",
                   q.export_to);
      if (q.rows > 0) {
        if (s.from_snapshot)
          check_hit(s, q);
        else if (q.position != s.committed)
          jump(s, q);
        TROUPE_CHECK(q.position + q.rows <= s.open.tokens.size(), "chunk beyond the known tokens");
        TROUPE_CHECK(q.sample == (q.position + q.rows == s.open.tokens.size()), "sample");
        TROUPE_CHECK(s.pages.size() * options_.facts.window >= q.position + q.rows, "chunk without pages");
        chunk += q.rows;
      } else {
        TROUPE_CHECK(s.sampled && s.committed + 1 == s.known, "decode of slot {}: {} of {}", q.slot.value, s.committed,
                     s.known);
        TROUPE_CHECK(s.pages.size() * options_.facts.window >= s.committed + 1, "decode without a page");
      }
      rows += std::max(1u, q.rows);
    }
    TROUPE_CHECK(chunk <= options_.limits.max_chunk, "chunk of {} rows", chunk);
    rows_ += rows;
    // The step belongs to the group of its begin: a regroup meanwhile does not save it.
    auto lost = now_.sequences.empty() ? std::vector<uint32_t>{} : missing_();
    agenda_.after(lost.empty() ? options_.step + rows * options_.per_row : options_.deadline,
                  [this, stopped = stopped_, rows, lost, group = regroups_] {
                    if (!*stopped) end(rows, lost, group);
                  });
  }

  void end(uint32_t rows, std::vector<uint32_t> missing, uint64_t group) {
    kernels::step_result r;
    r.plan = now_.id;
    r.step = ++step_;
    r.regroups = group;
    r.plan_done = true;
    r.closed = now_.close;
    r.rows = rows;
    r.times.total = (options_.step + rows * options_.per_row).count();
    busy_ = false;
    // Lost meanwhile, if it is still the group of the view.
    if (missing.empty() && group == regroups_ && !now_.sequences.empty()) missing = missing_();
    if (!missing.empty() || (options_.step_fails && options_.step_fails())) {
      failed_ = group == regroups_;
      r.failure = errc::peer_lost;
      r.failure_text = "stand-in";
      r.suspects = missing;
      sink_(std::move(r));
      for (auto& plan : std::exchange(queue_, {})) {
        kernels::step_result d;
        d.plan = plan.id;
        d.plan_done = true;
        d.regroups = group;
        d.applied = false;
        d.failure = errc::peer_lost;
        sink_(std::move(d));
      }
      return;
    }
    uint32_t budget = now_.verify_budget;
    ++window_.steps;
    for (auto& q : now_.sequences) {
      auto& s = slots_.at(q.slot);
      if (s.finished) continue;
      kernels::sequence_result out;
      out.slot = q.slot;
      out.first_position = s.known;
      const uint32_t before = s.committed;
      if (q.rows > 0) {
        s.committed += q.rows;
        if (q.sample) sample(s, out);
        fill(s);
        if (q.export_to != kernels::no_handoff && !s.finished) out.exported = export_to(s, q.export_to);
      } else {
        // How many drafts are accepted is drawn from the seed; room for them is what the pages leave.
        const auto room = static_cast<uint32_t>(s.pages.size() * options_.facts.window) - s.committed - 1;
        uint32_t drafts = s.open.speculate ? std::min({options_.limits.max_draft, budget, room}) : 0;
        budget -= drafts;
        out.drafted = drafts;
        const auto accept =
            drafts == 0 ? 0 : static_cast<uint32_t>(token_at(~s.open.sampling.seed, s.known)) % (drafts + 1);
        s.committed += 1;
        sample(s, out);
        for (uint32_t i = 0; i < accept && !s.finished; ++i) {
          s.committed += 1;
          ++out.accepted;
          sample(s, out);
        }
        fill(s);
      }
      out.committed = s.committed;
      take_snapshots(s, q, before, out);
      r.sequences.push_back(std::move(out));
    }
    sink_(std::move(r));
    if (!busy_) begin();
  }

  kernels::token_id token_of(const slot& s, uint32_t position) const {
    return position < s.open.tokens.size() ? s.open.tokens[position] : token_at(s.open.sampling.seed, position);
  }
  std::vector<uint64_t> contents(const slot& s, uint32_t rows) const {
    return contents_of([&](uint32_t p) { return token_of(s, p); }, rows, options_.facts.window);
  }

  // What is in place lies in the pages; cached blocks stay as they came.
  void fill(slot& s) {
    const auto wanted = contents(s, s.committed);
    for (uint32_t b = s.cached; b < wanted.size(); ++b) content[s.pages[b].value] = wanted[b];
  }

  // The start behind cached blocks, which must be those of the sequence.
  void jump(slot& s, const kernels::sequence_step& q) {
    const uint32_t w = options_.facts.window;
    TROUPE_CHECK(s.committed == 0 && q.window_floor == q.position && q.position % w == 0 &&
                     q.write_global_from % w == 0 && q.position <= q.write_global_from &&
                     q.decoder_from >= q.write_global_from,
                 "chunk at {} with {} committed, cached to {}", q.position, s.committed, q.write_global_from);
    TROUPE_CHECK(q.write_global_from - q.position >= (options_.facts.encoder_layers + 1) * w,
                 "{} rows replayed, not enough for exact windows", q.write_global_from - q.position);
    s.committed = q.position;
    check_hit(s, q);
  }

  // What was cached must be that of the sequence.
  void check_hit(slot& s, const kernels::sequence_step& q) {
    const uint32_t w = options_.facts.window;
    TROUPE_CHECK(q.position == s.committed && q.write_global_from >= q.position && q.write_global_from % w == 0 &&
                     q.decoder_from >= q.write_global_from &&
                     q.window_floor == (s.from_snapshot ? q.position - w : q.position),
                 "chunk at {} with {} committed, cached to {}, floor {}", q.position, s.committed, q.write_global_from,
                 q.window_floor);
    const auto wanted = contents(s, q.write_global_from);
    for (uint32_t b = 0; b < wanted.size(); ++b)
      TROUPE_CHECK(content[s.pages.at(b).value] == wanted[b], "cached block {} is not that of the sequence", b);
    s.cached = static_cast<uint32_t>(wanted.size());
    s.from_snapshot = false;
    ++hits;
  }

  // A snapshot is what its sequence's tokens up to there are.
  void start_from_snapshot(slot& s) {
    const auto& w = s.open.windows;
    TROUPE_CHECK(w.position % options_.facts.window == 0 && w.position + options_.facts.window <= s.known,
                 "a snapshot at {} of {} tokens", w.position, s.known);
    TROUPE_CHECK(shots.at(w.place) == contents(s, w.position).back(), "the windows are not those of the sequence");
    s.committed = w.position;
    s.from_snapshot = true;
    ++snapshots_used;
  }

  void take_snapshots(const slot& s, const kernels::sequence_step& q, uint32_t before, kernels::sequence_result& out) {
    for (const auto& w : q.snapshots) {
      if (w.position <= before || w.position > s.committed) continue;
      TROUPE_CHECK(w.position % options_.facts.window == 0 && w.position >= q.write_global_from,
                   "a snapshot at {}, where windows are not right", w.position);
      shots.at(w.place) = contents(s, w.position).back();
      out.snapshots.push_back({w.position, w.place, static_cast<uint32_t>(shots[w.place])});
    }
  }

  kernels::sequence_export export_to(const slot& s, uint32_t place) {
    kernels::sequence_export out{s.committed, 8, state_of(s.open.sampling.seed, s.committed), {}};
    states[place] = out.state_checksum;
    for (uint32_t b = 0; b * options_.facts.window < s.committed; ++b)
      out.page_checksums.push_back(content[s.pages[b].value]);
    return out;
  }

  // Whatever went wrong before: what a plan imports is that sequence's, to the last page.
  void import(slot& s) {
    const auto& in = s.open.imported;
    TROUPE_CHECK(
        in.rows + 1 == s.known && in.pages.size() == (in.rows + options_.facts.window - 1) / options_.facts.window,
        "import of {} rows in {} pages, {} tokens known", in.rows, in.pages.size(), s.known);
    TROUPE_CHECK(states.at(in.state) == state_of(s.open.sampling.seed, in.rows), "a wrong state");
    const auto wanted = contents(s, in.rows);
    for (uint32_t b = 0; b < in.pages.size(); ++b) {
      TROUPE_CHECK(pages_.insert(in.pages[b]).second, "imported page {} is in use", in.pages[b].value);
      TROUPE_CHECK(content[in.pages[b].value] == wanted[b], "block {} is not that of the sequence", b);
      s.pages.push_back(in.pages[b]);
    }
    s.committed = in.rows;
    s.sampled = true;
    ++imported;
  }

  void sample(slot& s, kernels::sequence_result& out) {
    const auto t = token_at(s.open.sampling.seed, s.known);
    out.tokens.push_back(t);
    ++s.known;
    s.sampled = true;
    const uint32_t made = s.known - s.open.prompt_length;
    if (t == options_.facts.eos && !s.open.stop.ignore_eos)
      out.finish = kernels::finish_reason::stop;
    else if (made >= s.open.stop.max_tokens || s.known >= options_.limits.max_context)
      out.finish = kernels::finish_reason::length;
    s.finished = out.finish != kernels::finish_reason::none;
  }

  sim::agenda& agenda_;
  stand_in_options options_;
  sink sink_;
  alive_fn missing_;
  std::deque<kernels::step_plan> queue_;
  kernels::step_plan now_;
  std::map<kernels::slot_id, slot> slots_;
  std::set<kernels::page_id> pages_;
  std::shared_ptr<bool> stopped_ = std::make_shared<bool>(false);
  bool busy_ = false, failed_ = false;
  uint64_t regroups_ = 0, step_ = 0, last_plan_ = 0, rows_ = 0;
  kernels::placement_status places_;
  std::shared_ptr<const kernels::ep::placement> next_;
  kernels::expert_window window_;

 public:
  const std::shared_ptr<std::vector<uint64_t>> memory;
  std::vector<uint64_t>& content;                       // of pages
  std::vector<uint64_t> states;                         // of the places of the handoff memory
  std::vector<uint64_t> shots;                          // of the places of the snapshot memory
  uint64_t imported = 0, hits = 0, snapshots_used = 0;  // sequences
};

}  // namespace troupe::actors
