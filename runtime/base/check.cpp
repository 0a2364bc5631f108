#include "runtime/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace troupe {

void check_failed(const char* file, int line, const char* condition, const std::string& text) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s: %s\n", file, line, condition, text.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe
