#include "actors/serving/transfer_book.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe::actors {

using kernels::page_owner;

std::optional<uint32_t> transfer_book::take_place() {
  const auto it = std::find(used_.begin(), used_.end(), false);
  if (it == used_.end()) return std::nullopt;
  *it = true;
  return static_cast<uint32_t>(it - used_.begin());
}

void transfer_book::free_place(uint32_t place) {
  TROUPE_CHECK(place < used_.size() && used_[place], "handoff place {} is free", place);
  used_[place] = false;
}

uint64_t transfer_book::offer(std::vector<kernels::page_id> pages, const kernels::sequence_export& what, uint32_t place,
                              nanoseconds now) {
  TROUPE_CHECK(pages.size() == what.page_checksums.size(), "{} pages with {} checksums", pages.size(),
               what.page_checksums.size());
  pool_.add_owner(pages, page_owner::transfer);
  outgoing o;
  for (auto p : pages) o.generations.push_back(pool_.generation(p));
  o.pages = std::move(pages);
  o.what = what;
  o.place = place;
  o.deadline = now + offer_patience;
  ++counts_.out;
  out_.emplace(next_, std::move(o));
  return next_++;
}

transfer_grant transfer_book::open(uint64_t transfer, uint64_t puller, nanoseconds now) {
  transfer_grant g;
  const auto it = out_.find(transfer);
  if (it == out_.end() || (it->second.puller != 0 && it->second.puller != puller)) {
    ++counts_.stale;
    g.outcome = {errc::stale, it == out_.end() ? "the transfer was let go, or never was" : "another rank pulls it"};
    return g;
  }
  outgoing& o = it->second;
  o.puller = puller;
  o.deadline = now + send_patience;
  g.rows = o.what.rows;
  for (size_t i = 0; i < o.pages.size(); ++i) {
    TROUPE_CHECK(pool_.generation(o.pages[i]) == o.generations[i], "page {} of transfer {} was given away",
                 o.pages[i].value, transfer);
    g.pages.push_back({o.pages[i], o.generations[i], o.what.page_checksums[i]});
  }
  g.state_place = o.place;
  g.state_bytes = o.what.state_bytes;
  g.state_checksum = o.what.state_checksum;
  return g;
}

transfer_book::out_iterator transfer_book::let_go(out_iterator it, uint64_t& reason) {
  pool_.release(it->second.pages, page_owner::transfer);
  free_place(it->second.place);
  ++reason;
  return out_.erase(it);
}

bool transfer_book::close(uint64_t transfer, errc outcome) {
  const auto it = out_.find(transfer);
  if (it == out_.end()) return false;
  let_go(it, outcome == errc{} ? counts_.out_done : counts_.out_dropped);
  return true;
}

void transfer_book::puller_lost(uint64_t puller) {
  for (auto it = out_.begin(); it != out_.end();)
    it = it->second.puller == puller ? let_go(it, counts_.out_dropped) : std::next(it);
}

void transfer_book::expire(nanoseconds now) {
  for (auto it = out_.begin(); it != out_.end();)
    it = it->second.deadline <= now ? let_go(it, counts_.out_expired) : std::next(it);
}

result<void> transfer_book::begin(uint64_t number, const handoff_ticket& ticket, uint32_t pages, nanoseconds now) {
  TROUPE_CHECK(!in_.contains(number), "fetch {} twice", number);
  const auto place = take_place();
  if (!place) return fail(errc::exhausted, "every place of the handoff memory is in use");
  auto taken = pool_.take(pages);
  if (!taken) {
    free_place(*place);
    return fail(taken.error());
  }
  pool_.add_owner(*taken, page_owner::transfer);
  ++counts_.in;
  incoming i;
  i.ticket = ticket;
  i.pages = std::move(*taken);
  i.place = *place;
  i.since = now;
  in_.emplace(number, std::move(i));
  return {};
}

transfer_book::incoming* transfer_book::find(uint64_t number) {
  const auto it = in_.find(number);
  return it == in_.end() ? nullptr : &it->second;
}

void transfer_book::pulling(uint64_t number) { in_.at(number).at = incoming::stage::pulling; }

void transfer_book::erase(std::map<uint64_t, incoming>::iterator it) {
  free_place(it->second.place);
  in_.erase(it);
}

bool transfer_book::arrived(uint64_t number, bool whole, uint64_t bytes, nanoseconds now) {
  const auto it = in_.find(number);
  TROUPE_CHECK(it != in_.end() && it->second.at == incoming::stage::pulling, "fetch {} was not being pulled", number);
  incoming& i = it->second;
  pool_.release(i.pages, page_owner::transfer);
  i.at = incoming::stage::here;
  if (i.wanted && whole) {
    ++counts_.in_done;
    counts_.bytes_in += bytes;
    counts_.nanoseconds_in += (now - i.since).count();
    return true;
  }
  if (i.wanted) {
    ++counts_.in_failed;
    pool_.release(i.pages, page_owner::request);
  }
  erase(it);
  return false;
}

void transfer_book::drop(uint64_t number, bool failed) {
  const auto it = in_.find(number);
  if (it == in_.end() || !it->second.wanted) return;
  incoming& i = it->second;
  if (i.at != incoming::stage::here) ++(failed ? counts_.in_failed : counts_.in_dropped);
  pool_.release(i.pages, page_owner::request);
  i.wanted = false;
  if (i.at == incoming::stage::pulling) return;  // the transport still writes into them
  if (i.at == incoming::stage::asking) pool_.release(i.pages, page_owner::transfer);
  erase(it);
}

std::vector<uint64_t> transfer_book::slow(nanoseconds since) const {
  std::vector<uint64_t> out;
  for (const auto& [number, i] : in_)
    if (i.wanted && i.at != incoming::stage::here && i.since <= since) out.push_back(number);
  return out;
}

std::optional<kernels::sequence_import> transfer_book::take(uint64_t number) {
  const auto it = in_.find(number);
  if (it == in_.end() || it->second.at != incoming::stage::here) return std::nullopt;
  kernels::sequence_import out{it->second.ticket.rows, it->second.place, std::move(it->second.pages)};
  in_.erase(it);
  return out;
}

uint32_t transfer_book::wanted_pages() const {
  size_t n = 0;
  for (const auto& [number, i] : in_) n += i.wanted ? i.pages.size() : 0;
  return static_cast<uint32_t>(n);
}

transfer_counts transfer_book::counts(uint32_t others) const {
  transfer_counts c = counts_;
  size_t pages = 0;
  for (const auto& [transfer, o] : out_) {
    ++(o.puller == 0 ? c.offered : c.sending);
    pages += o.pages.size();
  }
  for (const auto& [number, i] : in_) {
    c.fetching += i.at != incoming::stage::here;
    pages += i.at != incoming::stage::here ? i.pages.size() : 0;
  }
  TROUPE_CHECK(pages + others == pool_.owned(page_owner::transfer), "{} pages in transfers, the pool counts {}",
               pages + others, pool_.owned(page_owner::transfer));
  c.places = static_cast<uint32_t>(used_.size());
  c.places_free = static_cast<uint32_t>(std::count(used_.begin(), used_.end(), false));
  return c;
}

}  // namespace troupe::actors
