// One HTTP request and its answer, as the code above the socket sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.hpp"

namespace troupe::gateway {

/// A whole request as a handler sees it.
struct http_request {
  std::string method, path;  // path without the query
  std::string body;
  std::string authorization;  // as sent
  std::string request_id;     // X-Request-Id as sent
  std::string last_event_id;  // Last-Event-ID as sent
  nanoseconds arrived{0};     // the server's clock when the last byte had come
};

using http_headers = std::vector<std::pair<std::string, std::string>>;

/// A whole answer that is no stream.
struct http_response {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  http_headers headers;
};

/// Who answers a request over time. Called on the connection's thread; nothing is called after on_client_gone.
class exchange_user {
 public:
  virtual ~exchange_user() = default;
  /// The output buffer has room again after it was full.
  virtual void on_room() = 0;
  /// Nothing was written for the keep-alive time.
  virtual void on_silence() = 0;
  /// The client closed, or took no byte for too long. The exchange takes no more output.
  virtual void on_client_gone() = 0;
  /// The server stops. An answer that is complete goes on leaving; any other one ends now, with an error.
  virtual void on_stop() = 0;
};

/// The way back to the client. Everything but `post` belongs to the connection's thread. An answer is either one
/// `respond` or `begin_stream`, any number of `write`, `end_stream`; calls after the client went are ignored.
class exchange {
 public:
  virtual ~exchange() = default;
  virtual void respond(http_response response) = 0;
  virtual void begin_stream(const http_headers& headers) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  /// True when more than the buffer's bound is unsent; on_room comes later.
  virtual bool full() const = 0;
  /// Runs `f` on the connection's thread, soon; dropped when the server has stopped. Any thread.
  virtual void post(std::function<void()> f) = 0;
};

}  // namespace troupe::gateway
