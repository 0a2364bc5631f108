// A batch with everything around it but actors, for tests that step it by hand.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "actors/serving/batch.hpp"
#include "actors/serving/transfer_book.hpp"
#include "kernels/engine/page_pool.hpp"
#include "tests/actors/stand_in.hpp"

namespace troupe::actors {

/// A batch, the stand-in engine, and the rank's books between them, stepped by the test.
struct bench {
  explicit bench(role what = role::decode, uint32_t pages = 48, uint32_t queue = 16, uint32_t handoffs = 0,
                 uint32_t plans_ahead = 1, nanoseconds step_budget = nanoseconds{0})
      : b(what, queue, 8, plans_ahead, step_budget) {
    options.limits.pages = pages;
    options.limits.handoffs = handoffs;
    engine = std::make_unique<stand_in_engine>(
        agenda, options, [this](kernels::step_result r) { results.push_back(std::move(r)); },
        [this] { return peer_missing ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}; });
    pool = std::make_unique<kernels::page_pool>(pages);
    book = std::make_unique<transfer_book>(*pool, handoffs);
    b.configure(options.facts, options.limits);
  }

  enqueue_reply add(uint64_t request, uint32_t prompt, uint32_t max_tokens, uint32_t attempt = 1, uint32_t front = 1,
                    handoff_ticket ticket = {}, uint8_t priority = 5) {
    enqueue_request r;
    r.priority = priority;
    r.handoff = ticket;
    r.request = request_number{request};
    r.attempt = attempt;
    r.tokens.assign(prompt, 5);
    r.prompt_length = prompt;
    if (ticket.kind == handoff_kind::pull) r.tokens.push_back(token_at(request, prompt));
    r.sampling.seed = request;
    r.stop.max_tokens = max_tokens;
    r.stop.ignore_eos = true;
    return b.enqueue(front, r, true, agenda.now());
  }

  /// A ticket of a prefill rank for a prompt with its first token.
  static handoff_ticket ticket_of(uint64_t request, uint32_t prompt) {
    return {handoff_kind::pull, {node_number{7}, incarnation{3}, "prefill-0/0/rank"}, request, prompt};
  }

  /// The pull of a fetch begins; the transport has the pages.
  void pull(uint64_t number) { book->pulling(number); }
  /// It ends: with what the request's prefill would have left, or not.
  void arrive(uint64_t number, bool whole = true) {
    auto* f = book->find(number);
    ASSERT_NE(f, nullptr);
    const bool wanted = f->wanted;
    const uint32_t rows = f->ticket.rows, window = options.facts.window;
    engine->states[f->place] = state_of(f->ticket.transfer, rows);
    const auto bytes = contents_of([](uint32_t) { return 5; }, rows, window);
    for (uint32_t i = 0; i < f->pages.size(); ++i) engine->content[f->pages[i].value] = bytes.at(i);
    book->arrived(number, whole, 1, nanoseconds(0));
    if (wanted)
      b.fetched({number, whole ? status{} : status{errc::corrupt, "test"}, false, pool->held(), 1, 1});
    else
      b.held(pool->held());
    check();
  }
  /// As fetch_patience does: the scheduler computes again though the transport goes on.
  void too_slow(uint64_t number) {
    book->drop(number, true);
    b.fetched({number, {errc::timeout, "test"}, false, pool->held(), 0, 0});
    check();
  }
  void check() {
    (void)book->counts();
    (void)pool->counts();
    scheduler_report report;
    b.describe(report);  // checks free + reserved + held = total
    EXPECT_LE(report.pages_free, pool->free()) << "the batch would promise pages that are not there";
  }

  /// What the batch wants of the rank besides plans; fetches begin but do not go on by themselves.
  void orders() {
    for (const auto& d : b.take_drops()) {
      if (d.number == 0) {
        given_up.push_back(d.ticket.transfer);
        continue;
      }
      if (auto* f = book->find(d.number); f && f->at != transfer_book::incoming::stage::here)
        given_up.push_back(d.ticket.transfer);
      book->drop(d.number, false);
      b.fetched({d.number, {errc::cancelled, "dropped"}, true, pool->held(), 0, 0});
    }
    for (const auto& f : b.take_fetches()) {
      const auto begun = book->begin(f.number, f.ticket, f.pages, nanoseconds(0));
      if (begun)
        fetching.push_back(f.number);
      else
        b.fetched({f.number, to_status(begun.error()), false, pool->held(), 0, 0});
    }
    check();
  }

  /// Hands every plan that is possible to the engine.
  void plan() {
    make_plans();
    orders();
    make_plans();
  }
  void make_plans() {
    for (auto next = b.plan(); next.any; next = b.plan()) {
      std::vector<std::pair<kernels::slot_id, std::vector<kernels::page_id>>> given;
      std::vector<uint32_t> places;
      for (size_t i = 0; i < next.imports.size(); ++i) {
        if (next.imports[i] == 0) continue;
        auto in = book->take(next.imports[i]);
        ASSERT_TRUE(in) << "an import that is not here";
        std::erase(fetching, next.imports[i]);
        places.push_back(in->state);
        given.emplace_back(next.plan.open[i].slot, in->pages);
        next.plan.open[i].imported = std::move(*in);
      }
      for (auto& s : next.plan.sequences) {
        if (s.export_to == kernels::no_handoff) continue;
        const auto place = book->take_place();
        s.export_to = place.value_or(kernels::no_handoff);
        if (place) places.push_back(*place);
      }
      for (size_t i = 0; i < next.grow.size(); ++i) {
        auto& s = next.plan.sequences[i];
        if (next.grow[i] == 0) continue;
        auto pages = pool->take(next.grow[i]);
        ASSERT_TRUE(pages) << "the batch promised more pages than there are";
        s.pages = *pages;
        given.emplace_back(s.slot, *pages);
      }
      const auto id = next.plan.id;
      follows.push_back(next.follows);
      if (engine->submit(std::move(next.plan))) {
        of_plan[id] = given;
        places_of[id] = places;
        continue;
      }
      for (uint32_t p : places) book->free_place(p);
      for (auto& [slot, pages] : given) pool->release(pages, kernels::page_owner::request);
      kernels::step_result r;  // as the rank does: behind the results of the plans before it
      r.plan = id;
      r.plan_done = true;
      r.applied = false;
      r.failure = errc::stale;
      rejected.push_back(r);
    }
  }

  void apply(const kernels::step_result& r) {
    auto given = std::move(of_plan[r.plan]);
    of_plan.erase(r.plan);
    auto places = std::move(places_of[r.plan]);
    places_of.erase(r.plan);
    std::vector<slot_ticket> tickets;
    for (auto& [slot, pages] : given) {
      if (r.applied)
        of_slot[slot].insert(of_slot[slot].end(), pages.begin(), pages.end());
      else
        pool->release(pages, kernels::page_owner::request);
    }
    for (const auto& s : r.sequences) {
      if (s.exported.rows == 0) continue;
      auto pages = of_slot[s.slot];
      pages.resize(s.exported.page_checksums.size());
      const auto transfer = book->offer(pages, s.exported, places.back(), nanoseconds(0));
      places.pop_back();
      tickets.push_back({s.slot, {handoff_kind::pull, {}, transfer, s.exported.rows}});
    }
    for (uint32_t p : places) book->free_place(p);
    for (auto slot : r.closed) {
      pool->release(of_slot[slot], kernels::page_owner::request);
      of_slot.erase(slot);
    }
    b.apply(r, tickets, pool->held());
    for (auto& [front, item] : b.take_output()) items.push_back(item);
    check();
  }

  /// One step of the engine and its results.
  bool step() {
    if (agenda.empty()) return false;
    agenda.run_next();
    while (!results.empty()) {
      auto r = std::move(results.front());
      results.pop_front();
      apply(r);
    }
    if (of_plan.empty())
      for (; !rejected.empty(); rejected.pop_front()) apply(rejected.front());
    return true;
  }

  /// Plans and steps until nothing moves; everything that ended is acknowledged.
  void finish() {
    for (int i = 0; i < 5000; ++i) {
      plan();
      for (auto& [front, item] : b.take_output()) items.push_back(item);
      for (auto& item : items)
        b.acknowledge(1, {item.request, item.attempt, item.first_position + static_cast<uint32_t>(item.tokens.size()),
                          item.last()});
      if (!step() && !b.plans_out()) break;
    }
  }

  void expect_empty() {
    EXPECT_TRUE(b.idle());
    scheduler_report r;
    b.describe(r);
    EXPECT_EQ(r.pages_free, r.pages_total);
    EXPECT_EQ(pool->free(), pool->total());
    const auto t = book->counts();
    EXPECT_EQ(t.offered + t.sending + t.fetching, 0u);
    EXPECT_EQ(t.places_free, t.places);
    EXPECT_EQ(r.waiting + r.running + r.closing + r.unacknowledged, 0u);
  }

  std::vector<stream_item> items_of(uint64_t request, uint32_t attempt = 1) const {
    std::vector<stream_item> out;
    for (auto& i : items)
      if (i.request.value == request && i.attempt == attempt) out.push_back(i);
    return out;
  }

  sim::agenda agenda{1};
  stand_in_options options;
  std::deque<kernels::step_result> results, rejected;
  bool peer_missing = false;
  std::unique_ptr<stand_in_engine> engine;
  std::unique_ptr<kernels::page_pool> pool;
  std::unique_ptr<transfer_book> book;
  std::vector<bool> follows;       // of the plans so far
  std::vector<uint64_t> fetching;  // numbers of fetches begun and not taken by a plan
  std::vector<uint64_t> given_up;  // transfers closed at their source because nobody wants them
  std::map<uint64_t, std::vector<uint32_t>> places_of;
  std::map<uint64_t, std::vector<std::pair<kernels::slot_id, std::vector<kernels::page_id>>>> of_plan;
  std::map<kernels::slot_id, std::vector<kernels::page_id>> of_slot;
  std::vector<stream_item> items;
  batch b;
};

inline void expect_tokens(const bench& t, uint64_t request, uint32_t prompt, uint32_t count) {
  SCOPED_TRACE("request " + std::to_string(request));
  uint32_t at = prompt;
  int ends = 0;
  for (auto& i : t.items_of(request)) {
    EXPECT_EQ(ends, 0) << "an item after the end";
    EXPECT_EQ(i.first_position, at);
    for (auto token : i.tokens) EXPECT_EQ(token, token_at(request, at++));
    ends += i.last();
  }
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(at, prompt + count);
}

}  // namespace troupe::actors
