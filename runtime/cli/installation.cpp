#include "runtime/cli/installation.hpp"

#include <filesystem>

namespace troupe::cli {

namespace fs = std::filesystem;

std::string installed_file_above(const std::string& from, const std::string& relative) {
  std::error_code ec;
  for (fs::path folder = fs::absolute(from, ec); !folder.empty(); folder = folder.parent_path()) {
    for (const fs::path& candidate : {folder / relative, folder / "share/troupe" / relative}) {
      if (!fs::exists(candidate, ec)) continue;
      const fs::path here = fs::current_path(ec), shorter = candidate.lexically_relative(here);
      return shorter.empty() || shorter.string().starts_with("..") ? candidate.string() : shorter.string();
    }
    if (folder == folder.root_path()) break;
  }
  return relative;
}

std::string installed_file(const std::string& relative) {
  std::error_code ec;
  const fs::path program = fs::read_symlink("/proc/self/exe", ec);
  return ec ? relative : installed_file_above(program.parent_path().string(), relative);
}

}  // namespace troupe::cli
