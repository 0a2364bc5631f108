#include "runtime/gateway/connection.hpp"

#include <netinet/tcp.h>

#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/status.hpp>

#include "runtime/base/log.hpp"
#include "runtime/gateway/api_error.hpp"
#include "runtime/gateway/routes.hpp"

namespace troupe::gateway {

namespace net = boost::asio;
namespace http = boost::beast::http;

namespace {
constexpr size_t read_size = 64 << 10;
constexpr size_t linger_read_size = 4 << 10;
constexpr size_t pipeline_bytes = 64 << 10;  // read ahead while an answer is under way; then the client has to wait
constexpr size_t linger_bytes = 64 << 20;    // thrown away at most after a refusal
constexpr nanoseconds linger_time = std::chrono::seconds(2);

const api_error too_many{503, "too many connections; try again", "server_error", "", "too_many_connections", 1};
}  // namespace

connection::connection(std::shared_ptr<core> shared, std::shared_ptr<io_thread> io, tcp::socket socket, bool refused)
    : core_(std::move(shared)),
      io_(std::move(io)),
      refused_(refused),
      socket_(std::move(socket)),
      deadline_(io_->context),
      silence_(io_->context),
      stall_(io_->context) {
  (refused_ ? core_->refused : core_->connections).fetch_add(1);
  core_->metrics.connections.add(1);
}

connection::~connection() {
  if (owes_) core_->owed.add(-1);
  (refused_ ? core_->refused : core_->connections).fetch_sub(1);
  core_->metrics.connections.add(-1);
}

void connection::refuse_at_once(core& shared, tcp::socket socket) {
  shared.metrics.rejected("connections");
  shared.metrics.answered("other", too_many.status);
  std::string body = to_json(too_many);
  std::string text = fmt::format(
      "HTTP/1.1 503 Service Unavailable\r\nServer: troupe\r\nRetry-After: {}\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      too_many.retry_after, body.size(), body);
  error_code ec;
  socket.non_blocking(true, ec);
  socket.write_some(net::buffer(text), ec);  // a fresh socket's buffer takes all of it
  socket.shutdown(tcp::socket::shutdown_send, ec);
  // Bytes left unread would turn the close into a reset.
  char rest[4096];
  for (int i = 0; i < 16 && socket.read_some(net::buffer(rest), ec) > 0; ++i) {
  }
}

void connection::start() {
  io_->open.insert(this);
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  // A fixed send buffer: what a slow client can make the kernel hold is bounded too.
  socket_.set_option(net::socket_base::send_buffer_size(static_cast<int>(core_->opts.output_buffer_bytes)), ignored);
  int user_timeout =
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(core_->opts.slow_client_timeout).count());
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof user_timeout);
  if (refused_) {
    route_ = "other";
    fault(too_many.status, "connections", too_many.code.c_str(), too_many.message, too_many.retry_after);
  } else {
    deadline(core_->opts.idle_timeout);
  }
  read();
}

// ---- input

void connection::read() {
  if (reading_ || state_ == state::closed || (busy_ && buffer_.size() >= pipeline_bytes)) return;
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(state_ == state::open ? read_size : linger_read_size),
                          [self = shared_from_this()](error_code ec, size_t n) { self->on_read(ec, n); });
}

void connection::on_read(error_code ec, size_t n) {
  reading_ = false;
  if (state_ == state::closed) return;
  if (ec) {
    // Nothing more comes. What is complete is still sent; a request under way has lost its client.
    if (ec != net::error::eof || busy_ || !writing_) return abort();
    state_ = state::closing;
    return;
  }
  if (state_ != state::open) {  // refused: throw away what still comes, so that the answer is not lost to a reset
    lingered_ += n;
    if (lingered_ > linger_bytes) return close();
    return read();
  }
  buffer_.commit(n);
  process();
  read();
}

void connection::process() {
  while (!busy_ && state_ == state::open && buffer_.size() > 0) {
    if (!parser_) {
      parser_.emplace();
      parser_->eager(true);
      parser_->header_limit(core_->opts.max_header_bytes);
      parser_->body_limit(core_->opts.max_body_bytes);
      continue_sent_ = false;
      deadline(core_->opts.request_timeout);
    }
    error_code ec;
    size_t used = parser_->put(buffer_.data(), ec);
    buffer_.consume(used);
    if (ec && ec != http::error::need_more) return parse_failed(ec);
    if (parser_->is_done()) {
      handle();
      continue;
    }
    if (parser_->is_header_done() && !continue_sent_ &&
        boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
      continue_sent_ = true;
      send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (used == 0 || ec == http::error::need_more) return;
  }
}

void connection::parse_failed(error_code ec) {
  route_ = "other";
  if (ec == http::error::body_limit) {
    return fault(413, "body", "body_too_large",
                 fmt::format("the body is larger than {} bytes", core_->opts.max_body_bytes));
  }
  if (ec == http::error::header_limit) {
    return fault(431, "header", "header_too_large",
                 fmt::format("the header is larger than {} bytes", core_->opts.max_header_bytes));
  }
  fault(400, "http", "bad_http", fmt::format("this is not HTTP/1.1: {}", ec.message()));
}

void connection::handle() {
  auto message = parser_->release();
  parser_.reset();
  ++deadline_ticket_;  // no deadline while the answer is under way
  busy_ = true;
  settle();
  keep_ = message.keep_alive();
  http10_ = message.version() < 11;
  status_ = 0;
  http_request request;
  request.method = std::string(message.method_string());
  std::string_view target(message.target().data(), message.target().size());
  request.path = std::string(target.substr(0, target.find('?')));
  auto text = [&](auto field) { return std::string(message[field]); };
  request.authorization = text(http::field::authorization);
  request.request_id = text("X-Request-Id");
  request.last_event_id = text("Last-Event-ID");
  request.body = std::move(message.body());
  request.arrived = core_->clock.now();
  route_ = route_name(request.path);
  auto user = dispatch(core_, shared_from_this(), std::move(request));
  // The answer may be complete already, on this very stack.
  if (busy_ && user) {
    user_ = std::move(user);
    watch_silence();
  }
}

// ---- answers

std::string connection::head(unsigned status, const http_headers& headers) {
  status_ = status;
  if (core_->draining.load()) keep_ = false;
  auto reason = http::obsolete_reason(http::int_to_status(status));
  std::string h =
      fmt::format("HTTP/1.1 {} {}\r\nServer: troupe\r\n", status, std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : headers) h += fmt::format("{}: {}\r\n", name, value);
  if (!keep_)
    h += "Connection: close\r\n";
  else if (http10_)
    h += "Connection: keep-alive\r\n";
  return h;
}

void connection::respond(http_response r) {
  if (!busy_ || state_ != state::open) return;
  std::string h = head(r.status, r.headers);
  h += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n\r\n", r.content_type, r.body.size());
  h += r.body;
  send(h);
  done();
}

void connection::begin_stream(const http_headers& headers) {
  if (!busy_ || state_ != state::open) return;
  chunked_ = !http10_;
  if (!chunked_) keep_ = false;  // HTTP/1.0: the end of the stream is the end of the connection
  std::string h = head(200, headers);
  if (chunked_) h += "Transfer-Encoding: chunked\r\n";
  h += "\r\n";
  send(h);
}

void connection::write(std::string_view bytes) {
  if (!busy_ || state_ != state::open || bytes.empty()) return;
  if (chunked_) {
    pending_ += fmt::format("{:x}\r\n", bytes.size());
    pending_ += bytes;
    send("\r\n");
  } else {
    send(bytes);
  }
}

void connection::end_stream() {
  if (!busy_ || state_ != state::open) return;
  if (chunked_) send("0\r\n\r\n");
  chunked_ = false;
  done();
}

void connection::done() {
  core_->metrics.answered(route_, status_);
  user_.reset();
  ++silence_ticket_;
  silence_.cancel();
  busy_ = false;
  was_full_ = false;
  settle();
  if (!keep_ || core_->draining.load()) return linger();
  deadline(core_->opts.idle_timeout);
  // The next request of a pipeline, from a fresh stack.
  io_->post([self = shared_from_this()] {
    self->process();
    self->read();
  });
}

void connection::fault(unsigned status, const char* reason, const char* code, std::string message,
                       uint32_t retry_after) {
  core_->metrics.rejected(reason);
  api_error e{status, std::move(message), status >= 500 ? "server_error" : "invalid_request_error", "",
              code,   retry_after};
  http_response r{status, "application/json", to_json(e), {}};
  if (retry_after > 0) r.headers.emplace_back("Retry-After", std::to_string(retry_after));
  busy_ = true;
  keep_ = false;
  parser_.reset();
  respond(std::move(r));
}

bool connection::full() const { return pending_.size() + sending_.size() - sent_ > core_->opts.output_buffer_bytes; }

// ---- output

void connection::send(std::string_view bytes) {
  wrote_ = true;
  pending_ += bytes;
  if (full()) was_full_ = true;
  if (!writing_) write_more();
  settle();
}

void connection::settle() {
  bool owes = state_ != state::closed && (busy_ || writing_);
  if (owes == owes_) return;
  owes_ = owes;
  core_->owed.add(owes ? 1 : -1);
}

void connection::write_more() {
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    if (pending_.empty()) return on_flushed();
    sending_.swap(pending_);
  }
  writing_ = true;
  watch_writes();
  socket_.async_write_some(net::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](error_code ec, size_t n) { self->on_written(ec, n); });
}

void connection::on_written(error_code ec, size_t n) {
  writing_ = false;
  if (state_ == state::closed) return;
  if (ec) return abort();
  sent_ += n;
  progress_ = true;
  write_more();
  if (was_full_ && !full() && state_ == state::open) {
    was_full_ = false;
    if (auto user = user_) user->on_room();
  }
  settle();
}

void connection::on_flushed() {
  if (state_ == state::closing)
    close();
  else if (state_ == state::lingering) {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
}

void connection::watch_writes() {
  if (stall_running_) return;
  stall_running_ = true;
  progress_ = false;
  strikes_ = 0;
  stall_.expires_after(core_->opts.slow_client_timeout / 4);
  stall_.async_wait([self = shared_from_this()](error_code ec) {
    self->stall_running_ = false;
    if (ec || self->state_ == state::closed || !self->writing_) return;
    int strikes = self->progress_ ? 0 : self->strikes_ + 1;
    if (strikes >= 4) {  // four quarters without a byte taken
      log::warn("a client of {} took no byte for {} ms; its connection is closed", self->route_,
                std::chrono::duration_cast<std::chrono::milliseconds>(self->core_->opts.slow_client_timeout).count());
      return self->abort();
    }
    self->watch_writes();
    self->strikes_ = strikes;
  });
}

void connection::watch_silence() {
  wrote_ = false;
  silence_.expires_after(core_->opts.keep_alive);
  silence_.async_wait([self = shared_from_this(), ticket = ++silence_ticket_](error_code ec) {
    if (ec || ticket != self->silence_ticket_ || !self->user_ || self->state_ != state::open) return;
    if (!self->wrote_) self->user_->on_silence();
    if (self->user_) self->watch_silence();
  });
}

// ---- ends

void connection::deadline(nanoseconds after) {
  deadline_.expires_after(after);
  deadline_.async_wait([self = shared_from_this(), ticket = ++deadline_ticket_](error_code ec) {
    if (!ec && ticket == self->deadline_ticket_) self->on_deadline();
  });
}

void connection::on_deadline() {
  if (state_ == state::closed || busy_) return;
  if (state_ == state::open && parser_) {
    route_ = "other";
    return fault(408, "timeout", "request_timeout", "the request did not come within the time limit");
  }
  abort();
}

void connection::linger() {
  state_ = state::lingering;
  buffer_.clear();
  deadline(refused_ ? linger_time : linger_time + core_->opts.slow_client_timeout);
  if (!writing_) on_flushed();
  read();
}

void connection::abort() {
  close();
  if (auto user = std::move(user_)) {
    busy_ = false;
    user->on_client_gone();
  }
}

void connection::stop() {
  if (auto user = user_) user->on_stop();
  if (state_ != state::closed && !busy_ && !writing_) close();
}

void connection::close() {
  if (state_ == state::closed) return;
  state_ = state::closed;
  io_->open.erase(this);
  ++deadline_ticket_;
  ++silence_ticket_;
  deadline_.cancel();
  silence_.cancel();
  stall_.cancel();
  error_code ignored;
  socket_.close(ignored);
  settle();
}

}  // namespace troupe::gateway
