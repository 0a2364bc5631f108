#include "kv/store/client.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kv/store/shares.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kv {

client::client(const client_options& options, members who, executor& home, worker& compute, const unix_clock& wall)
    : options_(options),
      who_(std::make_shared<const members>(std::move(who))),
      home_(home),
      compute_(compute),
      wall_(wall),
      pool_(32, options.memory),
      reads_(options.read_window),
      writes_(options.write_window),
      writer_(rng(options.seed, 0x6b76'7772'6974'6572).next()) {}

std::shared_ptr<void> client::begin() {
  ++open_;
  return std::shared_ptr<void>(static_cast<void*>(this), [](void* p) {
    auto* self = static_cast<client*>(p);
    if (--self->open_ > 0) return;
    for (auto& f : self->when_idle_) self->home_.post(std::move(f));
    self->when_idle_.clear();
  });
}

void client::idle(std::function<void()> done) {
  if (open_ == 0) return home_.post(std::move(done));
  when_idle_.push_back(std::move(done));
}

void client::set_members(members who) { who_ = std::make_shared<const members>(std::move(who)); }

bool client::may_hedge(uint64_t bytes) {
  // One extent's worth on top, so that the first slow read of a life can be helped too.
  const double allowed = options_.hedge_share * static_cast<double>(stats_.bytes_read) + (4u << 20);
  if (static_cast<double>(stats_.hedge_bytes + bytes) > allowed) return false;
  stats_.hedge_bytes += bytes;
  ++stats_.hedges;
  return true;
}

void client::raise(std::shared_ptr<const members> m, std::vector<block_hash> chain, uint64_t end,
                   policies::ttl_touch touch, traffic_class traffic, std::function<void(result<void>)> done) {
  auto shares = std::make_shared<const std::vector<slot_share>>(shares_of(*m, chain, 0, end));
  auto hashes = std::make_shared<const std::vector<block_hash>>(std::move(chain));
  auto left = std::make_shared<size_t>(1);
  auto ended = std::make_shared<std::function<void(result<void>)>>(std::move(done));
  auto outcome = std::make_shared<result<void>>();
  auto settle = [left, ended, outcome, m] {
    if (--*left == 0) (*ended)(std::move(*outcome));
  };
  owner_question<std::vector<index_change>> q;
  q.ask = [shares, hashes, touch, traffic](owner& o, const std::vector<size_t>& which,
                                           reply<std::vector<index_change>> back) {
    touch_request r;
    r.touch = touch;
    r.traffic = traffic;
    auto& run = r.runs.emplace_back();
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) run.push_back((*hashes)[s.first + b]);
    }
    o.touch(std::move(r), std::move(back));
  };
  q.take = [shares, left, settle](owner& o, const std::vector<size_t>& which, std::vector<index_change> changes) {
    ++*left;
    tell_replicas(*shares, which, o, changes, settle);
  };
  ask_owners<std::vector<index_change>>(shares, std::move(q), [outcome, settle](result<void> r) {
    *outcome = std::move(r);
    settle();
  });
}

void client::match(std::vector<block_hash> chain, reply<uint64_t> done) {
  find(std::move(chain), [done = std::move(done)](result<chain_match> r) {
    if (!r) return done(fail(std::move(r.error())));
    done(r->blocks);
  });
}

void client::find(std::vector<block_hash> chain, reply<chain_match> done) {
  ++stats_.matches;
  if (chain.empty()) {
    home_.post([done = std::move(done)] { done(chain_match{}); });
    return;
  }
  auto hashes = std::make_shared<const std::vector<block_hash>>(std::move(chain));
  auto m = who_;
  auto shares = std::make_shared<const std::vector<slot_share>>(shares_of(*m, *hashes, 0, hashes->size()));
  auto found = std::make_shared<chain_match>(chain_match{hashes->size(), {}});
  owner_question<match_reply> q;
  q.ask = [shares, hashes](owner& o, const std::vector<size_t>& which, reply<match_reply> back) {
    std::vector<match_slot> slots;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      slots.push_back({s.slot,
                       {hashes->begin() + static_cast<ptrdiff_t>(s.first),
                        hashes->begin() + static_cast<ptrdiff_t>(s.first + s.count)}});
    }
    o.match(std::move(slots), hashes->size(), std::move(back));
  };
  q.take = [shares, found](owner&, const std::vector<size_t>& which, match_reply r) {
    const auto& last = (*shares)[which.back()];
    // An owner that has all it was asked for says the end of its last slot, which says nothing about the other owners.
    if (r.first_missing < last.first + last.count) found->blocks = std::min(found->blocks, r.first_missing);
    for (const uint64_t block : r.snapshots) found->snapshots.push_back(block + 1);
  };
  ask_owners<match_reply>(shares, std::move(q), [found, m, held = begin(), done = std::move(done)](result<void> r) {
    if (!r) return done(fail(std::move(r.error())));
    std::erase_if(found->snapshots, [&](uint64_t blocks) { return blocks > found->blocks; });
    std::sort(found->snapshots.begin(), found->snapshots.end(), std::greater<>());
    done(std::move(*found));
  });
}

void client::lookup(std::vector<block_hash> chain, uint64_t first,
                    reply<std::vector<std::optional<block_place>>> done) {
  if (first > chain.size()) {
    home_.post([done = std::move(done)] { done(fail(errc::invalid_argument, "lookup from behind the chain's end")); });
    return;
  }
  auto hashes = std::make_shared<const std::vector<block_hash>>(std::move(chain));
  auto m = who_;
  auto shares = std::make_shared<const std::vector<slot_share>>(shares_of(*m, *hashes, first, hashes->size()));
  auto places = std::make_shared<std::vector<std::optional<block_place>>>(hashes->size() - first);
  owner_question<lookup_reply> q;
  q.ask = [shares, hashes](owner& o, const std::vector<size_t>& which, reply<lookup_reply> back) {
    lookup_request r;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) r.hashes.push_back((*hashes)[s.first + b]);
    }
    o.lookup(std::move(r), std::move(back));
  };
  q.take = [shares, places, first](owner&, const std::vector<size_t>& which, lookup_reply r) {
    size_t at = 0;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) (*places)[s.first + b - first] = r.blocks[at++];
    }
  };
  ask_owners<lookup_reply>(shares, std::move(q), [places, m, held = begin(), done = std::move(done)](result<void> r) {
    if (!r) return done(fail(std::move(r.error())));
    done(std::move(*places));
  });
}

void client::lengths(std::vector<block_hash> chain, reply<std::vector<uint32_t>> done) {
  auto hashes = std::make_shared<const std::vector<block_hash>>(std::move(chain));
  auto m = who_;
  auto shares = std::make_shared<const std::vector<slot_share>>(shares_of(*m, *hashes, 0, hashes->size()));
  auto found = std::make_shared<std::vector<uint32_t>>(hashes->size(), 0);  // 0: not there
  owner_question<lookup_reply> q;
  q.ask = [shares, hashes](owner& o, const std::vector<size_t>& which, reply<lookup_reply> back) {
    lookup_request r;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) r.hashes.push_back((*hashes)[s.first + b]);
    }
    o.lookup(std::move(r), std::move(back));
  };
  q.take = [shares, found](owner&, const std::vector<size_t>& which, lookup_reply r) {
    std::unordered_map<extent_id, const extent_info*> extents;
    for (const auto& e : r.extents) extents[e.info.id] = &e.info;
    size_t at = 0;
    for (size_t i : which) {
      const auto& s = (*shares)[i];
      for (uint32_t b = 0; b < s.count; ++b) {
        const auto& where = r.blocks[at++];
        const auto e = where ? extents.find(where->extent) : extents.end();
        if (e != extents.end() && where->ordinal < e->second->count)
          (*found)[s.first + b] = e->second->length(where->ordinal);
      }
    }
  };
  ask_owners<lookup_reply>(shares, std::move(q), [found, m, held = begin(), done = std::move(done)](result<void> r) {
    if (!r) return done(fail(std::move(r.error())));
    found->erase(std::find(found->begin(), found->end(), 0u), found->end());
    done(std::move(*found));
  });
}

}  // namespace troupe::kv
