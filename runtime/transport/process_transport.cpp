#include "runtime/transport/process_transport.hpp"

#include <algorithm>

#include "runtime/transport/tcp_wire.hpp"
#include "runtime/transport/ucx_wire.hpp"
#include "runtime/transport/wired_transport.hpp"

namespace troupe::transport {

result<std::unique_ptr<transport>> make_process_transport(const options& o) {
  if (auto ok = check_options(o); !ok) return fail(ok.error());
  if (o.messages == message_path::ucx) {
    TROUPE_TRY(auto wire, open_ucx_wire(o.interface));
    return std::make_unique<wired_transport>(o, std::move(wire));
  }
  TROUPE_TRY(auto wire, open_tcp_wire(wire_options(o)));
  return std::make_unique<wired_transport>(o, std::move(wire));
}

}  // namespace troupe::transport
