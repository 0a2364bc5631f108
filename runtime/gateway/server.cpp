#include "runtime/gateway/server.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "runtime/base/log.hpp"
#include "runtime/gateway/connection.hpp"
#include "runtime/gateway/core.hpp"

namespace troupe::gateway {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using boost::system::error_code;

namespace {
// Connections beyond the limit that are told so and kept until the client has read it; further ones are told and closed
// at once.
constexpr uint32_t refusals = 512;
constexpr nanoseconds accept_pause = std::chrono::milliseconds(100);
}  // namespace

struct server::impl {
  impl(std::shared_ptr<core> c, uint32_t io_threads, uint32_t encode_threads)
      : shared(std::move(c)), encoders(encode_threads) {
    for (uint32_t i = 0; i < io_threads; ++i) threads.push_back(std::make_shared<io_thread>());
    acceptor.emplace(threads[0]->context);
    pause.emplace(threads[0]->context);
  }

  result<void> bind();
  void run();
  void accept();
  void accepted(std::shared_ptr<io_thread> io, tcp::socket socket);
  void stop();

  std::shared_ptr<core> shared;
  std::vector<std::shared_ptr<io_thread>> threads;
  std::optional<tcp::acceptor> acceptor;   // of the first thread
  std::optional<net::steady_timer> pause;  // after a failed accept
  size_t next = 0;                         // thread of the next connection; on the first thread
  net::thread_pool encoders;
  tcp::endpoint local;
  std::mutex stop_mutex;
  bool stopped = false;
};

result<void> server::impl::bind() {
  const options& o = shared->opts;
  error_code ec;
  net::ip::address address = net::ip::make_address(o.address, ec);
  if (ec) return fail(errc::invalid_argument, "gateway address \"{}\" is not an IPv4 or IPv6 address", o.address);
  if (!shared->keys && !address.is_loopback()) {
    return fail(errc::invalid_argument,
                "gateway address {} can be reached from other machines, but there is no key file: give one, or bind "
                "127.0.0.1 or ::1",
                o.address);
  }
  tcp::endpoint endpoint(address, o.port);
  acceptor->open(endpoint.protocol(), ec);
  if (!ec) acceptor->set_option(net::socket_base::reuse_address(true), ec);
  if (!ec) acceptor->bind(endpoint, ec);
  if (!ec) acceptor->listen(1024, ec);
  if (!ec) local = acceptor->local_endpoint(ec);
  if (ec) return fail(errc::io, "gateway cannot listen on {} port {}: {}", o.address, o.port, ec.message());
  return {};
}

void server::impl::accept() {
  auto io = threads[next++ % threads.size()];
  acceptor->async_accept(io->context, [this, io](error_code ec, tcp::socket socket) {
    if (ec == net::error::operation_aborted || !acceptor->is_open()) return;
    if (ec) {  // out of descriptors, most likely: try again a little later
      log::warn("gateway cannot accept a connection: {}", ec.message());
      pause->expires_after(accept_pause);
      pause->async_wait([this](error_code aborted) {
        if (!aborted && acceptor->is_open()) accept();
      });
      return;
    }
    accepted(io, std::move(socket));
    accept();
  });
}

void server::impl::accepted(std::shared_ptr<io_thread> io, tcp::socket socket) {
  bool refuse = shared->connections.load() >= shared->opts.max_connections;
  if (refuse && shared->refused.load() >= refusals) return connection::refuse_at_once(*shared, std::move(socket));
  auto c = std::make_shared<connection>(shared, io, std::move(socket), refuse);
  io->post([c] { c->start(); });
}

void server::impl::run() {
  net::post(threads[0]->context, [this] { accept(); });
  for (auto& io : threads) {
    io->thread = std::thread([io] { io->context.run(); });
  }
}

void server::impl::stop() {
  std::lock_guard lock(stop_mutex);
  if (stopped) return;
  stopped = true;
  shared->draining = true;
  encoders.stop();
  encoders.join();
  for (auto& io : threads) {
    io->post([this, io] {
      if (io == threads[0]) {
        error_code ignored;
        acceptor->close(ignored);
        pause->cancel();
      }
      std::vector<std::shared_ptr<connection>> all;
      for (connection* c : io->open) all.push_back(c->shared_from_this());
      for (auto& c : all) c->stop();
    });
  }
  if (!shared->owed.wait_none(shared->opts.stop_grace))
    log::warn("gateway stops with {} answers that their clients have not taken", shared->owed.count());
  for (auto& io : threads) {
    io->post([io] {
      while (!io->open.empty()) (*io->open.begin())->abort();
      io->work.reset();
    });
  }
  // Connections that were accepted but not started yet, and handlers of closed sockets, end in the loops' last rounds.
  for (auto& io : threads) {
    if (io->thread.joinable()) io->thread.join();
  }
  for (auto& io : threads) {
    io->close();
    io->context.restart();
    while (io->context.poll() > 0) {
      while (!io->open.empty()) (*io->open.begin())->abort();
    }
  }
  acceptor.reset();
  pause.reset();
}

server::server(std::unique_ptr<impl> i) : impl_(std::move(i)) {}
server::~server() { stop(); }

result<std::unique_ptr<server>> server::start(const options& opts, std::shared_ptr<const recipe::recipe> recipe,
                                              generator& gen, observe::metrics& metrics, const clock_source& clock,
                                              rng random) {
  if (opts.io_threads == 0 || opts.encode_threads == 0 || opts.max_connections == 0 || opts.max_requests == 0) {
    return fail(errc::invalid_argument,
                "gateway: io_threads, encode_threads, max_connections and max_requests must be 1 or more");
  }
  auto shared = std::make_shared<core>(opts, std::move(recipe), gen, metrics, clock, random);
  if (!opts.key_file.empty()) {
    TROUPE_TRY(key_ring keys, key_ring::load(opts.key_file));
    shared->keys = std::move(keys);
  }
  auto i = std::make_unique<impl>(shared, opts.io_threads, opts.encode_threads);
  if (auto r = i->bind(); !r) return fail(r.error());
  shared->on_encoder = [pool = &i->encoders](std::function<void()> f) { net::post(*pool, std::move(f)); };
  i->run();
  return std::unique_ptr<server>(new server(std::move(i)));
}

std::string server::address() const {
  std::string host = impl_->local.address().to_string();
  return impl_->local.address().is_v6() ? fmt::format("[{}]:{}", host, port()) : fmt::format("{}:{}", host, port());
}

uint16_t server::port() const { return impl_->local.port(); }
void server::drain() { impl_->shared->draining = true; }
uint32_t server::running() const { return impl_->shared->running.load(); }
uint32_t server::unanswered() const { return impl_->shared->owed.count(); }
bool server::wait_answered(nanoseconds limit) { return impl_->shared->owed.wait_none(limit); }
void server::stop() { impl_->stop(); }

}  // namespace troupe::gateway
