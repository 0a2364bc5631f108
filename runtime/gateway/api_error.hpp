// Errors as OpenAI's API has them: an HTTP status and {"error": {message, type, param, code}}.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "runtime/base/result.hpp"

namespace troupe::gateway {

/// An OpenAI error object and its HTTP status.
struct api_error {
  unsigned status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;         // the field at fault; empty = null
  std::string code;          // a fixed word; empty = null
  uint32_t retry_after = 0;  // seconds for the Retry-After header; 0 = no header
};

template <class T>
using api_result = tl::expected<T, api_error>;

/// A 400 about one field of the body.
tl::unexpected<api_error> bad_field(std::string param, std::string message, std::string code = "");

/// What a failure inside the cluster is for the client: exhausted 429, unavailable and peer_lost 503, timeout 504,
/// invalid input 400, anything else 500.
api_error from_failure(errc code, const std::string& text);

/// The body: {"error": {...}}.
std::string to_json(const api_error& e);

}  // namespace troupe::gateway
