#include "kernels/model/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/model/golden_run.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;

struct comparison {
  const tensor& want;
  const golden_answer& got;
  verify_row& row;
};

template <class T>
std::vector<T> values_of(const tensor& t) {
  std::vector<T> out(t.values());
  std::memcpy(out.data(), t.data.data(), std::min(t.data.size(), out.size() * sizeof(T)));
  return out;
}

std::vector<int64_t> whole_of(const tensor& t) {
  auto widen = [](auto v) { return std::vector<int64_t>(v.begin(), v.end()); };
  switch (t.type) {
    case dtype::i64:
      return values_of<int64_t>(t);
    case dtype::i32:
      return widen(values_of<int32_t>(t));
    case dtype::u8:
    case dtype::boolean:
      return widen(values_of<uint8_t>(t));
    default:
      return widen(values_of<int8_t>(t));
  }
}

// Fills max_abs and max_rel; returns whether every value is within abs + rel * |want|. Equal infinities count as equal.
bool measure(const std::vector<float>& want, const std::vector<float>& got, double abs, double rel, verify_row& row) {
  bool within = true;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;
    double d = std::fabs(double{got[i]} - double{want[i]});
    if (!std::isfinite(d)) d = HUGE_VAL;
    row.max_abs = std::max(row.max_abs, d);
    if (std::fabs(want[i]) > 1e-3) row.max_rel = std::max(row.max_rel, d / std::fabs(want[i]));
    within = within && d <= abs + rel * std::fabs(want[i]);
  }
  return within;
}

double argmax_agreement(const std::vector<float>& want, const std::vector<float>& got, size_t width) {
  size_t same = 0, rows = want.size() / width;
  for (size_t r = 0; r < rows; ++r) {
    auto at = [&](const std::vector<float>& v) {
      auto begin = v.begin() + static_cast<ptrdiff_t>(r * width);
      return std::max_element(begin, begin + static_cast<ptrdiff_t>(width)) - begin;
    };
    same += at(want) == at(got);
  }
  return rows ? static_cast<double>(same) / static_cast<double>(rows) : 1;
}

// Values of a KV format: `share` of them exact, the others at most one step of the format away. A step is judged by the
// neighbours' size: `relative` of the larger value, or `floor_share` of the block's largest value near zero.
void compare_rounded(const comparison& c, double share, size_t block, double relative, double floor_share) {
  const auto want = values_of<float>(c.want);
  measure(want, c.got.floats, 0, 0, c.row);
  size_t different = 0, far = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == c.got.floats[i]) continue;
    ++different;
    const size_t first = i - i % block;
    double largest = 0;
    for (size_t j = first; j < std::min(want.size(), first + block); ++j)
      largest = std::max(largest, double{std::fabs(want[j])});
    const double step =
        std::max(relative * std::max(std::fabs(want[i]), std::fabs(c.got.floats[i])), floor_share * largest);
    far += !(std::fabs(double{c.got.floats[i]} - want[i]) <= step * 1.01);
  }
  c.row.pass = far == 0 && static_cast<double>(different) <= (1 - share) * static_cast<double>(want.size());
  c.row.note = fmt::format("{} of {} values differ, {} by more than one step; allowed {:.2f} %", different, want.size(),
                           far, 100 * (1 - share));
}

// Routed experts are compared as sets per token, and their weights along with them.
void compare_sets(const comparison& c, size_t width) {
  auto want = whole_of(c.want);
  auto got = c.got.whole;
  size_t wrong = 0;
  for (size_t r = 0; r + width <= want.size(); r += width) {
    std::sort(want.begin() + static_cast<ptrdiff_t>(r), want.begin() + static_cast<ptrdiff_t>(r + width));
    std::sort(got.begin() + static_cast<ptrdiff_t>(r), got.begin() + static_cast<ptrdiff_t>(r + width));
    wrong += !std::equal(want.begin() + static_cast<ptrdiff_t>(r), want.begin() + static_cast<ptrdiff_t>(r + width),
                         got.begin() + static_cast<ptrdiff_t>(r));
  }
  c.row.max_abs = static_cast<double>(wrong);
  c.row.pass = wrong == 0;
  c.row.note = fmt::format("exact as sets; {} rows differ", wrong);
}

void compare_whole(const comparison& c, bool visible_only, uint32_t ratio) {
  const auto want = whole_of(c.want);
  size_t wrong = 0;
  const size_t width = c.want.shape.empty() ? 1 : c.want.shape.back();
  for (size_t i = 0; i < want.size(); ++i) {
    if (visible_only && i % width >= (i / width + 1) / ratio) continue;
    wrong += want[i] != c.got.whole[i];
  }
  c.row.max_abs = static_cast<double>(wrong);
  c.row.pass = wrong == 0;
  c.row.note = fmt::format("exact{}; {} values differ", visible_only ? " on visible groups" : "", wrong);
}

void compare_floats(const comparison& c, bool logits, bool loose) {
  const auto want = values_of<float>(c.want);
  c.row.pass = measure(want, c.got.floats, 1e-3, 1e-3, c.row);
  c.row.note = "1e-3 + 1e-3 |want|";
  if (c.row.pass || !logits) return;
  // A borderline KV value that rounds the other way is the one honest cause of more.
  const double agreement = argmax_agreement(want, c.got.floats, c.want.shape.back());
  const double limit = loose ? 5e-2 : 3e-2, needed = loose ? 0.99 : 1.0;
  c.row.pass = c.row.max_abs <= limit && agreement >= needed;
  c.row.note = fmt::format("second tier {:.0e}, argmax agrees at {:.1f} % of rows ({:.0f} % needed)", limit,
                           100 * agreement, 100 * needed);
}

bool contains(const std::string& s, const char* part) { return s.find(part) != std::string::npos; }

void compare(const comparison& c, const std::string& advice, const model& m) {
  const bool floats = c.want.type == dtype::f32;
  const size_t size = floats ? c.got.floats.size() : c.got.whole.size();
  if (size != c.want.values()) {
    c.row.note = fmt::format("the engine gives {} values, the tensor has {}", size, c.want.values());
    return;
  }
  const std::string& name = c.row.name;
  const size_t width = c.want.shape.empty() ? 1 : c.want.shape.back();
  if (contains(name, "window_kv")) return compare_rounded(c, 0.9999, 32, 1.0 / 8, 1.0 / 448 / 256);
  if (contains(name, "compressed_kv")) return compare_rounded(c, 0.999, 16, 1.0 / 2, 1.0 / 12);
  if (contains(name, "index_key")) return compare_rounded(c, 0.999, 32, 1.0 / 2, 1.0 / 6);
  if (!floats && contains(advice, "as sets")) return compare_sets(c, width);
  if (!floats && contains(name, "candidates")) {
    const uint32_t layer = static_cast<uint32_t>(std::stoul(name.substr(name.rfind('.') + 1)));
    return compare_whole(c, true, m.plan.layers[layer].ratio);
  }
  if (!floats) return compare_whole(c, false, 1);
  compare_floats(c, contains(name, "logits") || contains(name, "replay"), contains(advice, "loose"));
}

}  // namespace

result<std::vector<verify_row>> verify_model(const model& m, operators& ops, const std::string& directory,
                                             const clock_source& clock) {
  const std::string source = directory + "/golden.json";
  TROUPE_TRY(std::string text, read_text_file(source));
  TROUPE_TRY(golden_roles roles, read_golden_roles(text, source));
  TROUPE_TRY(checkpoint golden, checkpoint::open_file(directory + "/golden.safetensors"));
  const json root = json::parse(text, nullptr, false);
  TROUPE_TRY(golden_answers answers, run_golden(m, ops, {}, golden, roles, clock));
  // Router weights are listed by falling score; two programs may order equal scores differently, so compare the
  // engine's weights in the order of the golden ids.
  const std::string prefix = "prompt." + std::to_string(roles.detail) + ".";
  if (const tensor* ids = golden.find(prefix + "router_ids"); ids && answers.count(prefix + "router_ids")) {
    const auto want = whole_of(*ids);
    const auto& got = answers[prefix + "router_ids"].whole;
    auto& weights = answers[prefix + "router_weights"].floats;
    const size_t k = ids->shape.empty() ? 1 : ids->shape.back();
    if (got.size() == want.size() && weights.size() == want.size()) {
      const auto listed = weights;
      for (size_t i = 0; i < want.size(); ++i)
        for (size_t j = i - i % k; j < i - i % k + k; ++j)
          if (got[j] == want[i]) weights[i] = listed[j];
    }
  }
  std::vector<verify_row> rows;
  for (auto& [name, t] : golden.tensors()) {
    verify_row& row = rows.emplace_back();
    row.name = name;
    std::string advice;
    if (root.contains("tensors") && root["tensors"].contains(name)) {
      const json& entry = root["tensors"][name];
      if (entry.is_object() && entry.contains("tolerance") && entry["tolerance"].is_string())
        advice = entry["tolerance"].get<std::string>();
    }
    auto it = answers.find(name);
    if (it == answers.end())
      row.note = "the runner does not produce this tensor";
    else
      compare({t, it->second, row}, advice, m);
  }
  return rows;
}

}  // namespace troupe::kernels
