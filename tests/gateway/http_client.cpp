#include "tests/gateway/http_client.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::gateway::testing {

http_client::http_client(uint16_t port, int receive_buffer, bool v6) {
  fd_ = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  timeval limit{30, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  int rc = 0;
  if (v6) {
    sockaddr_in6 a{};
    a.sin6_family = AF_INET6;
    a.sin6_port = htons(port);
    a.sin6_addr = in6addr_loopback;
    rc = connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a);
  } else {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    rc = connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a);
  }
  if (rc != 0) throw std::runtime_error("cannot connect to the test's server");
}

http_client::~http_client() {
  if (fd_ >= 0) close(fd_);
}

bool http_client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool http_client::request(std::string_view method, std::string_view path, std::string_view body,
                          std::string_view extra_headers) {
  return send(
      fmt::format("{} {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{}",
                  method, path, extra_headers, body.size(), body));
}

bool http_client::fill() {
  char chunk[65536];
  ssize_t n = recv(fd_, chunk, sizeof chunk, 0);
  if (n <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(n));
  return true;
}

std::string http_client::line() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!fill()) throw std::runtime_error("the connection ended inside an answer");
  }
  std::string l = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return l;
}

reply http_client::read() {
  reply r;
  while (buffer_.find("\r\n") == std::string::npos) {
    if (!fill()) return r;
  }
  std::string first = line();
  r.status = std::stoi(first.substr(first.find(' ') + 1));
  for (std::string l = line(); !l.empty(); l = line()) {
    size_t colon = l.find(": ");
    std::string name = l.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    r.headers[name] = l.substr(colon + 2);
  }
  if (r.status == 100) return read();
  auto need = [&](size_t n) {
    while (buffer_.size() < n) {
      if (!fill()) throw std::runtime_error("the connection ended inside a body");
    }
  };
  if (r.headers.contains("content-length")) {
    size_t n = std::stoul(r.headers["content-length"]);
    need(n);
    r.body = buffer_.substr(0, n);
    buffer_.erase(0, n);
  } else if (r.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      size_t n = std::stoul(line(), nullptr, 16);
      need(n + 2);
      r.body += buffer_.substr(0, n);
      buffer_.erase(0, n + 2);
      if (n == 0) break;
    }
  } else {  // until the end of the connection
    while (fill()) {
    }
    r.body.swap(buffer_);
  }
  return r;
}

reply http_client::get(std::string_view path, std::string_view extra_headers) {
  request("GET", path, "", extra_headers);
  return read();
}

reply http_client::post(std::string_view path, const nlohmann::json& body, std::string_view extra_headers) {
  request("POST", path, body.dump(), extra_headers);
  return read();
}

bool http_client::read_until(std::string_view text) {
  size_t at = 0;
  while ((at = buffer_.find(text)) == std::string::npos) {
    if (!fill()) return false;
  }
  buffer_.erase(0, at + text.size());
  return true;
}

bool http_client::closed() {
  char c = 0;
  ssize_t n = 0;
  while ((n = recv(fd_, &c, 1, 0)) > 0) {
  }
  return n == 0 || errno == ECONNRESET;
}

void http_client::leave() {
  linger hard{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close(fd_);
  fd_ = -1;
}

void http_client::finish_sending() { shutdown(fd_, SHUT_WR); }

std::vector<sse_event> events_of(const std::string& body) {
  std::vector<sse_event> out;
  sse_event now;
  size_t at = 0;
  while (at < body.size()) {
    size_t end = body.find('\n', at);
    std::string l = body.substr(at, end - at);
    at = end == std::string::npos ? body.size() : end + 1;
    if (l.empty()) {
      if (!now.data.empty()) out.push_back(now);
      now = {};
    } else if (l.starts_with("data: ")) {
      now.data += l.substr(6);
    } else if (l.starts_with("id: ")) {
      now.id = l.substr(4);
    }
  }
  return out;
}

}  // namespace troupe::gateway::testing
