#include "kernels/cpu/isa.hpp"

#include "runtime/base/check.hpp"

namespace troupe::kernels::cpu {

namespace portable {
extern const kernel_table table;
}
namespace avx2 {
extern const kernel_table table;
}
namespace avx512 {
extern const kernel_table table;
}

const char* to_string(isa i) {
  switch (i) {
    case isa::portable:
      return "portable";
    case isa::avx2:
      return "avx2";
    case isa::avx512:
      return "avx512";
  }
  return "?";
}

std::optional<isa> isa_from_string(std::string_view text) {
  for (isa i : {isa::portable, isa::avx2, isa::avx512})
    if (text == to_string(i)) return i;
  return std::nullopt;
}

bool supported(isa i) {
#if defined(__x86_64__)
  // The compiler's run-time support also asks the operating system whether it saves the wide registers.
  switch (i) {
    case isa::portable:
      return true;
    case isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case isa::avx512:
      return supported(isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return i == isa::portable;
#endif
}

isa best_isa() {
  for (isa i : {isa::avx512, isa::avx2})
    if (supported(i)) return i;
  return isa::portable;
}

const kernel_table& kernels_of(isa i) {
  TROUPE_CHECK(supported(i), "this CPU does not run {}", to_string(i));
#if defined(__x86_64__)
  if (i == isa::avx2) return avx2::table;
  if (i == isa::avx512) return avx512::table;
#endif
  return portable::table;
}

}  // namespace troupe::kernels::cpu
