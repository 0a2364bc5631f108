#include "kernels/engine/handoff_pull.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace troupe::kernels {
namespace {

constexpr size_t part_pages = 16;  // of one operation: about as much as a core's cache holds

struct pull_state {
  const model_plan& plan;
  const handoff_route route;
  const sequence_export want;
  const task_runner run;
  const std::function<void(result<uint64_t>)> done;
  std::mutex mutex;
  size_t open = 1;  // parts that have not been compared, and the start itself
  result<void> value;

  // A part is over, or could not be asked for.
  void ended(result<void> r) {
    {
      std::lock_guard lock(mutex);
      if (!r && value) value = std::move(r);
      if (--open > 0) return;
    }
    if (!value) return done(fail(value.error()));
    done(route.to.size() * uint64_t{plan.page_bytes} + want.state_bytes);
  }
};

// What the transport calls when a part has come: compares it elsewhere.
template <class Check>
transport::completion then_check(const std::shared_ptr<pull_state>& p, Check check) {
  return [p, check](result<void> r) { p->run([p, check, r = std::move(r)] { p->ended(r ? check() : r); }); };
}

// Posts an operation; one that was not taken is over at once.
template <class Operation>
bool post(const std::shared_ptr<pull_state>& p, Operation operation) {
  {
    std::lock_guard lock(p->mutex);
    ++p->open;
  }
  auto posted = operation();
  const bool ok = posted.has_value();
  if (!ok) p->run([p, posted = std::move(posted)] { p->ended(posted); });
  return ok;
}

}  // namespace

void pull_handoff(transport::transport& t, const model_plan& plan, handoff_route route, sequence_export want,
                  task_runner run, std::function<void(result<uint64_t>)> done) {
  auto p = std::make_shared<pull_state>(plan, std::move(route), std::move(want), std::move(run), std::move(done));
  const handoff_route& r = p->route;
  const uint64_t bytes = plan.page_bytes;
  bool going = r.from.size() == r.to.size();
  for (size_t first = 0; going && first < r.to.size(); first += part_pages) {
    std::vector<transport::page_move> moves;
    for (size_t i = first; i < std::min(first + part_pages, r.to.size()); ++i)
      moves.push_back({r.from[i].value * bytes, r.to[i].value * bytes});
    going = post(p, [&] {
      return t.pull(r.peer, r.to_pages, r.from_pages, bytes, std::move(moves), then_check(p, [p, first] {
                      return check_blocks(p->plan, p->want, p->route.to_pages->bytes(), p->route.to, first, part_pages);
                    }));
    });
  }
  if (going)
    post(p, [&] {
      return t.get(r.peer, r.to_states, r.to_state, r.from_states, r.from_state, p->want.state_bytes,
                   then_check(p, [p]() -> result<void> {
                     const auto state = p->route.to_states->bytes().subspan(p->route.to_state, p->want.state_bytes);
                     if (checksum(state) == p->want.state_checksum) return {};
                     return fail(errc::corrupt, "the state is not what was exported");
                   }));
    });
  result<void> start;
  if (r.from.size() != r.to.size())
    start = fail(errc::invalid_argument, "{} pages into {}", r.from.size(), r.to.size());
  p->run([p, start = std::move(start)] { p->ended(start); });
}

}  // namespace troupe::kernels
