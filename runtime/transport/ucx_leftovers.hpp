// Files that UCX leaves behind.
#pragma once

#include <cstddef>
#include <string>

namespace troupe::transport::ucx {

/// UCX makes a file in /dev/shm for every shared memory, opens it, and takes its name away at once. A process that is
/// killed in between leaves an empty file of a random name. This removes those in `directory`: files of UCX's naming
/// that are empty, belong to this user and have not been touched for a minute, by the clock of the file system; at most
/// 1,000 at a time. Returns how many. Files with bytes in them are left alone: other programs that use UCX may have
/// theirs named for as long as they run.
size_t remove_leftovers(const std::string& directory);

}  // namespace troupe::transport::ucx
