#include "runtime/base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace troupe::log {

void init(std::string_view process, std::string_view level) {
  auto logger = spdlog::stderr_color_mt("troupe-" + std::to_string(reinterpret_cast<uintptr_t>(&process)));
  logger->set_pattern("%H:%M:%S.%e %^%l%$ " + std::string(process) + ": %v");
  spdlog::set_default_logger(std::move(logger));
  auto wanted = spdlog::level::from_str(std::string(level));
  if (wanted == spdlog::level::off && level != "off") wanted = spdlog::level::info;
  spdlog::set_level(wanted);
}

}  // namespace troupe::log
