// A small HTTP/1.1 client for the commands that talk to a gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {

/// One request. An empty body is a GET, anything else a POST of JSON.
struct http_request {
  config::address server;
  std::string target = "/";
  std::string body;
  std::string api_key;                             // empty: none is sent
  std::string request_id, last_event_id;           // X-Request-Id, Last-Event-ID; empty: not sent
  nanoseconds silence = std::chrono::seconds(60);  // longest wait for the connection, the answer, or its next byte
};

/// The whole answer.
struct http_response {
  int status = 0;
  std::string body;
};

/// The address in "http://HOST:PORT", with or without "/v1" and slashes at its end.
result<config::address> parse_base_url(std::string text);

/// Sends a request and reads the answer. unavailable when nobody listens, timeout after a silence, io when the
/// connection breaks. An answer with an error status is a response, not an error. Blocks the calling thread.
result<http_response> fetch(const http_request& r);

/// The same for an SSE stream: `on_data` gets the text after each "data: " as it arrives, "[DONE]" left out, and
/// returns false to stop. An answer that is not a stream (an error object) is returned in `body`. `last_id` becomes the
/// id of the latest event that had one, for last_event_id of a request that goes on where this one broke off.
result<http_response> fetch_stream(const http_request& r, const std::function<bool(std::string_view)>& on_data,
                                   std::string* last_id = nullptr);

/// The message of an OpenAI error object, or the body itself when it is none.
std::string error_text(const http_response& r);

}  // namespace troupe::cli
