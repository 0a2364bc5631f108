// Targets and index owners of other nodes behind the interfaces of kv/store: messages for the words, the transport for
// the bytes. All of it belongs to one store_client actor and runs in its handlers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "actors/protocol/storage.hpp"
#include "actors/storage/actor_executor.hpp"
#include "actors/storage/staging.hpp"
#include "kv/device/aligned_buffer.hpp"
#include "kv/store/owner.hpp"
#include "kv/store/target.hpp"

namespace troupe::actors {

/// One storage node as a client sees it.
struct store_peer {
  uint32_t seat = 0;
  node_number node;
  incarnation inc;
  bool up = false;
  std::string why = "it has not been reached yet";  // unless up
  kv_index_actor index;
  std::map<kv::target_id, storage_target_actor> targets;  // that are there
  scrubber_actor scrubber;
  any_handle tier;      // a kv_tier (protocol/tier.hpp); null: it keeps no window snapshots
  std::string address;  // on the data plane
  std::optional<transport::peer_id> plane;
};

/// Memory of shards that are being written, allocated by the transport, so that targets pull from where it lies.
/// Thread safe.
class region_book : public std::enable_shared_from_this<region_book> {
 public:
  explicit region_book(std::shared_ptr<transport::transport> plane) : plane_(std::move(plane)) {}
  /// From the heap when the transport has none left.
  kv::aligned_buffer allocate(size_t bytes);
  /// The region that holds these bytes, and where in it; nothing for other memory.
  std::optional<std::pair<transport::region_ptr, uint64_t>> find(std::span<const std::byte> bytes) const;

 private:
  const std::shared_ptr<transport::transport> plane_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<transport::memory_region>> regions_;  // protected by mutex_; by address
};

/// What the remote parts of one client share.
struct remote_store {
  store_client_actor::pointer self = nullptr;
  peer_links* links = nullptr;  // of the actor's state; used in its handlers only
  std::shared_ptr<actor_executor> home;
  kv::worker* compute = nullptr;  // checksums and copies of large pieces
  std::shared_ptr<transport::transport> plane;
  std::shared_ptr<region_book> book;
  std::unique_ptr<staging> room;  // what is pulled arrives here
  std::weak_ptr<void> body;       // holds all of this: calls under way keep it
  kv_origin origin;               // epoch as of the newest view
  nanoseconds timeout{std::chrono::seconds(10)};
  nanoseconds stale_wait{std::chrono::milliseconds(25)};  // until a node, or this one, has got the new view
  uint32_t stale_tries = 80;
  uint32_t open = 0, open_max = 8192;  // questions under way; one more is `exhausted`

  /// Asks `to` of that node. Errors: unavailable at once when the node is away or goes, and what the answer says.
  /// `stale` is tried again with the epoch of then, because a view reaches everybody within moments.
  template <class Answer, class Handle, class Request>
  void call(std::shared_ptr<store_peer> peer, const Handle& to, Request request, kv::reply<Answer> done);

 private:
  // Goes before what it uses.
  template <class Answer>
  struct held {
    std::shared_ptr<void> keep;
    kv::reply<Answer> done;
  };
  template <class Answer, class Handle, class Request>
  void send(std::shared_ptr<store_peer> peer, Handle to, Request request, std::shared_ptr<held<Answer>> h,
            uint32_t attempt);
};

/// See the class.
template <class Answer, class Handle, class Request>
void remote_store::call(std::shared_ptr<store_peer> peer, const Handle& to, Request request, kv::reply<Answer> done) {
  auto h = std::make_shared<held<Answer>>(held<Answer>{body.lock(), std::move(done)});
  if (!peer->up || !to) {
    home->post([h, why = fmt::format("storage node {}: {}", peer->seat, peer->why)] {
      h->done(fail(errc::unavailable, "{}", why));
    });
  } else if (open >= open_max) {
    home->post(
        [h, n = open] { h->done(fail(errc::exhausted, "{} questions to the store are under way, the limit", n)); });
  } else {
    ++open;
    send<Answer>(std::move(peer), to, std::move(request), std::move(h), 0);
  }
}

/// One attempt; see the class.
template <class Answer, class Handle, class Request>
void remote_store::send(std::shared_ptr<store_peer> peer, Handle to, Request request, std::shared_ptr<held<Answer>> h,
                        uint32_t attempt) {
  constexpr bool fenced = requires { request.from; };
  if constexpr (fenced) request.from = origin;
  auto again = [this, peer, to, h, attempt](auto r) mutable {
    home->post_after(stale_wait,
                     [this, peer, to, h, attempt, r = std::move(r)] { send<Answer>(peer, to, r, h, attempt + 1); });
  };
  auto kept = [&] {
    if constexpr (fenced)
      return request;
    else
      return 0;
  }();
  links->ask(
      self, to, timeout, std::move(request),
      [this, peer, h, again, kept = std::move(kept), attempt](const Answer& a) mutable {
        if constexpr (fenced) {
          if (a.outcome.code == errc::stale && attempt < stale_tries && peer->up) return again(std::move(kept));
        }
        --open;
        if (!a.outcome.ok()) return h->done(fail(error{a.outcome.code, a.outcome.text}));
        h->done(a);
      },
      [this, peer, h](const error& e) {
        --open;
        h->done(fail(errc::unavailable, "storage node {}: {}", peer->seat, e.message));
      });
}

/// A target of another node.
std::unique_ptr<kv::target> make_remote_target(kv::target_id id, std::shared_ptr<store_peer> peer,
                                               std::shared_ptr<remote_store> store);
/// An index owner of another node.
std::unique_ptr<kv::owner> make_remote_owner(kv::owner_id id, std::shared_ptr<store_peer> peer,
                                             std::shared_ptr<remote_store> store);

}  // namespace troupe::actors
