// Child processes of one program: started, watched, stopped. Used by `troupe up`, which runs one process per node.
#pragma once

#include <sys/types.h>

#include <csignal>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

namespace troupe::node {

/// A process to start.
struct child_spec {
  std::string name;               // unique; names the log file
  std::vector<std::string> args;  // after the program; `--report-fd N` is added
};

/// What the supervisor has to tell, one thing at a time.
struct supervisor_event {
  enum class kind : uint8_t {
    quiet,     // nothing within the limit
    report,    // the child `name` wrote the line `text` to its report pipe
    exited,    // the child `name` ended; `text` says how
    signalled  // this process got SIGINT, SIGTERM or SIGHUP; `text` is its name
  };
  kind what = kind::quiet;
  std::string name, text;
};

/// Starts children so that they cannot outlive it: each gets SIGTERM when this process dies, whatever the reason, lives
/// in a process group of its own (a Ctrl-C in the terminal reaches only the supervisor), and writes stdout and stderr
/// to FOLDER/NAME.log. One thread, the one that made it. While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD arrive
/// through `wait` only.
class supervisor {
 public:
  /// `program` is run for every child, or `otherwise` (empty: nothing) where that cannot be started. `folder` must
  /// exist.
  supervisor(std::string program, std::string folder, std::string otherwise = "");
  /// Kills what still runs.
  ~supervisor();
  supervisor(const supervisor&) = delete;
  supervisor& operator=(const supervisor&) = delete;

  /// Starts a child; an existing log of that name is replaced. Returns its pid.
  result<pid_t> start(const child_spec& spec);

  /// The next event; waits at most `limit`. Events of one child come in order, its exit last.
  supervisor_event wait(nanoseconds limit);

  /// `signal` to the children named, in that order, waiting for each group of equal `stage` before the next; what does
  /// not end within `grace` gets SIGKILL. A second signal to this process skips the rest of the grace. Lines that
  /// children report meanwhile go to `on_report`, with the child's name. Returns the names that had to be killed or
  /// ended with an error.
  using report_sink = std::function<void(const std::string& name, const std::string& line)>;
  std::vector<std::string> stop(const std::vector<std::vector<std::string>>& stages, nanoseconds grace,
                                int signal = SIGTERM, const report_sink& on_report = {});

  /// Children that run.
  const std::map<std::string, pid_t>& running() const { return running_; }

  /// Last `lines` lines of a child's log.
  std::string log_tail(const std::string& name, size_t lines) const;
  /// Path of a child's log.
  std::string log_path(const std::string& name) const { return folder_ + "/" + name + ".log"; }

 private:
  void reap(std::vector<supervisor_event>& events);
  void read_report(const std::string& name);

  struct pipe_end {
    int fd = -1;
    std::string partial;
  };
  std::string program_, folder_, otherwise_;
  int signals_ = -1;
  sigset_t old_mask_{};
  std::map<std::string, pid_t> running_;
  std::map<std::string, pipe_end> reports_;
  std::vector<supervisor_event> queue_;  // ready events; bounded by the lines one read returns
};

/// "exit code 3", "signal 9 (Killed)": a wait status for people.
std::string describe_exit(int wait_status);

}  // namespace troupe::node
