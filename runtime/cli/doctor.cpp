#include "runtime/cli/doctor.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "runtime/cli/doctor_model.hpp"
#include "runtime/transport/memory.hpp"
#include "runtime/transport/process_transport.hpp"

namespace troupe::cli {
namespace {

// The number after `key` in a file of "key value" lines; -1 where there is none.
int64_t number_in(const char* file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    if (word != key) continue;
    int64_t v = -1;
    in >> v;
    return v;
  }
  return -1;
}

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string gib(uint64_t bytes) { return fmt::format("{:.1f} GiB", double(bytes) / double(1ull << 30)); }

}  // namespace

const char* to_string(verdict v) {
  switch (v) {
    case verdict::good:
      return "good";
    case verdict::degraded:
      return "degraded";
    case verdict::missing:
      return "missing";
    case verdict::bad:
      return "bad";
  }
  return "?";
}

finding check_cpu() {
  finding f{"cpu", verdict::good, "", ""};
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  f.value = avx512 ? "avx512, avx2, portable" : avx2 ? "avx2, portable" : "portable";
  if (!avx2) {
    f.level = verdict::degraded;
    f.advice = "no AVX2 with FMA: the portable kernels are many times slower";
  }
#else
  f.value = "portable";
  f.level = verdict::degraded;
  f.advice = "not an x86-64 CPU: only the portable kernels run";
#endif
  return f;
}

finding check_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  finding f{"cores", verdict::good, std::to_string(allowed), ""};
  std::istringstream quota(first_line("/sys/fs/cgroup/cpu.max"));
  std::string limit;
  double period = 0;
  if (quota >> limit >> period && limit != "max" && period > 0) {
    double cores = std::stod(limit) / period;
    f.value += fmt::format(", cgroup quota {:.1f}", cores);
    allowed = std::min(allowed, std::max(1, static_cast<int>(cores)));
  }
  if (allowed < 2) {
    f.level = verdict::degraded;
    f.advice =
        "one core for several ranks: a step waits for every rank to get its turn; raise transport.step_deadline if "
        "ranks are reported lost";
  }
  return f;
}

finding check_memory(uint64_t needed) {
  int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
  uint64_t free = kib < 0 ? 0 : static_cast<uint64_t>(kib) * 1024;
  std::string max = first_line("/sys/fs/cgroup/memory.max"), used = first_line("/sys/fs/cgroup/memory.current");
  finding f{"memory", verdict::good, "", ""};
  if (!max.empty() && max != "max" && !used.empty()) {
    uint64_t limit = std::stoull(max), now = std::stoull(used);
    free = std::min<uint64_t>(free, limit > now ? limit - now : 0);
    f.value = " (cgroup limit " + gib(limit) + ")";
  }
  f.value = gib(free) + " free" + f.value;
  uint64_t want = std::max<uint64_t>(needed, 256ull << 20);
  if (free < want) {
    f.level = verdict::bad;
    f.advice =
        fmt::format("at least {} are needed; lower prefill.pages and decode.pages, or use a larger machine", gib(want));
  }
  return f;
}

finding check_shared_memory() {
  finding f{"shared memory", verdict::good, "processes of this user can map each other's", ""};
  const auto mine = transport::memory::allocate(1 << 20);
  const auto map = mine ? transport::mapping::open((*mine)->key()) : fail(mine.error());
  if (!map) {
    f.level = verdict::degraded;
    f.value = map.error().message;
    f.advice = "ranks on this machine have to use TCP: set transport.shared_memory to false";
  }
  return f;
}

finding check_files() {
  rlimit r{};
  getrlimit(RLIMIT_NOFILE, &r);
  finding f{"open files", verdict::good, std::to_string(r.rlim_cur), ""};
  if (r.rlim_cur < 4096) {
    f.level = verdict::degraded;
    f.advice = "every connection needs one; raise it with `ulimit -n 65536`";
  }
  return f;
}

std::vector<finding> check_ucx() {
  std::vector<finding> out;
  finding version{"ucx", verdict::good, ucp_get_version_string(), ""};
  if (std::string(UCX_BUILD_VERSION).rfind(version.value.substr(0, version.value.rfind('.')), 0) != 0) {
    version.level = verdict::degraded;
    version.advice =
        std::string("built against ") + UCX_BUILD_VERSION + "; run with the library that it was built with";
  }
  out.push_back(version);
  for (bool shared : {true, false}) {
    finding f{shared ? "data plane, shared memory" : "data plane, tcp", verdict::good,
              "a transport starts and allocates memory", ""};
    transport::options o;
    o.shared_memory = shared;
    auto t = transport::make_process_transport(o);
    auto region = t ? (*t)->allocate(1 << 20) : result<transport::region_ptr>(fail(t.error()));
    if (!region) {
      f.level = shared ? verdict::degraded : verdict::bad;
      f.value = region.error().message;
      f.advice = shared ? "set transport.shared_memory to false" : "a network interface (at least lo) must be up";
    }
    out.push_back(f);
  }
  return out;
}

finding check_cuda() {
  finding f{"cuda", verdict::missing, "", "only the CPU engine is available"};
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    f.value = "no NVIDIA driver (libcuda.so.1 is not installed)";
    return f;
  }
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(lib, "cuInit"));
  auto count = reinterpret_cast<int (*)(int*)>(dlsym(lib, "cuDeviceGetCount"));
  int n = 0;
  int rc = init ? init(0) : -1;
  if (rc == 0 && count) rc = count(&n);
  if (rc != 0)
    f.value = fmt::format("the NVIDIA driver answers error {}", rc);
  else if (n == 0)
    f.value = "the NVIDIA driver sees no device";
  else
    f = {"cuda", verdict::good, fmt::format("{} device{}", n, n == 1 ? "" : "s"), ""};
  if (f.level == verdict::good && !TROUPE_HAVE_CUDA) {
    f.level = verdict::missing;
    f.advice = "this build has no CUDA toolkit; install it and configure again";
  }
  dlclose(lib);
  return f;
}

finding check_nccl() {
  finding f{"nccl", verdict::missing, "", "only needed for GPUs of several hosts"};
  void* lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    f.value = "libnccl.so.2 is not installed";
    return f;
  }
  auto get = reinterpret_cast<int (*)(int*)>(dlsym(lib, "ncclGetVersion"));
  int v = 0;
  if (get && get(&v) == 0)
    f = {"nccl", verdict::good, fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100), ""};
  else
    f.value = "libnccl.so.2 does not answer";
  dlclose(lib);
  return f;
}

finding check_port(const config::address& a) {
  finding f{"port " + a.text(), verdict::good, "free", ""};
  sockaddr_storage where{};
  socklen_t length = 0;
  bool v6 = a.host.find(':') != std::string::npos;
  std::string host = a.host == "localhost" ? "127.0.0.1" : a.host;
  if (v6) {
    auto* in = reinterpret_cast<sockaddr_in6*>(&where);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(a.port);
    inet_pton(AF_INET6, host.c_str(), &in->sin6_addr);
    length = sizeof *in;
  } else {
    auto* in = reinterpret_cast<sockaddr_in*>(&where);
    in->sin_family = AF_INET;
    in->sin_port = htons(a.port);
    inet_pton(AF_INET, host.c_str(), &in->sin_addr);
    length = sizeof *in;
  }
  int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int on = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&where), length) != 0 || listen(fd, 1) != 0) {
    f.level = verdict::bad;
    f.value = std::strerror(errno);
    f.advice = "stop what uses it, or choose another address with --set front.listen=127.0.0.1:0 (a free one)";
  }
  if (fd >= 0) close(fd);
  return f;
}

std::vector<finding> examine(const doctor_request& request) {
  std::vector<finding> out{check_cpu(), check_cores(), check_memory(request.memory_needed), check_shared_memory(),
                           check_files()};
  for (auto& f : check_ucx()) out.push_back(std::move(f));
  out.push_back(check_cuda());
  out.push_back(check_nccl());
  for (const auto& a : request.listens) out.push_back(check_port(a));
  if (!request.model.empty()) out.push_back(check_model(request.model));
  return out;
}

}  // namespace troupe::cli
