#include "runtime/cli/load/call.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "runtime/cli/load/sse.hpp"

namespace troupe::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr size_t slow_bytes = 256;
constexpr auto slow_pause = std::chrono::milliseconds(20);
constexpr size_t slow_buffer = 4096;  // of the client; the kernel has one too
constexpr size_t error_body = 8192;   // read of an answer that is no stream

class stream_call final : public call, public std::enable_shared_from_this<stream_call> {
 public:
  stream_call(asio::io_context& context, const clock_source& clock, call_request request, on_end end, on_tokens tokens)
      : clock_(clock),
        request_(std::move(request)),
        on_end_(std::move(end)),
        on_tokens_(std::move(tokens)),
        stream_(context),
        pause_(context),
        buffer_(request_.slow ? slow_buffer : std::numeric_limits<size_t>::max()) {}

  void begin() {
    boost::system::error_code ec;
    const auto address =
        asio::ip::make_address(request_.server.host == "localhost" ? "127.0.0.1" : request_.server.host, ec);
    if (ec) return later("bad address");
    const tcp::endpoint to(address, request_.server.port);
    if (request_.slow) {
      stream_.socket().open(to.protocol(), ec);
      if (!ec) stream_.socket().set_option(tcp::socket::receive_buffer_size(static_cast<int>(slow_buffer)), ec);
    }
    message_.method(http::verb::post);
    message_.target("/v1/completions");
    message_.version(11);
    message_.set(http::field::host, request_.server.text());
    message_.set(http::field::connection, "close");
    message_.set(http::field::content_type, "application/json");
    if (!request_.api_key.empty()) message_.set(http::field::authorization, "Bearer " + request_.api_key);
    message_.body() = std::move(request_.body);
    message_.prepare_payload();
    result_.sent = clock_.now();
    arm();
    stream_.async_connect(to, [self = shared_from_this()](auto e) { self->connected(e); });
  }

  void abort() override {
    if (ended_ || aborted_) return;
    aborted_ = true;
    pause_.cancel();
    stream_.cancel();
  }

 private:
  using code = boost::system::error_code;

  void arm() {
    stream_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(request_.silence));
  }

  void connected(code e) {
    if (stopped(e)) return;
    arm();
    http::async_write(stream_, message_, [self = shared_from_this()](auto e, size_t) { self->written(e); });
  }

  void written(code e) {
    // A server that refuses may answer and close before it has read everything: its answer says why.
    if (e && e != asio::error::broken_pipe && e != asio::error::connection_reset && stopped(e)) return;
    message_.body() = {};
    if (!e && request_.leaves_at == 0u) return end_as(call_end::left);
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    arm();
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](auto e, size_t) { self->headed(e); });
  }

  void headed(code e) {
    if (stopped(e)) return;
    status_ = static_cast<int>(parser_.get().result_int());
    const auto type = parser_.get()[http::field::content_type];
    is_stream_ = status_ == 200 && type.find("text/event-stream") != beast::string_view::npos;
    read();
  }

  void read() {
    if (parser_.is_done()) return body_ended();
    parser_.get().body().data = piece_.data();
    parser_.get().body().size = request_.slow ? slow_bytes : piece_.size();
    parser_.get().body().more = true;
    arm();
    http::async_read_some(stream_, buffer_, parser_, [self = shared_from_this()](auto e, size_t) {
      self->got(e == http::error::need_buffer ? code() : e);
    });
  }

  void got(code e) {
    if (stopped(e)) return;
    const size_t room = request_.slow ? slow_bytes : piece_.size();
    const std::string_view piece(piece_.data(), room - parser_.get().body().size);
    if (!is_stream_) {
      body_ += piece.substr(0, error_body - std::min(error_body, body_.size()));
    } else {
      now_ = clock_.now();
      if (!events_.feed(piece, [this](const sse_event& event) { take(event); })) return finish("event too long");
      if (ended_) return;
    }
    if (!request_.slow || parser_.is_done()) return read();
    stream_.expires_never();
    pause_.expires_after(slow_pause);
    pause_.async_wait([self = shared_from_this()](auto) {
      if (!self->stopped({})) self->read();
    });
  }

  void take(const sse_event& event) {
    if (ended_) return;
    if (event.data == "[DONE]") {
      done_ = true;
      return;
    }
    const auto j = nlohmann::json::parse(event.data, nullptr, false);
    if (!j.is_object()) return finish("not JSON");
    if (j.contains("error")) return finish("broken off: " + error_kind(j["error"]));
    if (const auto u = j.find("usage"); u != j.end() && u->is_object()) {
      const auto number = [](const nlohmann::json& o, const char* key) {
        const auto at = o.find(key);
        return at != o.end() && at->is_number_unsigned() ? at->get<uint32_t>() : 0u;
      };
      result_.prompt_tokens = number(*u, "prompt_tokens");
      result_.completion_tokens = number(*u, "completion_tokens");
      if (const auto d = u->find("prompt_tokens_details"); d != u->end() && d->is_object())
        result_.cached_tokens = number(*d, "cached_tokens");
    }
    const auto choices = j.find("choices");
    if (choices == j.end() || !choices->is_array() || choices->empty()) return;
    const auto& choice = choices->front();
    if (const auto f = choice.find("finish_reason"); f != choice.end() && f->is_string()) finish_seen_ = true;
    const bool text = choice.contains("text") && choice["text"].is_string() && choice["text"] != "";
    // An id is the position of the last token, at the end one more: tokens that make no text yet are counted with those
    // after them.
    uint32_t fresh = text ? 1 : 0;
    if (event.id) {
      const uint64_t all = std::min<uint64_t>(*event.id + 1 - std::min<uint64_t>(*event.id + 1, request_.prompt_tokens),
                                              request_.answer_tokens);
      fresh = all > result_.tokens ? static_cast<uint32_t>(all - result_.tokens) : 0;
    }
    if (fresh == 0) return;
    if (result_.tokens == 0)
      result_.first_token = now_;
    else
      on_tokens_(now_ - result_.last_token, fresh);
    result_.last_token = now_;
    result_.tokens += fresh;
    if (request_.leaves_at && result_.tokens >= *request_.leaves_at) end_as(call_end::left);
  }

  static std::string error_kind(const nlohmann::json& error) {
    for (const char* key : {"code", "type"}) {
      if (error.is_object() && error.contains(key) && error[key].is_string() && error[key] != "")
        return error[key].get<std::string>().substr(0, 60);
    }
    return "unknown";
  }

  void body_ended() {
    if (!is_stream_) {
      std::string kind = "http " + std::to_string(status_);
      const auto j = nlohmann::json::parse(body_, nullptr, false);
      if (j.is_object() && j.contains("error")) kind += ": " + error_kind(j["error"]);
      return finish(status_ == 200 ? "no stream" : kind);
    }
    if (!done_ || !finish_seen_) return finish("cut short");
    end_as(call_end::finished);
  }

  // True when the call is over with this error, or was aborted.
  bool stopped(code e) {
    if (ended_) return true;
    if (aborted_) return end_as(call_end::interrupted), true;
    if (!e) return false;
    if (e == beast::error::timeout)
      finish("timeout");
    else if (e == asio::error::connection_refused)
      finish("connection refused");
    else if (e == http::error::partial_message || e == http::error::end_of_stream)
      finish("cut short");
    else
      finish("connection: " + e.message());
    return true;
  }

  void later(std::string failure) {
    asio::post(stream_.get_executor(),
               [self = shared_from_this(), failure = std::move(failure)] { self->finish(failure); });
  }

  void finish(std::string failure) {
    result_.failure = std::move(failure);
    end_as(call_end::failed);
  }

  void end_as(call_end end) {
    if (std::exchange(ended_, true)) return;
    result_.end = end;
    result_.ended = clock_.now();
    code ignored;
    if (end != call_end::finished) stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    pause_.cancel();
    on_end_(result_);
  }

  const clock_source& clock_;
  call_request request_;
  const on_end on_end_;
  const on_tokens on_tokens_;
  beast::tcp_stream stream_;
  asio::steady_timer pause_;
  http::request<http::string_body> message_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 4096> piece_;
  sse_reader events_;
  std::string body_;
  call_result result_;
  nanoseconds now_{0};
  int status_ = 0;
  bool is_stream_ = false, done_ = false, finish_seen_ = false, aborted_ = false, ended_ = false;
};

}  // namespace

std::shared_ptr<call> call::start(asio::io_context& context, const clock_source& clock, call_request request,
                                  on_end end, on_tokens tokens) {
  auto c = std::make_shared<stream_call>(context, clock, std::move(request), std::move(end), std::move(tokens));
  c->begin();
  return c;
}

}  // namespace troupe::cli
