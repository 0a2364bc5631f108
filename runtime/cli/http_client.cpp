#include "runtime/cli/http_client.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <limits>
#include <utility>

namespace troupe::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

class connection {
 public:
  explicit connection(const http_request& r) : request_(r) {}

  result<void> open() {
    boost::system::error_code ec;
    std::string host = request_.server.host == "localhost" ? "127.0.0.1" : request_.server.host;
    auto address = asio::ip::make_address(host, ec);
    if (ec) return fail(errc::invalid_argument, "{}: {}", host, ec.message());
    TROUPE_TRY(auto none,
               run([&](auto done) { stream_.async_connect(tcp::endpoint(address, request_.server.port), done); }));
    (void)none;
    http::request<http::string_body> m{request_.body.empty() ? http::verb::get : http::verb::post, request_.target, 11};
    m.set(http::field::host, request_.server.text());
    m.set(http::field::connection, "close");
    if (!request_.api_key.empty()) m.set(http::field::authorization, "Bearer " + request_.api_key);
    if (!request_.request_id.empty()) m.set("X-Request-Id", request_.request_id);
    if (!request_.last_event_id.empty()) m.set("Last-Event-ID", request_.last_event_id);
    if (!request_.body.empty()) m.set(http::field::content_type, "application/json");
    m.body() = request_.body;
    m.prepare_payload();
    TROUPE_TRY(none, run([&](auto done) { http::async_write(stream_, m, [done](auto e, size_t) { done(e); }); }));
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    TROUPE_TRY(none, run([&](auto done) {
                 http::async_read_header(stream_, buffer_, parser_, [done](auto e, size_t) { done(e); });
               }));
    return {};
  }

  int status() const { return static_cast<int>(parser_.get().result_int()); }
  bool is_stream() const {
    return parser_.get()[http::field::content_type].find("text/event-stream") != beast::string_view::npos;
  }

  // The next piece of the body; empty at its end.
  result<std::string_view> next() {
    while (!parser_.is_done()) {
      parser_.get().body().data = piece_.data();
      parser_.get().body().size = piece_.size();
      parser_.get().body().more = true;
      auto read = run([&](auto done) {
        http::async_read_some(stream_, buffer_, parser_, [done](auto e, size_t) {
          done(e == http::error::need_buffer ? boost::system::error_code() : e);
        });
      });
      if (!read) return fail(read.error());
      size_t n = piece_.size() - parser_.get().body().size;
      if (n > 0) return std::string_view(piece_.data(), n);
    }
    return std::string_view();
  }

 private:
  struct nothing {};

  template <class Start>
  result<nothing> run(Start&& start) {
    boost::system::error_code out = asio::error::would_block;
    stream_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(request_.silence));
    start([&out](boost::system::error_code e) { out = e; });
    context_.restart();
    context_.run();
    stream_.expires_never();
    if (!out) return nothing{};
    if (out == beast::error::timeout) return fail(errc::timeout, "{} was silent for too long", request_.server.text());
    if (out == asio::error::connection_refused)
      return fail(errc::unavailable, "nobody listens at {}", request_.server.text());
    return fail(errc::io, "connection to {}: {}", request_.server.text(), out.message());
  }

  const http_request& request_;
  asio::io_context context_;
  beast::tcp_stream stream_{context_};
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 8192> piece_;
};

result<std::string> rest_of(connection& c) {
  std::string body;
  for (;;) {
    TROUPE_TRY(std::string_view piece, c.next());
    if (piece.empty()) return body;
    body += piece;
  }
}

}  // namespace

result<config::address> parse_base_url(std::string text) {
  if (text.rfind("http://", 0) == 0) text = text.substr(7);
  while (!text.empty() && text.back() == '/') text.pop_back();
  if (text.ends_with("/v1")) text.resize(text.size() - 3);
  return config::parse_address(text);
}

result<http_response> fetch(const http_request& r) {
  connection c(r);
  if (auto ok = c.open(); !ok) return fail(ok.error());
  TROUPE_TRY(std::string body, rest_of(c));
  return http_response{c.status(), std::move(body)};
}

result<http_response> fetch_stream(const http_request& r, const std::function<bool(std::string_view)>& on_data,
                                   std::string* last_id) {
  connection c(r);
  if (auto ok = c.open(); !ok) return fail(ok.error());
  if (!c.is_stream()) {
    TROUPE_TRY(std::string body, rest_of(c));
    return http_response{c.status(), std::move(body)};
  }
  std::string pending, id;
  for (;;) {
    TROUPE_TRY(std::string_view piece, c.next());
    if (piece.empty()) return http_response{c.status(), ""};
    pending += piece;
    size_t begin = 0;
    for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(pending.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("id: ")) id = line.substr(4);
      if (!line.starts_with("data:")) continue;
      if (last_id && !id.empty()) *last_id = std::exchange(id, "");
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (line == "[DONE]") continue;
      if (!on_data(line)) return http_response{c.status(), ""};
    }
    pending.erase(0, begin);
  }
}

std::string error_text(const http_response& r) {
  auto j = nlohmann::json::parse(r.body, nullptr, false);
  if (j.is_object() && j.contains("error") && j["error"].is_object()) {
    const auto& e = j["error"];
    std::string text = e.value("message", "");
    if (e.contains("param") && e["param"].is_string()) text += " (" + e["param"].get<std::string>() + ")";
    if (!text.empty()) return fmt::format("{} (status {})", text, r.status);
  }
  return fmt::format("status {}: {}", r.status, r.body.substr(0, 500));
}

}  // namespace troupe::cli
