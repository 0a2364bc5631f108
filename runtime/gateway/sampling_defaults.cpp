#include "runtime/gateway/sampling_defaults.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::gateway {

result<sampling_defaults> read_sampling_defaults(const std::string& folder) {
  using nlohmann::json;
  const std::string path = folder + "/generation_config.json";
  sampling_defaults out;
  std::ifstream in(path, std::ios::binary);
  if (!in) return out;
  const json j = json::parse(in, nullptr, false);
  if (!j.is_object()) return fail(errc::invalid_argument, "{}: not a JSON object", path);
  std::string wrong;
  auto number = [&](const char* key, double low, double high) -> double {
    if (!j.contains(key) || j[key].is_null()) return -1;
    const double v = j[key].is_number() ? j[key].get<double>() : -1;
    if (!(v >= low && v <= high) && wrong.empty())
      wrong = fmt::format("{}: {} is {}, allowed are {} to {}", path, key, j[key].dump(), low, high);
    return v;
  };
  if (double v = number("temperature", 0, 2); v >= 0) out.temperature = static_cast<float>(v);
  if (double v = number("top_p", 1e-6, 1); v >= 0) out.top_p = static_cast<float>(v);
  if (double v = number("top_k", 0, 1 << 24); v >= 0) out.top_k = static_cast<uint32_t>(v);
  if (!wrong.empty()) return fail(errc::invalid_argument, "{}", wrong);
  if (j.contains("do_sample") && j["do_sample"] == false) out.temperature = 0;
  return out;
}

}  // namespace troupe::gateway
