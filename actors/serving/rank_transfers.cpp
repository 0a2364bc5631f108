#include "actors/serving/rank_transfers.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"

namespace troupe::actors {
namespace {

constexpr auto transfer_look = std::chrono::milliseconds(500);  // how often deadlines are looked at
constexpr auto transfer_ask = std::chrono::seconds(2);

}  // namespace

rank_transfers::rank_transfers(rank_actor::pointer self, peer_links& links, const rank_options& options,
                               ways to_scheduler)
    : self_(self), links_(links), options_(options), to_scheduler_(std::move(to_scheduler)) {}

void rank_transfers::configure(kernels::page_pool& pool, uint32_t places) {
  if (book_) return;
  pool_ = &pool;
  book_ = std::make_unique<transfer_book>(pool, places);
}

result<void> rank_transfers::prepare(const std::vector<uint64_t>& imports, kernels::step_plan& plan,
                                     std::vector<uint32_t>& places) {
  error missing;
  bool complete = imports.size() == plan.open.size() || imports.empty();
  if (!complete) missing = {errc::invalid_argument, "imports and opens differ in length"};
  std::vector<kernels::page_id> pages;
  for (size_t i = 0; i < imports.size(); ++i) {
    if (imports[i] == 0) continue;
    auto in = book_->take(imports[i]);
    if (in) {
      places.push_back(in->state);
      pages.insert(pages.end(), in->pages.begin(), in->pages.end());
      if (i < plan.open.size()) plan.open[i].imported = std::move(*in);
    } else if (complete) {
      complete = false;
      missing = {errc::stale, fmt::format("fetch {} is not here", imports[i])};
    }
  }
  if (!complete) {
    free_places(places);
    places.clear();
    pool_->release(pages, kernels::page_owner::request);
    return fail(std::move(missing));
  }
  for (auto& s : plan.sequences) {
    if (s.export_to == kernels::no_handoff) continue;
    const auto place = options_.host->memory().address.empty() ? std::nullopt : book_->take_place();
    s.export_to = place.value_or(kernels::no_handoff);
    if (place) places.push_back(*place);
  }
  return {};
}

void rank_transfers::free_places(const std::vector<uint32_t>& places) {
  for (uint32_t p : places) book_->free_place(p);
}

void rank_transfers::discard(const std::vector<uint64_t>& imports) {
  for (uint64_t number : imports) {
    auto in = number != 0 && book_ ? book_->take(number) : std::nullopt;
    if (!in) continue;
    book_->free_place(in->state);
    pool_->release(in->pages, kernels::page_owner::request);
  }
}

handoff_ticket rank_transfers::offer(const std::vector<kernels::page_id>& pages, const kernels::sequence_export& what,
                                     uint32_t place) {
  handoff_ticket t;
  t.kind = handoff_kind::pull;
  t.source = {options_.identity.node, options_.identity.inc, options_.assignment.seat() + "/rank"};
  t.rows = what.rows;
  const std::vector<kernels::page_id> used(pages.begin(),
                                           pages.begin() + static_cast<ptrdiff_t>(what.page_checksums.size()));
  t.transfer = book_->offer(used, what, place, now(self_));
  arm();
  return t;
}

void rank_transfers::arm() {
  if (!timer_.armed()) timer_.arm(self_, transfer_look);
}

void rank_transfers::freed() {
  if (pool_->held() == held_) return;
  to_scheduler_.pool({tell_held()});
}

// -- the source -----------------------------------------------------------------------------------------------------

// The asker of the message under way, as a number; it is watched from its first transfer on.
uint64_t rank_transfers::puller() {
  const auto who = caf::actor_cast<any_handle>(self_->current_sender());
  auto [it, fresh] = pullers_.try_emplace(who, next_puller_);
  if (!fresh) return it->second;
  ++next_puller_;
  watch(who);
  return it->second;
}

// A peer may be puller and source, and an actor has one watch: its end is both ends.
void rank_transfers::watch(const any_handle& peer) {
  links_.watch(peer, [this, peer](const error&) {
    for (auto s = sources_.begin(); s != sources_.end();)
      s = caf::actor_cast<any_handle>(s->second) == peer ? sources_.erase(s) : std::next(s);
    if (auto it = pullers_.find(peer); it != pullers_.end()) {
      book_->puller_lost(it->second);
      pullers_.erase(it);
      freed();
    }
  });
}

transfer_grant rank_transfers::open(const transfer_open& m) {
  transfer_grant g;
  if (m.epoch != options_.identity.epoch || m.source != options_.identity.inc || !book_) {
    if (book_) book_->count_stale();
    g.outcome = {errc::stale, "another cluster epoch or incarnation"};
    return g;
  }
  g = book_->open(m.transfer, puller(), now(self_));
  if (g.outcome.ok()) g.memory = options_.host->memory();
  return g;
}

ack rank_transfers::close(const transfer_close& m) {
  if (m.epoch != options_.identity.epoch || m.source != options_.identity.inc || !book_)
    return {{errc::stale, "another cluster epoch or incarnation"}};
  if (!book_->close(m.transfer, m.outcome)) return {{errc::not_found, "the transfer was let go before"}};
  freed();
  return {};
}

// -- the decode side ------------------------------------------------------------------------------------------------

void rank_transfers::start(const fetch_start& m) {
  result<void> begun = fail(errc::unavailable, "no engine yet");
  if (book_) begun = book_->begin(m.number, m.ticket, m.pages, now(self_));
  if (!begun) {
    close_at_source(m.ticket, errc::cancelled);
    to_scheduler_.done({m.number, to_status(begun.error()), false, tell_held(), 0, 0});
    return;
  }
  arm();
  ask_source(m.number);
}

void rank_transfers::with_source(const actor_key& key, std::function<void(rank_actor)> ok,
                                 std::function<void(const error&)> bad) {
  if (auto it = sources_.find(key); it != sources_.end()) return ok(it->second);
  links_.ask(
      self_, options_.directory, transfer_ask, resolve_request{key},
      [this, key, ok = std::move(ok), bad](const resolve_reply& r) {
        if (!r.outcome.ok()) return bad({r.outcome.code, r.outcome.text});
        auto source = caf::actor_cast<rank_actor>(r.handle);
        if (sources_.emplace(key, source).second) watch(r.handle);
        ok(source);
      },
      bad);
}

void rank_transfers::ask_source(uint64_t number) {
  const auto* f = book_->find(number);
  with_source(
      f->ticket.source,
      [this, number](const rank_actor& source) {
        auto* f = book_->find(number);
        if (!f) return;  // dropped meanwhile, and closed there
        links_.ask(
            self_, source, transfer_ask,
            transfer_open{options_.identity.epoch, f->ticket.source.inc, f->ticket.transfer},
            [this, number](const transfer_grant& g) { granted(number, g); },
            [this, number](const error& e) { fail_fetch(number, e); });
      },
      [this, number](const error& e) { fail_fetch(number, e); });
}

void rank_transfers::granted(uint64_t number, const transfer_grant& g) {
  auto* f = book_->find(number);
  if (!f || f->at != transfer_book::incoming::stage::asking) return;
  if (!g.outcome.ok()) return fail_fetch(number, {g.outcome.code, g.outcome.text});
  if (g.rows != f->ticket.rows || g.pages.size() != f->pages.size())
    return fail_fetch(number, {errc::corrupt, fmt::format("{} rows in {} pages, the ticket says {} in {}", g.rows,
                                                          g.pages.size(), f->ticket.rows, f->pages.size())});
  book_->pulling(number);
  rank_actor me = caf::actor_cast<rank_actor>(self_);
  options_.host->pull(g, f->pages, f->place, [me, number](result<uint64_t> r) {
    post(me, engine_fetched{number, r ? status{} : to_status(r.error()), r ? *r : 0});
  });
}

void rank_transfers::fetched(const engine_fetched& m) {
  auto* f = book_->find(m.number);
  if (!f || f->at != transfer_book::incoming::stage::pulling) return;
  const auto ticket = f->ticket;
  const auto took = now(self_) - f->since;
  const bool wanted = f->wanted;
  const bool here = book_->arrived(m.number, m.outcome.ok(), m.bytes, now(self_));
  if (!wanted) return freed();  // the source and the scheduler know since it was dropped
  close_at_source(ticket, m.outcome.code);
  if (!here)
    log::warn("{}: transfer {} of {}: {}: {}", options_.assignment.seat(), ticket.transfer, ticket.source.name,
              to_string(m.outcome.code), m.outcome.text);
  to_scheduler_.done({m.number, m.outcome, false, tell_held(), m.bytes, took.count()});
}

// The scheduler computes again; what the transport still holds comes back later.
void rank_transfers::fail_fetch(uint64_t number, const error& why) {
  auto* f = book_->find(number);
  if (!f || !f->wanted) return;
  log::info("{}: transfer {} of {}: {}: {}", options_.assignment.seat(), f->ticket.transfer, f->ticket.source.name,
            to_string(why.code), why.message);
  close_at_source(f->ticket, why.code);
  book_->drop(number, true);
  to_scheduler_.done({number, to_status(why), false, tell_held(), 0, 0});
}

void rank_transfers::drop(const fetch_drop& m) {
  auto* f = book_ ? book_->find(m.number) : nullptr;
  if (f ? f->at != transfer_book::incoming::stage::here : m.number == 0) close_at_source(m.ticket, errc::cancelled);
  if (m.number == 0) return;
  if (book_) book_->drop(m.number, false);
  to_scheduler_.done({m.number, {errc::cancelled, "dropped"}, true, tell_held(), 0, 0});
}

void rank_transfers::close_at_source(const handoff_ticket& t, errc outcome) {
  if (t.kind != handoff_kind::pull) return;
  const transfer_close m{options_.identity.epoch, t.source.inc, t.transfer, outcome};
  if (t.source.node == options_.identity.node && t.source.inc == options_.identity.inc &&
      t.source.name == options_.assignment.seat() + "/rank") {
    (void)close(m);
    return;
  }
  // Without an answer the source's own patience ends it.
  with_source(
      t.source,
      [this, m](const rank_actor& source) {
        links_.ask(
            self_, source, transfer_ask, m, [](const ack&) {}, [](const error&) {});
      },
      [](const error&) {});
}

void rank_transfers::ticked(const tick& t) {
  if (!timer_.fired(t)) return;
  book_->expire(now(self_));
  for (uint64_t number : book_->slow(now(self_) - options_.fetch_patience))
    fail_fetch(number, {errc::timeout, "the pull takes longer than computing again"});
  freed();
  if (book_->has_offers() || book_->has_fetches()) arm();
}

}  // namespace troupe::actors
