#include "runtime/transport/ucx_core.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/transport/codec.hpp"
#include "runtime/transport/ucx_reach.hpp"

namespace troupe::transport::ucx {
namespace {

ucs_log_func_rc_t log_line(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                           const char* format, va_list args) {
  if (level <= UCS_LOG_LEVEL_WARN) {
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    log::debug("ucx: {}", text);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

void adopt_log() {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(log_line); });
}

}  // namespace

tl::unexpected<error> ucx_failure(std::string_view what, ucs_status_t status) {
  return fail(errc::unavailable, "{}: {}", what, ucs_status_string(status));
}

result<std::unique_ptr<node>> node::make(const std::string& tls, const std::string& interface, uint64_t features) {
  adopt_log();
  ucp_config_t* config = nullptr;
  if (const auto s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) return ucx_failure("ucp_config_read", s);
  // ucp_config_modify answers OK to unknown keys, so a typo here is silent: tests check the effect.
  ucp_config_modify(config, "TLS", tls.c_str());
  if (!interface.empty()) ucp_config_modify(config, "NET_DEVICES", interface.c_str());
  ucp_config_modify(config, "MAX_EAGER_RAILS", "1");  // messages to a peer stay in order
  // A frame that is sent from where it lies and meets a reset is completed twice (uct_tcp_ep_sendv), an assertion.
  ucp_config_modify(config, "ZCOPY_THRESH", "inf");
  std::unique_ptr<node> n(new node);
  const auto listened = listeners();
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = features;
  auto status = ucp_init(&params, config, &n->context_);
  ucp_config_release(config);
  if (status != UCS_OK) return ucx_failure(fmt::format("UCX with {} on '{}'", tls, interface), status);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(n->context_, &worker, &n->worker_);
  if (status != UCS_OK) return ucx_failure(fmt::format("UCX worker with {} on '{}'", tls, interface), status);
  ucp_address_t* address = nullptr;
  size_t length = 0;
  status = ucp_worker_get_address(n->worker_, &address, &length);
  if (status != UCS_OK) return ucx_failure("ucp_worker_get_address", status);
  node_address whole;
  whole.worker.assign(reinterpret_cast<const char*>(address), length);
  for (const auto& [fd, where] : listeners())
    if (!listened.contains(fd) && where.size() >= 4 && whole.worker.find(where.substr(2, 2)) != std::string::npos)
      whole.listeners.push_back(where);
  n->address_ = whole.encode();
  ucp_worker_release_address(n->worker_, address);
  return n;
}

result<std::unique_ptr<node>> node::messages(const std::string& interface) {
  return make("tcp", interface, UCP_FEATURE_AM | UCP_FEATURE_WAKEUP);
}

node::~node() {
  // See the class: neither the worker nor what its requests use may go before the process does.
  new std::vector<std::shared_ptr<void>>(std::move(buried_));
}

namespace {

// The sockets that the guards of this process have found theirs. Two transports may have connections to the same peer.
struct {
  std::mutex mutex;
  std::set<std::pair<int, std::string>> claimed;
} sockets;

}  // namespace

void guard::error_callback(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* l = static_cast<listener*>(arg);
  l->failed = true;
  if (auto f = std::exchange(l->on_error, {})) f(status);
}

result<std::unique_ptr<guard>> guard::connect(node& local, const std::string& peer_address,
                                              std::function<void(ucs_status_t)> on_error) {
  TROUPE_TRY(const auto peer, node_address::decode(peer_address));
  if (!reachable(peer)) return fail(errc::unavailable, "the peer's host does not answer");
  std::unique_ptr<guard> g(new guard);
  g->local_ = &local;
  g->listener_->on_error = std::move(on_error);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &guard::error_callback;
  params.err_handler.arg = g->listener_.get();
  std::lock_guard lock(sockets.mutex);
  if (const auto s = ucp_ep_create(local.worker(), &params, &g->endpoint_); s != UCS_OK)
    return ucx_failure("endpoint", s);
  g->where_ = peer.listeners;
  for (const std::pair<int, std::string> s : connected_to(g->where_))
    if (sockets.claimed.insert(s).second) g->sockets_.push_back(s);
  return g;
}

void guard::lose_sockets() {
  bool any = false;
  {
    std::lock_guard lock(sockets.mutex);
    for (const std::pair<int, std::string> s : connected_to(where_)) {
      // One that nobody has claimed is of a connection that UCX has made anew.
      const bool mine = std::find(sockets_.begin(), sockets_.end(), s) != sockets_.end();
      if (!mine && sockets.claimed.contains(s)) continue;
      any |= shutdown(s.first, SHUT_RDWR) == 0;
    }
  }
  const nanoseconds until = steady_clock().now() + std::chrono::milliseconds(100);
  while (any && !listener_->failed && steady_clock().now() < until) local_->progress();
}

guard::~guard() {
  if (!endpoint_) return;
  listener_->on_error = {};
  if (!settled_ && !listener_->failed) {
    listener_->memory = std::move(memory_);
    local_->bury(std::move(listener_));
    return;
  }
  if (!listener_->failed) lose_sockets();
  {
    std::lock_guard lock(sockets.mutex);
    for (const auto& s : sockets_) sockets.claimed.erase(s);
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(endpoint_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) local_->progress();
  ucp_request_free(request);
}

result<std::unique_ptr<sleeper>> sleeper::make(node& first, node& second) {
  std::unique_ptr<sleeper> s(new sleeper);
  s->first_ = &first;
  s->second_ = &second;
  int workers[2];
  for (int i = 0; i < 2; ++i)
    if (const auto st = ucp_worker_get_efd((i ? second : first).worker(), &workers[i]); st != UCS_OK)
      return ucx_failure("ucp_worker_get_efd", st);
  s->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  s->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (s->epoll_ < 0 || s->event_ < 0) return fail(errc::io, "epoll or eventfd: errno {}", errno);
  for (const int fd : {workers[0], workers[1], s->event_}) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = fd;
    if (epoll_ctl(s->epoll_, EPOLL_CTL_ADD, fd, &e) != 0) return fail(errc::io, "epoll_ctl: errno {}", errno);
  }
  return s;
}

sleeper::~sleeper() {
  if (epoll_ >= 0) close(epoll_);
  if (event_ >= 0) close(event_);
}

void sleeper::sleep(nanoseconds limit) {
  for (const node* n : {first_, second_})
    if (ucp_worker_arm(n->worker()) != UCS_OK) return;  // busy: progress again
  // Rounded up: epoll counts milliseconds and a wait of 0 would spin until the limit.
  const int64_t ms = std::clamp<int64_t>((limit.count() + 999'999) / 1'000'000, 0, 60'000);
  epoll_event events[3];
  epoll_wait(epoll_, events, 3, static_cast<int>(ms));
  uint64_t count;
  [[maybe_unused]] const auto n = read(event_, &count, sizeof count);
}

void sleeper::signal() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(event_, &one, sizeof one);
}

}  // namespace troupe::transport::ucx
