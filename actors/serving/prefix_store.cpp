#include "actors/serving/prefix_store.hpp"

#include <utility>

#include "actors/storage/store_client.hpp"

namespace troupe::actors {
namespace {

// Answers once, at the latest when nobody refers to it any more: a task that is dropped, a client that has ended.
class answer {
 public:
  answer(std::function<void(result<uint64_t>)> done, std::shared_ptr<const void> keep)
      : keep_(std::move(keep)), done_(std::move(done)) {}
  answer(const answer&) = delete;
  answer& operator=(const answer&) = delete;
  ~answer() {
    if (done_) give(fail(errc::unavailable, "the client of the store has ended"));
  }
  void give(result<uint64_t> r) {
    keep_.reset();
    auto done = std::exchange(done_, nullptr);
    done(std::move(r));
  }

 private:
  std::shared_ptr<const void> keep_;
  std::function<void(result<uint64_t>)> done_;
};

class session_store final : public prefix_store {
 public:
  explicit session_store(std::shared_ptr<store_session> session) : session_(std::move(session)) {}

  void match(std::vector<kv::block_hash> chain, std::function<void(result<uint64_t>)> done) override {
    post(std::make_shared<answer>(std::move(done), nullptr),
         [chain = std::move(chain)](kv::client& c, const std::shared_ptr<answer>& a) mutable {
           c.match(std::move(chain), [a](result<uint64_t> r) { a->give(std::move(r)); });
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
    post(std::make_shared<answer>(std::move(done), std::move(keep)),
         [r = std::move(r)](kv::client& c, const std::shared_ptr<answer>& a) mutable {
           c.get(std::move(r), [a](result<kv::get_chain_reply> got) {
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
    post(std::make_shared<answer>(std::move(done), std::move(keep)),
         [r = std::move(r)](kv::client& c, const std::shared_ptr<answer>& a) mutable {
           c.put(std::move(r), [a](result<kv::put_chain_reply> put) {
             if (!put) return a->give(fail(put.error()));
             a->give(uint64_t{put->stored});
           });
         });
  }

 private:
  template <class Call>
  void post(std::shared_ptr<answer> a, Call call) {
    session_->post([a = std::move(a), call = std::move(call)](store_state& s) mutable {
      if (!s.client) return a->give(fail(errc::unavailable, "no storage node has answered yet"));
      call(*s.client, a);
    });
  }

  const std::shared_ptr<store_session> session_;
};

}  // namespace

std::shared_ptr<prefix_store> make_prefix_store(std::shared_ptr<store_session> session) {
  return std::make_shared<session_store>(std::move(session));
}

}  // namespace troupe::actors
