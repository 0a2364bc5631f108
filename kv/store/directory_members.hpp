// Which targets a store in a directory has: adding, draining, removing. Every call needs the store for itself (errors:
// unavailable when another process has it open) and changes layout.json in one step, with the next storage epoch; cut
// anywhere it can be done again.
#pragma once

#include <vector>

#include "kv/device/crash_point.hpp"
#include "kv/store/directory.hpp"

namespace troupe::kv {

/// Adds `count` empty targets under numbers that were never used; returns them. They get their share of what is stored
/// from now on; what is there stays where it is. Order: folders made -> layout written. Errors: not_found (no store),
/// invalid_argument (more than max_targets), io.
result<std::vector<target_id>> add_targets(const std::string& dir, uint32_t count, crash_hook* crash = nullptr);

/// `drain`: these targets get no new shards from now on, and scrub copies to others what they have; otherwise that is
/// taken back. Errors: not_found (no store, no such target), invalid_argument (fewer than k + m others would be left).
result<void> drain_targets(const std::string& dir, const std::vector<target_id>& which, bool drain,
                           crash_hook* crash = nullptr);

/// Takes a drained target out of the store and deletes its chunk files. Order: layout written -> records dropped ->
/// files deleted; a cut in between is made good by calling it again. Errors: not_found (no store, no such target),
/// invalid_argument (it was not drained before, or the store still has shards there: says how many), io.
result<void> remove_target(const directory_options& options, target_id which, crash_hook* crash = nullptr);

/// Names of all crash points above, in the order of passing.
std::vector<std::string_view> member_crash_points();

}  // namespace troupe::kv
