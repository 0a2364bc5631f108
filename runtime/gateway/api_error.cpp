#include "runtime/gateway/api_error.hpp"

#include <nlohmann/json.hpp>

namespace troupe::gateway {

tl::unexpected<api_error> bad_field(std::string param, std::string message, std::string code) {
  return tl::unexpected<api_error>(
      api_error{400, std::move(message), "invalid_request_error", std::move(param), std::move(code), 0});
}

api_error from_failure(errc code, const std::string& text) {
  switch (code) {
    case errc::exhausted:
      return {429, text, "rate_limit_error", "", "overloaded", 1};
    case errc::unavailable:
      return {503, text, "server_error", "", "unavailable", 1};
    case errc::peer_lost:
      return {503, text, "server_error", "", "peer_lost", 1};
    case errc::timeout:
      return {504, text, "server_error", "", "timeout", 0};
    case errc::cancelled:
      return {503, text, "server_error", "", "cancelled", 1};
    case errc::invalid_argument:
      return {400, text, "invalid_request_error", "", "", 0};
    case errc::unsupported:
      return {400, text, "invalid_request_error", "", "unsupported", 0};
    default:
      return {500, text, "server_error", "", to_string(code), 0};
  }
}

std::string to_json(const api_error& e) {
  using nlohmann::json;
  auto or_null = [](const std::string& s) { return s.empty() ? json(nullptr) : json(s); };
  json body = {
      {"error", {{"message", e.message}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}}}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace);  // a message may quote the client's bytes
}

}  // namespace troupe::gateway
