#include "runtime/cli/command.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace troupe::cli {

void config_options::add_to(CLI::App& command) {
  command.add_option("-c,--config", file, "Configuration file")->capture_default_str();
  command.add_option("--set", overrides, "Override one key, SECTION.KEY=VALUE; may be given several times")
      ->take_all()
      ->allow_extra_args(false);
}

void tell(const std::string& text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

int complain(const std::string& command, const std::string& text, int code) {
  tell("troupe {}: {}\n", command, text);
  return code;
}

}  // namespace troupe::cli
