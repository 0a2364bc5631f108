#include "runtime/node/local_cluster.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/protocol/storage.hpp"
#include "runtime/base/log.hpp"
#include "runtime/node/node_process.hpp"
#include "runtime/node/roles.hpp"

namespace troupe::node {

std::vector<std::string> seats_of(const config::settings& s) {
  std::vector<std::string> out{"director"};
  for (const auto& g : wanted_groups(s)) {
    for (uint32_t i = 0; i < std::min(g.count, g.open); ++i) out.push_back(g.group + "/" + std::to_string(i));
  }
  return out;
}

local_cluster::local_cluster(const up_request& request, node::run_dir dir)
    : request_(request), dir_(std::move(dir)), children_(request.program, dir_.path(), request.otherwise) {
  facts_.name = request_.settings.cluster.name;
  facts_.pid = getpid();
}

result<std::unique_ptr<local_cluster>> local_cluster::start(const up_request& request) {
  TROUPE_TRY(auto dir, run_dir::take(request.run_dir));
  std::unique_ptr<local_cluster> c(new local_cluster(request, std::move(dir)));
  auto up = c->bring_up();
  if (!up) {
    c->stop(true);
    return fail(up.error());
  }
  return c;
}

result<void> local_cluster::start_child(const std::string& seat, const std::string& join) {
  child_spec spec{process_name(seat), {"node", "--config", request_.config_file}};
  // A rank that may change its role is not started for a seat.
  const bool rank = seat != "director" && !seat.starts_with("front") && !seat.starts_with(actors::storage_group);
  if (rank && request_.settings.cluster.role_changes)
    spec.name = fmt::format("rank-{}", ranks_.size());
  else
    spec.args.insert(spec.args.end(), {"--seat", seat});
  for (const auto& o : request_.overrides) spec.args.insert(spec.args.end(), {"--set", o});
  if (!join.empty()) spec.args.insert(spec.args.end(), {"--join", join});
  TROUPE_TRY(pid_t pid, children_.start(spec));
  facts_.processes.push_back({spec.name, children_.log_path(spec.name), pid});
  if (seat.rfind(actors::storage_group, 0) == 0)
    stores_.push_back(spec.name);
  else if (seat.rfind("front", 0) == 0)
    fronts_.push_back(spec.name);
  else if (rank)
    ranks_.push_back(spec.name);
  return {};
}

error local_cluster::died(const supervisor_event& e) const {
  return {errc::unavailable, fmt::format("the process {} ended unexpectedly ({}); the end of {}:\n{}", e.name, e.text,
                                         children_.log_path(e.name), children_.log_tail(e.name, 15))};
}

result<void> local_cluster::bring_up() {
  const nanoseconds deadline = steady_clock().now() + request_.ready_within;
  if (auto ok = start_child("director", ""); !ok) return ok;
  std::string waits_for = "the director's address";
  std::set<std::string> opened, ready;  // storage nodes; fronts
  facts_.fronts.resize(request_.settings.front.count);
  for (;;) {
    nanoseconds left = deadline - steady_clock().now();
    supervisor_event e = left > nanoseconds(0) ? children_.wait(left) : supervisor_event{};
    if (e.what == supervisor_event::kind::quiet) {
      return fail(errc::unavailable, "the cluster was not ready within {}: it waits for {}; logs are in {}\n{}",
                  config::format_duration(request_.ready_within), waits_for, dir_.path(),
                  children_.log_tail("front.0", 10));
    }
    if (e.what == supervisor_event::kind::signalled)
      return fail(errc::cancelled, "stopped by a signal ({}) before it was ready", e.text);
    if (e.what == supervisor_event::kind::exited) return fail(died(e));
    auto line = nlohmann::json::parse(e.text, nullptr, false);
    if (!line.is_object()) continue;
    if (e.name == "director" && line.contains("actor")) {
      facts_.director = line["actor"];
      for (const std::string& seat : seats_of(request_.settings)) {
        if (seat == "director") continue;
        if (auto ok = start_child(seat, facts_.director); !ok) return ok;
      }
      waits_for = "a canary request to go through";
    }
    if (line.contains("http")) {
      for (size_t i = 0; i < fronts_.size(); ++i)
        if (fronts_[i] == e.name) facts_.fronts[i] = line["http"];
      facts_.http = facts_.fronts[0];
      facts_.model = line.value("model", "");
    }
    if (line.contains("failed")) {
      return fail(errc::unavailable, "{} cannot start: {}; its log is {}", e.name, line.value("failed", ""),
                  children_.log_path(e.name));
    }
    if (line.value("stores", false)) opened.insert(e.name);
    if (line.contains("ready")) line.value("ready", false) ? (void)ready.insert(e.name) : (void)ready.erase(e.name);
    const bool serves = !fronts_.empty() && ready.size() == fronts_.size();
    if (serves) waits_for = "the storage nodes to open their disks";
    if (serves && opened.size() == stores_.size()) return dir_.write(facts_);
  }
}

result<bool> local_cluster::watch(nanoseconds limit) {
  const nanoseconds deadline = steady_clock().now() + limit;
  for (;;) {
    nanoseconds left = deadline - steady_clock().now();
    if (left <= nanoseconds(0)) return true;
    supervisor_event e = children_.wait(left);
    if (e.what == supervisor_event::kind::signalled) return false;
    if (e.what == supervisor_event::kind::exited) return fail(died(e));
    if (e.what == supervisor_event::kind::report && e.text.find("\"ready\":false") != std::string::npos) {
      log::warn("{} is not ready any more; see {}", e.name, children_.log_path(e.name));
    }
    if (e.what == supervisor_event::kind::report && e.text.find("\"failed\":") != std::string::npos) {
      log::error("{}: {}; see {}", e.name, e.text, children_.log_path(e.name));
    }
  }
}

std::vector<std::string> local_cluster::stop(bool broken, const std::function<void(uint64_t)>& on_waiting) {
  using namespace std::chrono_literals;
  nanoseconds drain = request_.settings.cluster.drain_timeout;
  if (broken) drain = std::min<nanoseconds>(drain, 1s);
  return children_.stop({fronts_, ranks_, stores_, {"director"}}, drain + 2s, broken ? SIGUSR1 : SIGTERM,
                        [&](const std::string&, const std::string& text) {
                          auto line = nlohmann::json::parse(text, nullptr, false);
                          if (on_waiting && line.is_object() && line.contains("waits")) on_waiting(line["waits"]);
                        });
}

}  // namespace troupe::node
