// A blocking HTTP client for tests, with its hands on the bytes: it can send half a request, read slowly, or leave.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::gateway::testing {

struct reply {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body); }
};

/// One server-sent event.
struct sse_event {
  std::string id, data;
};

class http_client {
 public:
  /// Connects to a loopback port; `receive_buffer` > 0 makes the kernel hold that little. Reads give up after 30 s.
  explicit http_client(uint16_t port, int receive_buffer = 0, bool v6 = false);
  ~http_client();
  http_client(const http_client&) = delete;

  /// Sends raw bytes; false when the server closed.
  bool send(std::string_view bytes);
  /// Sends a request.
  bool request(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view extra_headers = "");
  /// Reads one whole answer (Content-Length or chunked).
  reply read();
  /// request and read.
  reply get(std::string_view path, std::string_view extra_headers = "");
  reply post(std::string_view path, const nlohmann::json& body, std::string_view extra_headers = "");
  /// Reads until `text` has come; false at the end of the connection.
  bool read_until(std::string_view text);
  /// True when the server has closed (waits for it).
  bool closed();
  /// Closes with a reset.
  void leave();
  /// Closes the sending side only, as a program that ends does first.
  void finish_sending();

 private:
  bool fill();
  std::string line();

  int fd_ = -1;
  std::string buffer_;
};

/// The events of a stream's body; comments are left out.
std::vector<sse_event> events_of(const std::string& body);

}  // namespace troupe::gateway::testing
