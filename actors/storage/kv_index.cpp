#include "actors/storage/kv_index.hpp"

#include <unordered_map>
#include <utility>

#include "actors/protocol/messages.hpp"
#include "actors/storage/actor_executor.hpp"

namespace troupe::actors {
namespace {

enum index_timer : uint8_t { index_tick = 1, index_drain_timer = 2 };

// Lives as long as work on the pool does.
struct index_body {
  index_body(caf::local_actor* self, const kv_index_options& o)
      : keep(o.keep), home(self, index_tick), work(*o.blocking), owner(o.id, *o.index, work, home, *o.wall) {}
  std::shared_ptr<void> keep;  // first: goes last
  actor_executor home;
  kept_worker work;
  kv::local_owner owner;
};

class kv_index_state {
 public:
  using interface = kv_index_actor;
  static inline const char* name = "kv_index";
  explicit kv_index_state(interface::pointer self) : self_(self) {}
  ~kv_index_state() {
    if (body_) body_->home.close();
  }

  interface::behavior_type make_behavior(kv_index_options options) {
    options_ = std::move(options);
    body_ = std::make_shared<index_body>(self_, options_);
    body_->work.keep(body_);
    owner_ = &body_->owner;
    return {
        [this](const kv_match& m) { return match(m); },
        [this](const kv_lookup& m) { return lookup(m); },
        [this](const kv_index_put& m) {
          return changing<kv_index_put_reply, kv::put_reply>(
              m.from, [&](auto back) { owner_->put(m.extents, std::move(back)); },
              [](kv_index_put_reply& r, kv::put_reply& got) {
                r.winners = std::move(got.winners);
                r.recorded.assign(got.recorded.begin(), got.recorded.end());
                r.changes = std::move(got.changes);
              });
        },
        [this](const kv_apply& m) {
          return changing<ack, void>(m.from, [&](auto back) { owner_->apply(m.changes, std::move(back)); });
        },
        [this](const kv_touch& m) { return touch(m); },
        [this](const kv_release& m) { owner_->release(m.lease); },
        [this](const kv_lease_query& m) {
          return answer<kv_lease_reply, bool>([&](auto back) { owner_->is_live(m.lease, std::move(back)); },
                                              [](kv_lease_reply& r, bool& live) { r.live = live; });
        },
        [this](const kv_reclaim_query& m) {
          return answer<kv_reclaim_reply, kv::reclaim_plan>(
              [&](auto back) {
                if (m.evict_bytes == 0)
                  owner_->expired(m.limit, std::move(back));
                else
                  owner_->evict(m.evict_bytes, m.limit, std::move(back));
              },
              [](kv_reclaim_reply& r, kv::reclaim_plan& got) { r.plan = std::move(got); });
        },
        [this](const kv_describe& m) {
          return answer<kv_describe_reply, std::vector<kv::extent_info>>(
              [&](auto back) { owner_->describe(m.extents, std::move(back)); },
              [](kv_describe_reply& r, auto& got) { r.extents = std::move(got); });
        },
        [this](const kv_index_remove& m) {
          return changing<kv_index_remove_reply, kv::remove_reply>(
              m.from, [&](auto back) { owner_->remove(m.extents, m.why, std::move(back)); },
              [](kv_index_remove_reply& r, kv::remove_reply& got) { r.removed = std::move(got); });
        },
        [this](const kv_index_list& m) {
          return answer<kv_index_list_reply, std::pair<std::vector<kv::index_change>, kv::index_cursor>>(
              [&](auto back) { owner_->list(m.at, m.limit, std::move(back)); },
              [](kv_index_list_reply& r, auto& got) {
                r.changes = std::move(got.first);
                r.at = std::move(got.second);
              });
        },
        [this](const kv_restore& m) {
          return changing<kv_restore_reply, std::vector<kv::extent_id>>(
              m.from, [&](auto back) { owner_->restore(m.extents, std::move(back)); },
              [](kv_restore_reply& r, auto& got) { r.useless = std::move(got); });
        },
        [this](const kv_index_check& m) {
          return changing<kv_index_check_reply, std::pair<std::vector<kv::index_finding>, kv::index_cursor>>(
              m.from, [&](auto back) { owner_->check(m.at, m.limit, m.repair, std::move(back)); },
              [](kv_index_check_reply& r, auto& got) {
                r.findings = std::move(got.first);
                r.at = std::move(got.second);
              });
        },
        [this](const kv_stats_query&) {
          return answer<kv_stats_reply, kv::index_stats>([&](auto back) { owner_->stats(std::move(back)); },
                                                         [](kv_stats_reply& r, auto& got) { r.stats = got; });
        },
        [this](const cluster_view& v) { fence_.follow(v); },
        [this](const drain_request& m) { return drain(m); },
        [this](const tick& t) {
          if (body_->home.run(t)) return;
          if (drain_.fired(t)) drained();
        },
    };
  }

 private:
  // Asks the owner by `call` and answers with what `fill` makes of it.
  template <class Answer, class Got, class Call, class Fill>
  promise<Answer> answer(Call call, Fill fill) {
    auto p = self_->template make_response_promise<promise<Answer>>();
    if (auto full = admit(); !full.ok()) {
      Answer a{};
      a.outcome = full;
      p.deliver(std::move(a));
      return p;
    }
    ++open_;
    call(kv::reply<Got>([this, p, fill](result<Got> r) mutable {
      Answer a{};
      if (!r) {
        a.outcome = to_status(r.error());
      } else if constexpr (!std::is_void_v<Got>) {
        fill(a, *r);
      }
      p.deliver(std::move(a));
      if (--open_ == 0 && draining_) drained();
    }));
    return p;
  }

  template <class Answer, class Got, class Call, class Fill>
  promise<Answer> changing(const kv_origin& from, Call call, Fill fill) {
    if (auto s = fence_.check(from); !s.ok()) return refuse<Answer>(std::move(s));
    return answer<Answer, Got>(std::move(call), std::move(fill));
  }
  template <class Answer, class Got, class Call>
  promise<Answer> changing(const kv_origin& from, Call call) {
    return changing<Answer, Got>(from, std::move(call), [](auto&&...) {});
  }

  template <class Answer>
  promise<Answer> refuse(status s) {
    auto p = self_->template make_response_promise<promise<Answer>>();
    Answer a{};
    a.outcome = std::move(s);
    p.deliver(std::move(a));
    return p;
  }

  status admit() const {
    if (draining_) return {errc::unavailable, fmt::format("index owner {} is leaving", options_.id.value)};
    if (open_ >= options_.max_open)
      return {errc::exhausted,
              fmt::format("index owner {}: {} questions are under way, which is the limit", options_.id.value, open_)};
    return {};
  }

  promise<kv_match_reply> match(const kv_match& m) {
    auto hashes = unpack(m.hashes);
    if (!hashes) return refuse<kv_match_reply>(to_status(hashes.error()));
    std::vector<kv::match_slot> slots;
    size_t at = 0;
    bool good = m.slots.size() == m.counts.size();
    for (size_t i = 0; good && i < m.slots.size(); ++i) {
      const size_t n = m.counts[i];
      good = n >= 1 && n <= kv::slot_blocks && at + n <= hashes->size();
      if (!good) break;
      const auto begin = hashes->begin() + static_cast<ptrdiff_t>(at);
      slots.push_back({m.slots[i], {begin, begin + static_cast<ptrdiff_t>(n)}});
      at += n;
    }
    if (!good || at != hashes->size())
      return refuse<kv_match_reply>({errc::invalid_argument, "match: slots and hashes do not fit together"});
    // Snapshots are keyed by a block's hash, whatever slot it is in; the newest ones of what was asked for.
    std::vector<uint64_t> snapshots;
    if (options_.snapshots) {
      std::vector<uint64_t> positions;
      for (const auto& s : slots)
        for (size_t b = 0; b < s.hashes.size(); ++b) positions.push_back(s.number * kv::slot_blocks + b);
      size_t within = positions.size();
      while (within > 0 && positions[within - 1] >= m.limit) --within;
      for (size_t i : options_.snapshots->newest(std::span(*hashes).first(within), 3))
        snapshots.push_back(positions[i]);
    }
    return answer<kv_match_reply, kv::match_reply>(
        [&](auto back) { owner_->match(std::move(slots), m.limit, std::move(back)); },
        [snapshots = std::move(snapshots)](kv_match_reply& r, kv::match_reply& got) {
          r.first_missing = got.first_missing;
          r.probes = got.probes;
          for (uint64_t s : snapshots)
            if (s < got.first_missing) r.snapshots.push_back(s);
        });
  }

  promise<kv_lookup_reply> lookup(const kv_lookup& m) {
    auto hashes = unpack(m.hashes);
    if (!hashes) return refuse<kv_lookup_reply>(to_status(hashes.error()));
    return answer<kv_lookup_reply, kv::lookup_reply>(
        [&](auto back) {
          owner_->lookup({std::move(*hashes), m.lease}, std::move(back));
        },
        [](kv_lookup_reply& r, kv::lookup_reply& got) {
          std::unordered_map<kv::extent_id, uint32_t> numbers;
          r.at.reserve(got.blocks.size());
          for (const auto& b : got.blocks) {
            if (!b) {
              r.at.push_back(0);
              continue;
            }
            auto [it, fresh] = numbers.emplace(b->extent, static_cast<uint32_t>(r.ids.size()));
            if (fresh) r.ids.push_back(b->extent);
            r.at.push_back(1 + kv::slot_blocks * it->second + b->ordinal);
          }
          r.extents = std::move(got.extents);
          r.lease = got.lease;
        });
  }

  promise<kv_touch_reply> touch(const kv_touch& m) {
    auto hashes = unpack(m.hashes);
    if (!hashes) return refuse<kv_touch_reply>(to_status(hashes.error()));
    kv::touch_request t;
    t.touch = m.touch;
    t.traffic = m.traffic;
    size_t at = 0;
    for (uint32_t n : m.runs) {
      if (n > hashes->size() - at)
        return refuse<kv_touch_reply>({errc::invalid_argument, "touch: runs and hashes do not fit together"});
      const auto begin = hashes->begin() + static_cast<ptrdiff_t>(at);
      t.runs.emplace_back(begin, begin + static_cast<ptrdiff_t>(n));
      at += n;
    }
    return changing<kv_touch_reply, std::vector<kv::index_change>>(
        m.from, [&](auto back) { owner_->touch(std::move(t), std::move(back)); },
        [](kv_touch_reply& r, auto& got) { r.changes = std::move(got); });
  }

  promise<drain_reply> drain(const drain_request& m) {
    auto p = self_->make_response_promise<promise<drain_reply>>();
    drains_.push_back(p);
    draining_ = true;
    if (open_ == 0)
      drained();
    else
      drain_.arm(self_, std::chrono::milliseconds(m.deadline_ms));
    return p;
  }

  void drained() {
    for (auto& p : drains_) p.deliver(drain_reply{{open_ ? errc::timeout : errc{}, ""}, open_});
    drains_.clear();
    drain_.stop();
  }

  interface::pointer self_;
  kv_index_options options_;
  std::shared_ptr<index_body> body_;
  kv::owner* owner_ = nullptr;  // in body_
  kv_fence fence_;
  uint32_t open_ = 0;  // at most max_open
  bool draining_ = false;
  std::vector<promise<drain_reply>> drains_;
  timer drain_{index_drain_timer};
};

}  // namespace

kv_index_actor spawn_kv_index(caf::local_actor* parent, kv_index_options options) {
  return spawn<kv_index_state>(parent, std::move(options));
}

}  // namespace troupe::actors
