// One HTTP/1.1 connection: reads requests one after the other (keep-alive, pipelining), keeps reading while an answer
// is under way so that a client that leaves is noticed at once, and writes from a bounded buffer.
//
// A client that closes its sending side counts as gone when an answer is under way (as other inference servers have
// it); answers that are complete already are still sent.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "runtime/gateway/core.hpp"
#include "runtime/gateway/exchange.hpp"
#include "runtime/gateway/io_pool.hpp"

namespace troupe::gateway {

/// Lives on its io thread.
class connection final : public exchange, public std::enable_shared_from_this<connection> {
 public:
  using tcp = boost::asio::ip::tcp;
  /// With `refused` it only says 503 and closes (too many connections).
  connection(std::shared_ptr<core> shared, std::shared_ptr<io_thread> io, tcp::socket socket, bool refused);
  ~connection() override;

  void start();
  /// Says 503 on a socket over the limit and closes it, without waiting: the answer may be lost to a client that sends
  /// at the same moment. For when too many refused connections are open already.
  static void refuse_at_once(core& shared, tcp::socket socket);
  /// The server stops: ends a request under way with an error; closes when no answer is owed.
  void stop();
  /// Closes at once and tells the running request that its client went.
  void abort();

  void respond(http_response response) override;
  void begin_stream(const http_headers& headers) override;
  void write(std::string_view bytes) override;
  void end_stream() override;
  bool full() const override;
  void post(std::function<void()> f) override { io_->post(std::move(f)); }

 private:
  using parser_type = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using error_code = boost::system::error_code;

  void read();
  void on_read(error_code ec, size_t n);
  void process();
  void parse_failed(error_code ec);
  void handle();
  void done();  // the answer is queued in full
  void send(std::string_view bytes);
  void write_more();
  void on_written(error_code ec, size_t n);
  void on_flushed();
  void deadline(nanoseconds after);
  void on_deadline();
  void watch_writes();
  void watch_silence();
  void fault(unsigned status, const char* reason, const char* code, std::string message, uint32_t retry_after = 0);
  void linger();
  void settle();  // keeps core::owed up to date
  void close();
  std::string head(unsigned status, const http_headers& headers);

  const std::shared_ptr<core> core_;
  const std::shared_ptr<io_thread> io_;
  const bool refused_;
  tcp::socket socket_;

  // Input.
  boost::beast::flat_buffer buffer_;
  std::optional<parser_type> parser_;
  bool reading_ = false, continue_sent_ = false;
  boost::asio::steady_timer deadline_;  // of the request that comes, or of idleness, or of lingering
  uint64_t deadline_ticket_ = 0;

  // The request under way.
  bool busy_ = false;
  bool keep_ = false, http10_ = false, chunked_ = false;
  unsigned status_ = 0;
  std::string route_;
  std::shared_ptr<exchange_user> user_;
  boost::asio::steady_timer silence_;
  uint64_t silence_ticket_ = 0;
  bool wrote_ = false;  // since the silence timer started

  // Output.
  std::string sending_, pending_;
  size_t sent_ = 0;  // of sending_
  bool writing_ = false, was_full_ = false;
  bool owes_ = false;  // counted in core::owed
  boost::asio::steady_timer stall_;
  bool stall_running_ = false, progress_ = false;
  int strikes_ = 0;

  enum class state : uint8_t { open, closing, lingering, closed } state_ = state::open;
  size_t lingered_ = 0;  // bytes thrown away while lingering
};

}  // namespace troupe::gateway
