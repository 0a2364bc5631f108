#include <algorithm>

#include "actors/protocol/messages.hpp"
#include "actors/storage/remote.hpp"

namespace troupe::actors {
namespace {

class remote_owner final : public kv::owner {
 public:
  remote_owner(kv::owner_id id, std::shared_ptr<store_peer> peer, std::shared_ptr<remote_store> store)
      : id_(id), peer_(std::move(peer)), store_(std::move(store)) {}
  kv::owner_id id() const override { return id_; }

  void lookup(kv::lookup_request request, kv::reply<kv::lookup_reply> done) override {
    kv_lookup m;
    m.hashes = pack(request.hashes);
    m.lease = request.lease;
    ask<kv_lookup_reply>(std::move(m), std::move(done),
                         [n = request.hashes.size()](const kv_lookup_reply& a) -> result<kv::lookup_reply> {
                           kv::lookup_reply r;
                           if (a.at.size() != n) return strange("lookup");
                           r.blocks.reserve(n);
                           for (uint32_t at : a.at) {
                             if (at == 0) {
                               r.blocks.emplace_back();
                               continue;
                             }
                             const uint32_t extent = (at - 1) / kv::slot_blocks;
                             if (extent >= a.ids.size()) return strange("lookup");
                             r.blocks.push_back(kv::block_place{a.ids[extent], (at - 1) % kv::slot_blocks});
                           }
                           r.extents = a.extents;
                           r.lease = a.lease;
                           return r;
                         });
  }

  void match(std::vector<kv::match_slot> slots, uint64_t limit, kv::reply<kv::match_reply> done) override {
    kv_match m;
    m.limit = limit;
    std::vector<kv::block_hash> hashes;
    for (const auto& s : slots) {
      m.slots.push_back(s.number);
      m.counts.push_back(static_cast<uint8_t>(s.hashes.size()));
      hashes.insert(hashes.end(), s.hashes.begin(), s.hashes.end());
    }
    m.hashes = pack(hashes);
    ask<kv_match_reply>(std::move(m), std::move(done), [](const kv_match_reply& a) -> result<kv::match_reply> {
      return kv::match_reply{a.first_missing, {}, a.probes, a.snapshots};
    });
  }

  void put(std::vector<kv::extent_info> extents, kv::reply<kv::put_reply> done) override {
    kv_index_put m;
    m.extents = std::move(extents);
    ask<kv_index_put_reply>(std::move(m), std::move(done), [](const kv_index_put_reply& a) -> result<kv::put_reply> {
      return kv::put_reply{a.winners, {a.recorded.begin(), a.recorded.end()}, a.changes};
    });
  }

  void apply(std::vector<kv::index_change> changes, kv::reply<void> done) override {
    kv_apply m;
    m.changes = std::move(changes);
    ask<ack>(std::move(m), std::move(done), [](const ack&) -> result<void> { return {}; });
  }

  void touch(kv::touch_request request, kv::reply<std::vector<kv::index_change>> done) override {
    kv_touch m;
    std::vector<kv::block_hash> hashes;
    for (const auto& run : request.runs) {
      m.runs.push_back(static_cast<uint32_t>(run.size()));
      hashes.insert(hashes.end(), run.begin(), run.end());
    }
    m.hashes = pack(hashes);
    m.touch = request.touch;
    m.traffic = request.traffic;
    ask<kv_touch_reply>(std::move(m), std::move(done),
                        [](const kv_touch_reply& a) -> result<std::vector<kv::index_change>> { return a.changes; });
  }

  void release(uint64_t lease) override {
    if (peer_->up) tell(store_->self, peer_->index, kv_release{lease});
  }

  void is_live(uint64_t lease, kv::reply<bool> done) override {
    ask<kv_lease_reply>(kv_lease_query{lease}, std::move(done),
                        [](const kv_lease_reply& a) -> result<bool> { return a.live; });
  }

  void expired(size_t limit, kv::reply<kv::reclaim_plan> done) override {
    ask<kv_reclaim_reply>(kv_reclaim_query{0, limit}, std::move(done),
                          [](const kv_reclaim_reply& a) -> result<kv::reclaim_plan> { return a.plan; });
  }

  void evict(uint64_t bytes, size_t limit, kv::reply<kv::reclaim_plan> done) override {
    ask<kv_reclaim_reply>(kv_reclaim_query{std::max<uint64_t>(bytes, 1), limit}, std::move(done),
                          [](const kv_reclaim_reply& a) -> result<kv::reclaim_plan> { return a.plan; });
  }

  void describe(std::vector<kv::extent_id> extents, kv::reply<std::vector<kv::extent_info>> done) override {
    ask<kv_describe_reply>(
        kv_describe{std::move(extents)}, std::move(done),
        [](const kv_describe_reply& a) -> result<std::vector<kv::extent_info>> { return a.extents; });
  }

  void remove(std::vector<kv::extent_id> extents, kv::remove_why why, kv::reply<kv::remove_reply> done) override {
    kv_index_remove m;
    m.extents = std::move(extents);
    m.why = why;
    ask<kv_index_remove_reply>(std::move(m), std::move(done),
                               [](const kv_index_remove_reply& a) -> result<kv::remove_reply> { return a.removed; });
  }

  void list(kv::index_cursor at, size_t limit,
            kv::reply<std::pair<std::vector<kv::index_change>, kv::index_cursor>> done) override {
    using page = std::pair<std::vector<kv::index_change>, kv::index_cursor>;
    ask<kv_index_list_reply>(kv_index_list{std::move(at), limit}, std::move(done),
                             [](const kv_index_list_reply& a) -> result<page> {
                               return page{a.changes, a.at};
                             });
  }

  void restore(std::vector<kv::extent_info> extents, kv::reply<std::vector<kv::extent_id>> done) override {
    kv_restore m;
    m.extents = std::move(extents);
    ask<kv_restore_reply>(std::move(m), std::move(done),
                          [](const kv_restore_reply& a) -> result<std::vector<kv::extent_id>> { return a.useless; });
  }

  void check(kv::index_cursor at, size_t limit, bool repair,
             kv::reply<std::pair<std::vector<kv::index_finding>, kv::index_cursor>> done) override {
    using page = std::pair<std::vector<kv::index_finding>, kv::index_cursor>;
    kv_index_check m;
    m.at = std::move(at);
    m.limit = limit;
    m.repair = repair;
    ask<kv_index_check_reply>(std::move(m), std::move(done), [](const kv_index_check_reply& a) -> result<page> {
      return page{a.findings, a.at};
    });
  }

  void stats(kv::reply<kv::index_stats> done) override {
    ask<kv_stats_reply>(kv_stats_query{}, std::move(done),
                        [](const kv_stats_reply& a) -> result<kv::index_stats> { return a.stats; });
  }

 private:
  static tl::unexpected<error> strange(const char* what) {
    return fail(errc::corrupt, "the answer to a {} does not fit the question", what);
  }

  template <class Answer, class Request, class Got, class Convert>
  void ask(Request request, kv::reply<Got> done, Convert convert) {
    store_->call<Answer>(peer_, peer_->index, std::move(request), [done = std::move(done), convert](result<Answer> a) {
      if (!a) return done(fail(std::move(a.error())));
      done(convert(*a));
    });
  }

  const kv::owner_id id_;
  const std::shared_ptr<store_peer> peer_;
  const std::shared_ptr<remote_store> store_;
};

}  // namespace

std::unique_ptr<kv::owner> make_remote_owner(kv::owner_id id, std::shared_ptr<store_peer> peer,
                                             std::shared_ptr<remote_store> store) {
  return std::make_unique<remote_owner>(id, std::move(peer), std::move(store));
}

}  // namespace troupe::actors
