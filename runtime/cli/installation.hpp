// Where the files are that come with the program.
#pragma once

#include <string>

namespace troupe::cli {

/// Path of `relative` (such as configs/local.yaml) in the tree that this executable belongs to: looked for in every
/// folder above the executable, and in its share/troupe, nearest first, so that it is found from a build folder and
/// from an installation whatever the working directory is. Shown relative to the working directory where it lies below
/// it. `relative` itself when there is none.
std::string installed_file(const std::string& relative);

/// The same, starting at the folder `from`.
std::string installed_file_above(const std::string& from, const std::string& relative);

}  // namespace troupe::cli
