// A chain split over index owners, and questions to several owners at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/store/members.hpp"

namespace troupe::kv {

/// The blocks of one slot that a question is about, and the slot's owners, primary first.
struct slot_share {
  uint64_t slot = 0;
  uint64_t first = 0;  // position of its first block that is meant
  uint32_t count = 0;
  std::vector<owner*> owners;
};

/// Shares of the blocks [from, to) of a chain that is given from block 0 on; ascending.
std::vector<slot_share> shares_of(const members& who, std::span<const block_hash> chain, uint64_t from, uint64_t to);

/// What is asked of one owner about some shares (indices, ascending), and what to do with its answer.
template <class Answer>
struct owner_question {
  std::function<void(owner&, const std::vector<size_t>&, reply<Answer>)> ask;
  std::function<void(owner&, const std::vector<size_t>&, Answer)> take;
};

namespace detail {
template <class Answer>
struct asking : std::enable_shared_from_this<asking<Answer>> {
  std::shared_ptr<const std::vector<slot_share>> shares;
  owner_question<Answer> question;
  std::function<void(result<void>)> done;
  size_t open = 1;
  std::optional<error> trouble;

  void settle() {
    if (--open > 0) return;
    if (trouble) return done(fail(std::move(*trouble)));
    done({});
  }
  // Everything in `which` goes to its owner number `attempt`.
  void send(const std::vector<size_t>& which, size_t attempt, std::optional<error> before) {
    std::map<owner_id, std::pair<owner*, std::vector<size_t>>> by_owner;
    for (size_t i : which) {
      const auto& owners = (*shares)[i].owners;
      if (attempt >= owners.size()) {
        trouble = before ? *before : error{errc::unavailable, "the store has no index owner"};
        continue;
      }
      auto& group = by_owner[owners[attempt]->id()];
      group.first = owners[attempt];
      group.second.push_back(i);
    }
    for (auto& [id, group] : by_owner) {
      (void)id;
      ++open;
      owner* o = group.first;
      question.ask(*o, group.second,
                   [self = this->shared_from_this(), o, mine = group.second, attempt](result<Answer> r) {
                     if (r) {
                       self->question.take(*o, mine, std::move(*r));
                     } else if (r.error().code == errc::invalid_argument) {
                       self->trouble = r.error();  // another owner would say the same
                     } else {
                       self->send(mine, attempt + 1, r.error());
                     }
                     self->settle();
                   });
    }
  }
};
}  // namespace detail

/// Asks every primary owner about its shares, all at once, and where one cannot answer its replicas in turn. `done`
/// comes once, after all answers were taken; its error is the last of a share that nobody could answer for. May call
/// `done` before it returns when there is nothing to ask.
template <class Answer>
void ask_owners(std::shared_ptr<const std::vector<slot_share>> shares, owner_question<Answer> question,
                std::function<void(result<void>)> done) {
  auto a = std::make_shared<detail::asking<Answer>>();
  a->shares = shares;
  a->question = std::move(question);
  a->done = std::move(done);
  std::vector<size_t> all(shares->size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  a->send(all, 0, std::nullopt);
  a->settle();
}

/// Tells what the primary changed to the other owners of these shares. Comes back when all have answered; those that
/// cannot are left behind (scrub brings them up to date).
void tell_replicas(const std::vector<slot_share>& shares, const std::vector<size_t>& which, const owner& primary,
                   const std::vector<index_change>& changes, std::function<void()> done);

}  // namespace troupe::kv
