// An index owner that was away, or lost its records, takes over what the others know.
#pragma once

#include "kv/store/executor.hpp"
#include "kv/store/members.hpp"

namespace troupe::kv {

/// What was taken over.
struct catch_up_report {
  uint64_t seen = 0;     // records of other owners
  uint64_t applied = 0;  // of slots that this owner keeps too; most of them it may have known
};

/// Lists what the owners that are there know, and applies to `self` what it should keep: records that it lacks,
/// expiries that were raised. Nothing is removed: what others do not know any more goes by its expiry. Pages of bounded
/// size, one owner after the other. Errors: of `self`; an owner that stops answering is left out. On the executor;
/// members and executor must outlive it.
void catch_up(members who, owner_id self, executor& home, reply<catch_up_report> done);

}  // namespace troupe::kv
