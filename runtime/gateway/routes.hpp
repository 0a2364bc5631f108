// Which path does what.
#pragma once

#include <memory>
#include <string>

#include "runtime/gateway/core.hpp"
#include "runtime/gateway/exchange.hpp"

namespace troupe::gateway {

/// Fixed name of a path for metrics: one of the served paths, or "other".
std::string route_name(const std::string& path);

/// Answers `request` on `out`, at once or over time; in the second case returns who does it.
std::shared_ptr<exchange_user> dispatch(const std::shared_ptr<core>& shared, const std::shared_ptr<exchange>& out,
                                        http_request request);

}  // namespace troupe::gateway
