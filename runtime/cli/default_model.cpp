#include "runtime/cli/default_model.hpp"

#include <filesystem>

#include "runtime/cli/installation.hpp"
#include "runtime/config/config.hpp"

namespace troupe::cli {

result<std::string> default_model() {
  const std::string file = installed_file("configs/local.yaml");
  std::error_code ec;
  if (!std::filesystem::exists(file, ec))
    return fail(errc::not_found, "give a checkpoint with --model DIR; there is no {} above this program that names one",
                file);
  auto settings = config::load(file, {});
  if (!settings) return fail(settings.error().code, "give a checkpoint with --model DIR; {}", settings.error().message);
  return settings->model.path;
}

}  // namespace troupe::cli
