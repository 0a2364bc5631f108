// What this machine can do for Troupe, and why not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/units.hpp"

namespace troupe::cli {

/// good; degraded: works, with less; missing: an optional part is not there; bad: Troupe cannot run like this.
enum class verdict : uint8_t { good, degraded, missing, bad };
/// "good", "degraded", "missing", "bad".
const char* to_string(verdict v);

/// One thing that was looked at.
struct finding {
  std::string name;
  verdict level = verdict::good;
  std::string value;   // what was found
  std::string advice;  // what to do about it; empty when good
};

/// What a check of the machine is about.
struct doctor_request {
  std::string model;                     // checkpoint folder to look at; empty: none
  std::vector<config::address> listens;  // addresses that must be free
  uint64_t memory_needed = 0;            // bytes for page pools and the model, 0: unknown
};

/// Looks at CPU, memory, shared memory, limits, UCX, GPUs, ports, and the model. Takes well under a second; changes
/// nothing on the machine.
std::vector<finding> examine(const doctor_request& request);

/// The parts, for the tests. Each never throws.
finding check_cpu();
/// Cores that this process may use: affinity and cgroup quota.
finding check_cores();
/// Memory that is free now, in the limits of the cgroup, against `needed` bytes.
finding check_memory(uint64_t needed);
/// Whether processes can map the memory of each other.
finding check_shared_memory();
/// Limit of open files.
finding check_files();
/// UCX: version and whether a transport starts with and without shared memory.
std::vector<finding> check_ucx();
/// NVIDIA driver and devices, by loading the library at run time.
finding check_cuda();
/// NCCL, by loading the library at run time.
finding check_nccl();
/// Whether `a` can be bound.
finding check_port(const config::address& a);

}  // namespace troupe::cli
