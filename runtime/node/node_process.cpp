#include "runtime/node/node_process.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "actors/cluster/node_agent.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/wall.hpp"
#include "runtime/node/actor_net.hpp"
#include "runtime/node/directory.hpp"
#include "runtime/node/front.hpp"
#include "runtime/node/live_parts.hpp"
#include "runtime/node/signals.hpp"

namespace troupe::node {
namespace {

using namespace std::chrono_literals;

constexpr auto tick = 200ms;       // of the main loop
constexpr auto short_drain = 1s;   // after SIGUSR1
constexpr auto stop_margin = 10s;  // beyond the drain time, before a stop that hangs is ended by force

// Writes JSON lines to the supervisor. A supervisor that is gone is no error: this process gets a signal then.
class reporter {
 public:
  explicit reporter(int fd) : fd_(fd) {}
  void say(const nlohmann::json& line) const {
    if (fd_ < 0) return;
    std::string text = line.dump() + "\n";
    for (size_t at = 0; at < text.size();) {
      ssize_t n = write(fd_, text.data() + at, text.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }

 private:
  int fd_;
};

actors::node_resources resources() {
  actors::node_resources r;
  r.cpus = std::max(1u, std::thread::hardware_concurrency());
  r.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  return r;
}

class process {
 public:
  explicit process(const node_request& request)
      : request_(request),
        settings_(request.settings),
        signals_{SIGINT, SIGTERM, SIGHUP, SIGUSR1},
        report_(request.report_fd),
        net_({2, settings_.cluster.heartbeat, settings_.cluster.connection_timeout, true}) {}

  result<void> run() {
    auto started = start();
    if (started) started = serve();
    stop(started.has_value());
    return started;
  }

 private:
  bool is_director() const { return request_.seat == "director"; }

  result<void> start() {
    auto& system = net_.system();
    config::address reached;
    if (is_director()) {
      auto d = director_options_of(settings_, cluster_epoch{static_cast<uint64_t>(wall_tenths())});
      // Under a supervisor the cluster begins anew; otherwise nodes may run that another director has led.
      if (request_.report_fd < 0) d.settle = 3 * settings_.cluster.heartbeat;
      director_ = actors::spawn_director(system, system.node(), nullptr, std::move(d));
      TROUPE_TRY(reached, net_.publish(director_, settings_.director.listen));
    }
    door_ = spawn_door(system, agent_cell_);
    TROUPE_TRY(config::address self, net_.publish(door_, {"127.0.0.1", 0}));
    directory_options o;
    o.director = is_director() ? reached : request_.join;
    o.self = self;
    o.agent = agent_cell_;
    o.door = caf::actor_cast<actors::any_handle>(door_);
    directory_ = spawn_directory(system, o);
    agent_cell_->set_directory(directory_);
    if (request_.seat.rfind("front", 0) == 0) {
      TROUPE_TRY(uint32_t index, front_index());
      TROUPE_TRY(front_, front::start(settings_, index, net_));
      report_.say({{"http", front_->address()}, {"model", front_->model()}});
      log::info("{} is served at http://{}/v1", front_->model(), front_->address());
    }
    factory_ = make_role_factory(
        settings_, make_live_parts(settings_, true),
        [this](actors::entrypoint_actor e) {
          if (front_) front_->attach(std::move(e));
        },
        front_ ? front_->address() : "");
    actors::node_agent_options a;
    a.self.cluster = settings_.cluster.name;
    a.self.name = request_.seat.empty() ? fmt::format("node-{}", getpid()) : process_name(request_.seat);
    a.self.host = self.host;
    a.self.port = self.port;
    a.self.pid = getpid();
    a.self.wanted_seat = is_director() ? "none" : request_.seat;
    a.self.resources = resources();
    a.roles = factory_;
    a.directory = directory_;
    if (is_director()) a.director = caf::actor_cast<actors::any_handle>(director_);
    agent_ = actors::spawn_node_agent(system, system.node(), nullptr, std::move(a));
    agent_cell_->set(agent_);
    report_.say({{"actor", (is_director() ? reached : self).text()}});
    log::info("{} is reached at {}", request_.seat.empty() ? "a spare node" : request_.seat,
              (is_director() ? reached : self).text());
    return {};
  }

  // Its HTTP address depends on its number, so a front has to say which one it is.
  result<uint32_t> front_index() const {
    if (request_.seat == "front" && settings_.front.count == 1) return 0u;
    for (uint32_t i = 0; i < settings_.front.count; ++i)
      if (request_.seat == "front/" + std::to_string(i)) return i;
    return fail(errc::invalid_argument, "there is no seat '{}': front.count is {}, so they are front/0 to front/{}",
                request_.seat, settings_.front.count, settings_.front.count - 1);
  }

  // Until a signal, or until joining has failed.
  result<void> serve() {
    const nanoseconds give_up = steady_clock().now() + settings_.cluster.join_timeout;
    bool joined = false, failed = false, stores = false;
    for (;;) {
      if (int s = signals_.wait(tick); s != 0) {
        log::info("stopping: {}", s == SIGUSR1 ? "at once, a process of the cluster has failed" : strsignal(s));
        if (s == SIGUSR1) drain_ = std::min<nanoseconds>(drain_, short_drain);
        return {};
      }
      if (!joined || !failed) {
        auto r = ask<actors::agent_report>(actors::agent_query{}, 2s);
        if (!joined && r && r->joined) {
          joined = true;
          report_.say({{"joined", r->node.value}});
        } else if (!joined && steady_clock().now() > give_up) {
          return fail(errc::unavailable, "could not join the cluster at {} within {}: {}", request_.join.text(),
                      config::format_duration(settings_.cluster.join_timeout), r ? r->text : r.error().message);
        }
        if (r) failed = tell_of_failure(*r);
        if (r && !stores && stores_blocks(*r)) report_.say({{"stores", stores = true}});
      }
      if (front_ && front_->look_after()) report_.say({{"ready", front_->ready()}});
    }
  }

  // A role that could not start stays like that: somebody has to look.
  bool tell_of_failure(const actors::agent_report& r) const {
    for (const auto& role : r.roles) {
      if (role.state != actors::role_state::failed) continue;
      report_.say({{"failed", role.assignment.seat() + ": " + role.text}});
      return true;
    }
    return false;
  }

  static bool stores_blocks(const actors::agent_report& r) {
    return std::any_of(r.roles.begin(), r.roles.end(), [](const actors::role_report& role) {
      return role.assignment.what == actors::role::storage && role.state == actors::role_state::ready;
    });
  }

  void stop(bool drain) {
    const nanoseconds grace = drain ? drain_ : 0ns;
    const nanoseconds end = steady_clock().now() + grace;
    arm_hard_stop(grace + stop_margin);
    if (front_) {
      front_->drain();
      report_.say({{"waits", front_->unanswered()}});
    }
    if (agent_) {
      auto reply = ask<actors::stop_reply>(
          actors::stop_request{std::chrono::duration_cast<std::chrono::milliseconds>(grace).count()}, grace + 3s);
      if (!reply)
        log::warn("drain: {}", reply.error().message);
      else if (reply->left > 0)
        log::warn("{} requests were cut off at the end of the time to drain", reply->left);
    }
    if (front_) {
      // The cluster is through with the requests; their answers may still be on the way to the clients.
      if (!front_->wait_answered(std::max<nanoseconds>(end - steady_clock().now(), 0ns)))
        log::warn("{} answers had not left at the end of the time to drain", front_->unanswered());
      front_->stop();
    }
    agent_cell_->set({});
    agent_cell_->set_directory({});
    for (const auto& h : {caf::actor_cast<actors::any_handle>(agent_), caf::actor_cast<actors::any_handle>(directory_),
                          caf::actor_cast<actors::any_handle>(door_), caf::actor_cast<actors::any_handle>(director_)}) {
      if (h) caf::anon_send_exit(h, caf::exit_reason::user_shutdown);
    }
    log::info("stopped");
  }

  template <class Answer, class Request>
  result<Answer> ask(Request request, nanoseconds limit) {
    result<Answer> out = fail(errc::timeout, "the node agent does not answer");
    caf::scoped_actor self{net_.system()};
    self->request(agent_, std::chrono::duration_cast<std::chrono::microseconds>(limit), std::move(request))
        .receive([&](Answer& a) { out = std::move(a); }, [&](caf::error& e) { out = fail(actors::from_caf(e)); });
    return out;
  }

  const node_request& request_;
  const config::settings& settings_;
  nanoseconds drain_ = settings_.cluster.drain_timeout;
  signal_reader signals_;  // before the first thread
  reporter report_;
  actor_net net_;
  const std::shared_ptr<local_agent> agent_cell_ = std::make_shared<local_agent>();
  std::unique_ptr<front> front_;
  std::shared_ptr<actors::role_factory> factory_;
  actors::director_actor director_;
  door_actor door_;
  actors::directory_actor directory_;
  actors::node_agent_actor agent_;
};

}  // namespace

std::string process_name(const std::string& seat) {
  std::string out = seat;
  std::replace(out.begin(), out.end(), '/', '.');
  return out;
}

result<void> run_node(const node_request& request) {
  log::init(request.seat.empty() ? "node" : process_name(request.seat), request.settings.log.level);
  process p(request);
  return p.run();
}

}  // namespace troupe::node
