#include "actors/serving/prefix_store.hpp"

#include <atomic>
#include <utility>

#include "actors/storage/snapshot_client.hpp"
#include "actors/storage/store_client.hpp"

namespace troupe::actors {
namespace {

// One kind of call that is under way.
struct call_count {
  std::atomic<uint32_t> calls{0};
  std::atomic<uint64_t> bytes{0};
};
struct call_counts {
  call_count matches, reads, writes, snapshots;
};

// Answers once, at the latest when nobody refers to it any more: a task that is dropped, a client that has ended.
template <class T>
class answer {
 public:
  answer(std::function<void(result<T>)> done, std::shared_ptr<call_counts> all, call_count& kind, uint64_t bytes,
         std::shared_ptr<const void> keep)
      : keep_(std::move(keep)), done_(std::move(done)), all_(std::move(all)), kind_(kind), bytes_(bytes) {
    kind_.calls += 1;
    kind_.bytes += bytes_;
  }
  answer(const answer&) = delete;
  answer& operator=(const answer&) = delete;
  ~answer() {
    if (done_) give(fail(errc::unavailable, "the client of the store has ended"));
  }
  void give(result<T> r) {
    keep_.reset();
    kind_.calls -= 1;
    kind_.bytes -= bytes_;
    auto done = std::exchange(done_, nullptr);
    done(std::move(r));
  }

 private:
  std::shared_ptr<const void> keep_;
  std::function<void(result<T>)> done_;
  const std::shared_ptr<call_counts> all_;
  call_count& kind_;
  const uint64_t bytes_;
};

template <class Spans>
uint64_t bytes_in(const Spans& spans) {
  uint64_t sum = 0;
  for (const auto& s : spans) sum += s.size();
  return sum;
}

class session_store final : public prefix_store {
 public:
  explicit session_store(std::shared_ptr<store_session> session) : session_(std::move(session)) {}

  void match(std::vector<kv::block_hash> chain, std::function<void(result<prefix_match>)> done) override {
    auto a = make(std::move(done), counts_->matches);
    post(std::move(a), [chain = std::move(chain)](store_state& s, const auto& a) mutable {
      s.client->find(std::move(chain), [a](result<kv::chain_match> r) {
        if (!r) return a->give(fail(r.error()));
        a->give(prefix_match{r->blocks, {r->snapshots.begin(), r->snapshots.end()}});
      });
    });
  }

  void read(std::vector<kv::block_hash> chain, std::vector<std::span<std::byte>> into, kv::traffic_class traffic,
            nanoseconds deadline, std::shared_ptr<const void> keep,
            std::function<void(result<uint64_t>)> done) override {
    kv::get_chain_request r;
    r.chain = std::move(chain);
    r.into = std::move(into);
    r.traffic = traffic;
    r.deadline = deadline;
    auto a = make(std::move(done), counts_->reads, bytes_in(r.into), std::move(keep));
    post(std::move(a), [r = std::move(r)](store_state& s, const auto& a) mutable {
      s.client->get(std::move(r), [a](result<kv::get_chain_reply> got) {
        if (!got) return a->give(fail(got.error()));
        if (got->blocks > 0) return a->give(uint64_t{got->blocks});
        a->give(fail(got->stopped.value_or(error{errc::not_found, "no block of the chain is there"})));
      });
    });
  }

  void write(std::vector<kv::block_hash> chain, uint64_t first, std::vector<std::span<const std::byte>> blocks,
             kv::traffic_class traffic, std::shared_ptr<const void> keep,
             std::function<void(result<uint64_t>)> done) override {
    kv::put_chain_request r;
    r.chain = std::move(chain);
    r.first = first;
    r.blocks = std::move(blocks);
    r.traffic = traffic;
    auto a = make(std::move(done), counts_->writes, bytes_in(r.blocks), std::move(keep));
    post(std::move(a), [r = std::move(r)](store_state& s, const auto& a) mutable {
      s.client->put(std::move(r), [a](result<kv::put_chain_reply> put) {
        if (!put) return a->give(fail(put.error()));
        a->give(uint64_t{put->stored});
      });
    });
  }

  void put_snapshot(snapshot_offer offer, std::function<void(result<void>)> done) override {
    auto a = make(std::move(done), counts_->snapshots);
    post(std::move(a), [offer = std::move(offer)](store_state& s, const auto& a) mutable {
      s.snapshots->put(std::move(offer), [a](result<void> r) { a->give(std::move(r)); });
    });
  }

  void open_snapshot(snapshot_key key, std::function<void(result<snapshot_source>)> done) override {
    auto a = make(std::move(done), counts_->snapshots);
    post(std::move(a), [key](store_state& s, const auto& a) {
      s.snapshots->open(key, [a](result<snapshot_source> r) { a->give(std::move(r)); });
    });
  }

  void close_snapshot(uint32_t seat, uint64_t ticket) override {
    session_->post([seat, ticket](store_state& s) {
      if (s.snapshots) s.snapshots->close(seat, ticket);
    });
  }

  store_load load() const override {
    const auto& c = *counts_;
    return {c.matches.calls, c.reads.calls, c.writes.calls, c.snapshots.calls, c.reads.bytes, c.writes.bytes};
  }

 private:
  template <class T>
  std::shared_ptr<answer<T>> make(std::function<void(result<T>)> done, call_count& kind, uint64_t bytes = 0,
                                  std::shared_ptr<const void> keep = nullptr) {
    return std::make_shared<answer<T>>(std::move(done), counts_, kind, bytes, std::move(keep));
  }

  template <class T, class Call>
  void post(std::shared_ptr<answer<T>> a, Call call) {
    session_->post([a = std::move(a), call = std::move(call)](store_state& s) mutable {
      if (!s.client) return a->give(fail(errc::unavailable, "no storage node has answered yet"));
      call(s, a);
    });
  }

  const std::shared_ptr<store_session> session_;
  const std::shared_ptr<call_counts> counts_ = std::make_shared<call_counts>();
};

}  // namespace

std::shared_ptr<prefix_store> make_prefix_store(std::shared_ptr<store_session> session) {
  return std::make_shared<session_store>(std::move(session));
}

}  // namespace troupe::actors
