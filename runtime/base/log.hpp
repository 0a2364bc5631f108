// Log lines for people, on stderr (stdout is data). Thread safe.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace troupe::log {

/// Sets the process's name in every line and the level ("debug", "info", "warning", "error", "off"); call once at
/// start. An unknown level counts as "info".
void init(std::string_view process, std::string_view level);

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

}  // namespace troupe::log
