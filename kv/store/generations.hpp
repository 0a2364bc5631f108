// How far a store had come: by these marks an older copy of an index, or of a disk, that is put back is noticed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kv/index/db.hpp"
#include "kv/types.hpp"
#include "runtime/base/result.hpp"

namespace troupe::kv {

/// A target and the folder with its chunk files.
struct target_folder {
  target_id target;
  std::string folder;
};

/// Steps of a store or of a storage node, kept in its database and in a file `generation` beside the chunk files of
/// every target. A step is taken at open, at close and now and then. The database is told first, so after a crash it is
/// never behind by itself: a database that is behind a target does not know what was written since. A target that is
/// behind what the database knows it to have been told lacks what was written since.
/// Not told apart: a copy that was taken in the last step of a process that was killed, and put back before the next
/// open. Not thread safe: one call at a time.
class generations {
 public:
  /// The step of the mark beside the chunk files in `folder`; nothing where there is none that holds.
  static std::optional<uint64_t> in_folder(const std::string& folder);
  /// Reads the marks. A mark that does not hold, or names another store, counts as none; then less is detected.
  static result<generations> read(const db& database, const std::vector<target_folder>& targets);
  /// Says so if the database that was read is an older copy.
  std::optional<std::string> older_index() const;
  /// Says so if the disk of this target is an older copy.
  std::optional<std::string> older_disk(target_id target) const;
  /// The database was thrown away: the next step goes to a new one.
  void forget_index();
  /// The next step, in the database only, synced.
  result<void> begin(db& database);
  /// Tells the targets of the last step. Best effort and without a sync: an older mark, or none, only detects less.
  void tell(db& database, const std::vector<target_folder>& targets);
  /// The next step, everywhere. Errors: those of the database; then the targets are not told.
  result<void> advance(db& database, const std::vector<target_folder>& targets);

 private:
  struct progress {
    std::optional<uint64_t> found;  // beside its chunk files
    uint64_t told = 0;              // what the database knows to have been written there
  };
  std::string store_;  // random, names the store
  uint64_t generation_ = 0, highest_ = 0;
  std::map<target_id, progress> targets_;
};

}  // namespace troupe::kv
