// Runs the `troupe` program in a test: arguments in, exit code, stdout and stderr out.
#pragma once

#include <string>
#include <vector>

namespace troupe::tests {

struct program_result {
  int code = -1;  // exit code; 128 + n after signal n; -1: killed at the limit
  std::string out, err;
};

/// Runs the built `troupe` with `args` and `input` on stdin; kills it after `limit_s` seconds.
program_result troupe(const std::vector<std::string>& args, const std::string& input = "", int limit_s = 60);

/// Path of the built program.
std::string troupe_path();

/// A folder that goes away with the object.
struct temporary_folder {
  std::string path;
  temporary_folder();
  ~temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
};

/// Writes `text` to `path`.
void write_file(const std::string& path, const std::string& text);
/// Reads the whole file; empty when it is not there.
std::string read_file(const std::string& path);

}  // namespace troupe::tests
