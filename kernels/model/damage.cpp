#include "kernels/model/damage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace troupe::kernels {
namespace {

// Counts the values v with (v & mask) == mask. The loop has no branch, so that the compiler can use vectors.
template <class T>
uint64_t count(const std::byte* at, uint64_t values, T mask) {
  uint64_t n = 0;
  for (uint64_t i = 0; i < values; ++i) {
    T v;  // data may be unaligned
    std::memcpy(&v, at + i * sizeof(T), sizeof(T));
    n += (v & mask) == mask;
  }
  return n;
}

template <class T>
void look(const tensor& t, T mask, std::vector<damaged_tensor>& out) {
  constexpr uint64_t block = 4096;
  damaged_tensor d{t.name, t.file, 0, 0};
  const uint64_t values = t.data.size() / sizeof(T);
  for (uint64_t i = 0; i < values; i += block) {
    const std::byte* at = t.data.data() + i * sizeof(T);
    const uint64_t here = count(at, std::min(block, values - i), mask);
    if (here > 0 && d.values == 0) {
      d.first = i;
      while (count(t.data.data() + d.first * sizeof(T), 1, mask) == 0) ++d.first;
    }
    d.values += here;
  }
  if (d.values > 0) out.push_back(std::move(d));
}

}  // namespace

std::vector<damaged_tensor> find_damage(const checkpoint& files, damage_scan scan) {
  std::vector<damaged_tensor> out;
  for (const auto& [name, t] : files.tensors()) {
    switch (t.type) {  // the mask: all bits that NaN and infinity have set
      case dtype::f32:
        look<uint32_t>(t, 0x7f800000, out);
        break;
      case dtype::f16:
        look<uint16_t>(t, 0x7c00, out);
        break;
      case dtype::bf16:
        look<uint16_t>(t, 0x7f80, out);
        break;
      case dtype::f8_e8m0:
        look<uint8_t>(t, 0xff, out);
        break;
      case dtype::f8_e4m3:
        if (scan == damage_scan::whole) look<uint8_t>(t, 0x7f, out);
        break;
      default:
        break;
    }
  }
  return out;
}

std::string damage_text(const std::vector<damaged_tensor>& damage, size_t most) {
  if (damage.empty()) return {};
  std::string out =
      fmt::format("{} tensor{} values that are no numbers: ", damage.size(), damage.size() == 1 ? " holds" : "s hold");
  for (size_t i = 0; i < std::min(most, damage.size()); ++i)
    out += fmt::format("{}{} ({} from value {}, in {})", i ? ", " : "", damage[i].name, damage[i].values,
                       damage[i].first, damage[i].file);
  if (damage.size() > most) out += fmt::format(", and {} more", damage.size() - most);
  return out;
}

}  // namespace troupe::kernels
