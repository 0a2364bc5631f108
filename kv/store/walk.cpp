#include "kv/store/walk.hpp"

#include <algorithm>
#include <utility>

namespace troupe::kv {

extent_walk::extent_walk(const members& who, executor& home, size_t page) : home_(home), page_size_(page) {
  for (owner* o : who.owners) {
    if (std::find(who.away.begin(), who.away.end(), o->id()) == who.away.end()) owners_.push_back({o, {}, {}, false});
  }
  for (auto& [id, t] : who.targets) {
    (void)id;
    targets_.push_back({t, {}, std::nullopt, false});
  }
}

// Asks for the next page of every list of which nothing is left.
void extent_walk::fill(std::function<void()> then) {
  auto left = std::make_shared<size_t>(1);
  auto done = [left, then = std::move(then)] {
    if (--*left == 0) then();
  };
  for (auto& o : owners_) {
    if (!o.page.empty() || o.end) continue;
    ++*left;
    o.from->list(
        o.at, page_size_,
        [this, self = shared_from_this(), &o, done](result<std::pair<std::vector<index_change>, index_cursor>> r) {
          if (!r) {
            trouble_ = r.error();
            o.end = true;
          } else {
            o.page.assign(std::make_move_iterator(r->first.begin()), std::make_move_iterator(r->first.end()));
            o.at = r->second;
            o.end = r->second.done;
          }
          done();
        });
  }
  for (auto& t : targets_) {
    if (!t.page.empty() || t.end) continue;
    ++*left;
    t.from->list(t.after, page_size_, [this, self = shared_from_this(), &t, done](result<std::vector<shard_footer>> r) {
      if (!r) {
        absent_.insert(t.from->id());
        t.end = true;
      } else if (r->empty()) {
        t.end = true;
      } else {
        t.after = shard_key{r->back().extent.id, r->back().shard};
        t.page.assign(std::make_move_iterator(r->begin()), std::make_move_iterator(r->end()));
      }
      done();
    });
  }
  home_.post(done);
}

void extent_walk::next(reply<std::optional<found_extent>> done) {
  gather(std::make_shared<found_extent>(), std::move(done));
}

// Takes everything about the smallest id; a list whose page ends with it may go on with the same id, so it is filled
// and looked at once more. An owner's page may be empty before its end.
void extent_walk::gather(std::shared_ptr<found_extent> into, reply<std::optional<found_extent>> done) {
  fill([this, self = shared_from_this(), into, done = std::move(done)]() mutable {
    if (trouble_) return done(fail(*trouble_));
    const bool begun = into->id != extent_id{};
    bool again = false;
    if (!begun) {
      std::optional<extent_id> least;
      auto see = [&](const extent_id& id) { least = least ? std::min(*least, id) : id; };
      for (auto& o : owners_) {
        if (!o.page.empty())
          see(o.page.front().info.id);
        else
          again |= !o.end;
      }
      for (auto& t : targets_) {
        if (!t.page.empty())
          see(t.page.front().extent.id);
        else
          again |= !t.end;
      }
      if (again) return gather(into, std::move(done));
      if (!least) return done(std::optional<found_extent>{});
      into->id = *least;
    }
    for (auto& o : owners_) {
      while (!o.page.empty() && o.page.front().info.id == into->id) {
        into->records[o.from->id()] = std::move(o.page.front());
        o.page.pop_front();
      }
      again |= o.page.empty() && !o.end;
    }
    for (auto& t : targets_) {
      while (!t.page.empty() && t.page.front().extent.id == into->id) {
        into->shards.emplace_back(t.from->id(), std::move(t.page.front()));
        t.page.pop_front();
      }
      again |= t.page.empty() && !t.end;
    }
    if (again) return gather(into, std::move(done));
    done(std::optional<found_extent>(std::move(*into)));
  });
}

}  // namespace troupe::kv
