#include "kernels/cpu/operators.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cpu/operators_impl.hpp"

namespace troupe::kernels::cpu {

cpu_operators::cpu_operators(uint32_t threads, isa which)
    : c_(threads, which), name_(fmt::format("cpu {} {} threads", to_string(which), c_.pool.size())) {}

const char* cpu_operators::name() const { return name_.c_str(); }

std::byte* cpu_operators::allocate(place, size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, rounded == 0 ? 64 : rounded));
  if (p != nullptr) memset(p, 0, rounded);
  return p;
}

void cpu_operators::release(place, std::byte* data, size_t) { std::free(data); }

void cpu_operators::copy(place, void* to, const void* from, size_t bytes) {
  if (bytes != 0) memcpy(to, from, bytes);
}

void cpu_operators::synchronise(place) {}

std::unique_ptr<operators> make_operators(uint32_t threads, isa which) {
  return std::make_unique<cpu_operators>(threads, which);
}

}  // namespace troupe::kernels::cpu
