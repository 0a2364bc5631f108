#include "runtime/transport/ucx_leftovers.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "runtime/base/log.hpp"

namespace troupe::transport::ucx {
namespace {

constexpr std::string_view name_prefix = "ucx_shm_posix_";
constexpr size_t most = 1000;
constexpr time_t age_seconds = 60;

}  // namespace

size_t remove_leftovers(const std::string& directory) {
  DIR* all = opendir(directory.c_str());
  if (!all) return 0;
  const int dir = dirfd(all);
  // What time it is there: that of a nameless file made now.
  struct stat fresh {};
  const int probe = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  const bool known = probe >= 0 && fstat(probe, &fresh) == 0;
  if (probe >= 0) close(probe);
  size_t removed = 0;
  while (const dirent* entry = known ? readdir(all) : nullptr) {
    struct stat st {};
    if (!std::string_view(entry->d_name).starts_with(name_prefix) ||
        fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) || st.st_size != 0 ||
        st.st_uid != geteuid() || fresh.st_mtime - st.st_mtime < age_seconds)
      continue;
    if (unlinkat(dir, entry->d_name, 0) == 0 && ++removed == most) break;
  }
  closedir(all);
  if (removed > 0) log::debug("removed {} files of dead processes from {}", removed, directory);
  return removed;
}

}  // namespace troupe::transport::ucx
