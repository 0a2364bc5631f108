#include "kv/store/catch_up.hpp"

#include <algorithm>
#include <memory>

#include "kv/store/flow.hpp"

namespace troupe::kv {
namespace {

constexpr size_t page = 256;

flow run(std::shared_ptr<members> who, owner_id self, reply<catch_up_report> done) {
  using records = std::pair<std::vector<index_change>, index_cursor>;
  catch_up_report out;
  const auto mine = std::find_if(who->owners.begin(), who->owners.end(), [&](owner* o) { return o->id() == self; });
  if (mine == who->owners.end()) {
    done(fail(errc::invalid_argument, "index owner {} is no member", self.value));
    co_return;
  }
  owner* me = *mine;
  for (owner* other : who->owners) {
    if (other == me || std::find(who->away.begin(), who->away.end(), other->id()) != who->away.end()) continue;
    index_cursor at;
    while (!at.done) {
      auto got = co_await answer_of<records>([&](reply<records> back) { other->list(at, page, back); });
      if (!got) break;
      at = got->second;
      out.seen += got->first.size();
      std::erase_if(got->first, [&](const index_change& c) {
        const auto keepers = owners_of(*who, c.info.slot_first);
        return std::find(keepers.begin(), keepers.end(), me) == keepers.end();
      });
      if (got->first.empty()) continue;
      out.applied += got->first.size();
      auto applied = co_await answer_of<void>([&](reply<void> back) { me->apply(got->first, back); });
      if (!applied) {
        done(fail(applied.error()));
        co_return;
      }
    }
  }
  done(out);
}

}  // namespace

void catch_up(members who, owner_id self, executor& home, reply<catch_up_report> done) {
  home.post([who = std::make_shared<members>(std::move(who)), self, done = std::move(done)] { run(who, self, done); });
}

}  // namespace troupe::kv
