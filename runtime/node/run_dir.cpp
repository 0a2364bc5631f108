#include "runtime/node/run_dir.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::node {
namespace fs = std::filesystem;

std::string default_run_dir(const std::string& cluster) {
  if (const char* given = std::getenv("TROUPE_RUN_DIR"); given && *given) return given;
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR"); xdg && *xdg) return std::string(xdg) + "/troupe/" + cluster;
  std::error_code ec;
  return (fs::temp_directory_path(ec) / ("troupe-" + std::to_string(getuid())) / cluster).string();
}

result<run_dir> run_dir::take(const std::string& path) {
  std::error_code ec;
  mode_t old = umask(0077);
  fs::create_directories(path, ec);
  umask(old);
  if (ec) return fail(errc::io, "{}: {}", path, ec.message());
  struct stat s {};
  if (stat(path.c_str(), &s) != 0 || s.st_uid != getuid()) {
    return fail(errc::io, "{} belongs to somebody else; choose another folder with --run-dir", path);
  }
  std::string lock_path = path + "/lock";
  int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return fail(errc::io, "{}: {}", lock_path, std::strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    ssize_t n = pread(lock, pid, sizeof pid - 1, 0);
    close(lock);
    return fail(errc::unavailable,
                "a cluster runs in {} already (pid {}); stop it, or choose another folder with --run-dir", path,
                n > 0 ? pid : "unknown");
  }
  std::string mine = std::to_string(getpid());
  if (ftruncate(lock, 0) != 0 || pwrite(lock, mine.data(), mine.size(), 0) < 0) {
    int error = errno;
    close(lock);
    return fail(errc::io, "{}: {}", lock_path, std::strerror(error));
  }
  unlink((path + "/cluster.json").c_str());  // of a cluster that was killed
  return run_dir(path, lock);
}

run_dir::run_dir(run_dir&& other) noexcept : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

run_dir::~run_dir() {
  if (lock_ < 0) return;
  unlink((path_ + "/cluster.json").c_str());
  close(lock_);
}

result<void> run_dir::write(const cluster_file& f) const {
  nlohmann::ordered_json j{
      {"name", f.name}, {"director", f.director}, {"http", f.http}, {"model", f.model}, {"pid", f.pid}};
  j["processes"] = nlohmann::ordered_json::array();
  for (const auto& p : f.processes) j["processes"].push_back({{"name", p.name}, {"pid", p.pid}, {"log", p.log}});
  j["fronts"] = f.fronts;
  std::string next = path_ + "/cluster.json.next";
  {
    std::ofstream out(next);
    out << j.dump(2) << "\n";
    if (!out.flush()) return fail(errc::io, "{}: cannot be written", next);
  }
  std::error_code ec;
  fs::rename(next, path_ + "/cluster.json", ec);
  if (ec) return fail(errc::io, "{}: {}", next, ec.message());
  return {};
}

result<cluster_file> read_cluster_file(const std::string& path) {
  std::string file = path + "/cluster.json";
  std::ifstream in(file);
  if (!in)
    return fail(errc::not_found, "no cluster runs in {} (there is no cluster.json); start one with `troupe up`", path);
  try {
    auto j = nlohmann::json::parse(in);
    cluster_file f{j.at("name"), j.at("director"), j.at("http"), j.at("model"), j.at("pid"), {}, j.at("fronts")};
    for (const auto& p : j.at("processes")) f.processes.push_back({p.at("name"), p.at("log"), p.at("pid")});
    return f;
  } catch (const nlohmann::json::exception& e) {
    return fail(errc::corrupt, "{}: {}", file, e.what());
  }
}

}  // namespace troupe::node
