// The supervisor and the run directory, with /bin/sh as the program.
#include "runtime/node/supervisor.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/node/run_dir.hpp"

namespace troupe::node {
namespace {

using namespace std::chrono_literals;
using kind = supervisor_event::kind;

// A folder that goes away with the test.
struct folder {
  std::string path;
  folder() {
    char name[] = "/tmp/troupe-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~folder() { std::filesystem::remove_all(path); }
};

// A shell script as a child; `--report-fd 3` arrives as $1 $2.
child_spec script(std::string name, std::string text) { return {std::move(name), {"-c", std::move(text), "sh"}}; }

TEST(supervisor, reports_come_in_order_and_the_exit_last) {
  folder f;
  supervisor s("/bin/sh", f.path);
  ASSERT_TRUE(s.start(script("a", "echo \"$1 $2\"; echo one >&3; echo two >&3; echo oops >&2; exit 3")));
  std::vector<std::string> seen;
  for (;;) {
    supervisor_event e = s.wait(30s);
    ASSERT_NE(e.what, kind::quiet);
    seen.push_back(e.text);
    if (e.what == kind::exited) break;
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"one", "two", "exit code 3"}));
  EXPECT_EQ(s.log_tail("a", 10), "  --report-fd 3\n  oops\n");
  EXPECT_TRUE(s.running().empty());
}

TEST(supervisor, a_quiet_wait_ends_at_its_limit_and_signals_arrive) {
  folder f;
  supervisor s("/bin/sh", f.path);
  EXPECT_EQ(s.wait(1ms).what, kind::quiet);
  kill(getpid(), SIGTERM);
  supervisor_event e = s.wait(30s);
  EXPECT_EQ(e.what, kind::signalled);
  EXPECT_EQ(e.text, "Terminated");
}

TEST(supervisor, stop_ends_stages_in_order_and_kills_what_does_not_listen) {
  folder f;
  supervisor s("/bin/sh", f.path);
  // Each waits in a read of a pipe that nobody writes to, so the shell gets the signal at once.
  std::string wait_for_term = "trap 'echo stopped >> " + f.path +
                              "/order; exit 0' TERM; echo up >&3; while :; do read x < " + f.path + "/never; done";
  ASSERT_EQ(0, system(("mkfifo " + f.path + "/never").c_str()));
  ASSERT_TRUE(s.start(script("polite", wait_for_term)));
  ASSERT_EQ(s.wait(30s).text, "up");
  ASSERT_TRUE(s.start(script("deaf", "trap '' TERM; echo up >&3; while :; do read x < " + f.path + "/never; done")));
  ASSERT_EQ(s.wait(30s).text, "up");
  auto bad = s.stop({{"polite"}, {"deaf"}}, 300ms);
  EXPECT_EQ(bad, std::vector<std::string>{"deaf"});
  EXPECT_TRUE(s.running().empty());
  std::ifstream in(f.path + "/order");
  std::string word;
  in >> word;
  EXPECT_EQ(word, "stopped");
}

TEST(supervisor, a_program_that_is_not_there_shows_in_the_exit_and_the_log) {
  folder f;
  supervisor s("/nonexistent/program", f.path, "/nonexistent/either");
  ASSERT_TRUE(s.start({"a", {}}));
  supervisor_event e = s.wait(30s);
  EXPECT_EQ(e.what, kind::exited);
  EXPECT_EQ(e.text, "exit code 126");
  EXPECT_NE(s.log_tail("a", 3).find("could not be started"), std::string::npos);
}

TEST(supervisor, another_program_takes_the_place_of_one_that_is_not_there) {
  folder f;
  supervisor s("/nonexistent/program", f.path, "/bin/sh");
  ASSERT_TRUE(s.start(script("a", "exit 7")));
  EXPECT_EQ(s.wait(30s).text, "exit code 7");
}

TEST(supervisor, children_die_with_a_supervisor_that_is_killed) {
  folder f;
  ASSERT_EQ(0, system(("mkfifo " + f.path + "/never " + f.path + "/alive").c_str()));
  pid_t middle = fork();
  if (middle == 0) {
    supervisor s("/bin/sh", f.path);
    auto pid = s.start(script("a", "exec 4> " + f.path + "/alive; read x < " + f.path + "/never"));
    s.wait(600s);
    _exit(pid ? 0 : 1);
  }
  std::ifstream alive(f.path + "/alive");  // opens once the child has opened its end
  kill(middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  std::string rest;
  alive >> rest;  // ends when the last writer, the grandchild, is gone
  EXPECT_TRUE(alive.eof());
}

TEST(run_dir, one_owner_at_a_time_and_a_file_that_round_trips) {
  folder f;
  std::string path = f.path + "/x/y";
  cluster_file file{"c", "127.0.0.1:1", "127.0.0.1:2", "m", 7, {{"director", "/l", 8}}};
  {
    auto first = run_dir::take(path);
    ASSERT_TRUE(first) << first.error().message;
    auto second = run_dir::take(path);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, errc::unavailable);
    EXPECT_NE(second.error().message.find(std::to_string(getpid())), std::string::npos) << second.error().message;
    ASSERT_TRUE(first->write(file));
    EXPECT_EQ(read_cluster_file(path).value(), file);
  }
  EXPECT_EQ(read_cluster_file(path).error().code, errc::not_found);
  EXPECT_TRUE(run_dir::take(path));
}

TEST(run_dir, a_broken_file_is_named) {
  folder f;
  std::ofstream(f.path + "/cluster.json") << "{";
  auto r = read_cluster_file(f.path);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::corrupt);
  EXPECT_NE(r.error().message.find("cluster.json"), std::string::npos);
}

}  // namespace
}  // namespace troupe::node
