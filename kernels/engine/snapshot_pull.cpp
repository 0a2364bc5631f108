#include "kernels/engine/snapshot_pull.hpp"

#include <utility>

#include "kernels/engine/snapshot.hpp"

namespace troupe::kernels {

void pull_snapshot(transport::transport& t, snapshot_route route, task_runner run,
                   std::function<void(result<void>)> done) {
  auto end = [route, run, done = std::move(done)](result<void> r) {
    run([route, done, r = std::move(r)] {
      if (!r) return done(r);
      const auto bytes = route.to->bytes().subspan(route.to_offset, route.bytes);
      if (snapshot_checksum(bytes) != route.crc) return done(fail(errc::corrupt, "a snapshot is not what was kept"));
      done({});
    });
  };
  auto begun = t.get(route.peer, route.to, route.to_offset, route.from, route.from_offset, route.bytes, end);
  if (!begun) end(begun);
}

}  // namespace troupe::kernels
