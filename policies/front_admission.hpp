// Whether the front takes a request: bounded queues, the right status, fairness between tenants; and whose request is
// next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// A tenant with requests in the queue or running, or the one that asks.
struct tenant_load {
  uint32_t held = 0;            // its requests that wait or run
  uint32_t limit = UINT32_MAX;  // its own bound, from its API key
  double weight = 1;            // > 0
};

/// A request at the door.
struct front_admission_input {
  bool ready = true;         // a canary went through and the front is not draining
  uint32_t limit = 0;        // requests that may wait or run in all
  uint32_t finish_ms = 100;  // how long until one of them leaves, as last seen
  double reserve = 0.125;    // part of `limit` that only tenants below their share may use, 0..1
  size_t tenant = 0;         // index of the one who asks
  std::vector<tenant_load> tenants;
};

/// The answer. `status`: 200 admitted, 429 too many requests, 503 not ready. retry_after_s is the Retry-After header:
/// whole seconds, 1 to 60; 0 when admitted.
struct front_admission_plan {
  bool admit = false;
  uint16_t status = 0;
  uint32_t retry_after_s = 0;
  uint32_t share = 0;  // requests that this tenant may hold whatever the others do
  std::string reason;
};

/// 503 when not ready. 429 when the front is full, when the tenant is at its own limit, or when it is at or above its
/// share and only the reserve is left. share = max(1, floor((limit - reserve) * weight / sum of weights of the tenants
/// that hold something or ask)). So one tenant alone may use all but the reserve, and a newcomer finds the reserve
/// open. Errors: no such tenant, weight not positive and finite, reserve outside 0..1.
result<front_admission_plan> plan_front_admission(const front_admission_input& in);

/// One tenant's queue.
struct tenant_queue {
  uint32_t waiting = 0;
  double served = 0;  // virtual time: work served so far / weight, as kept by the caller
};

/// The queues.
struct next_tenant_input {
  double clock = 0;  // virtual time of the last choice: one that was idle starts from here and saves nothing up
  std::vector<tenant_queue> tenants;
};

/// Who is next. `choice` is SIZE_MAX when nobody waits. `clock` is to be passed in next time; the chosen tenant's
/// `served` becomes `start` + work / weight.
struct next_tenant_plan {
  size_t choice = SIZE_MAX;
  double start = 0;
  double clock = 0;
  std::string reason;
};

/// Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): the waiting tenant with the smallest max(served, clock);
/// ties to the lowest index. Errors: served or clock not finite.
result<next_tenant_plan> plan_next_tenant(const next_tenant_input& in);

}  // namespace troupe::policies
