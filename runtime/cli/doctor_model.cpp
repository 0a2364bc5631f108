#include "runtime/cli/doctor_model.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "kernels/model/damage.hpp"
#include "kernels/model/model.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::cli {

finding check_model(const std::string& folder) {
  finding f{"model", verdict::good, "", ""};
  auto m = kernels::load_model(folder);
  if (!m) {
    f.level = verdict::bad;
    f.value = m.error().message;
    f.advice =
        "the folder must hold config.json and the safetensors files of a DeepSeek-V4.1 checkpoint in the released "
        "layout";
    return f;
  }
  if (auto damage = kernels::find_damage((*m)->files, kernels::damage_scan::whole); !damage.empty()) {
    f.level = verdict::bad;
    f.value = folder + ": " + kernels::damage_text(damage);
    f.advice = "the file was damaged on its way or on disk: fetch it again";
    return f;
  }
  const auto& c = (*m)->config;
  uint64_t bytes = 0;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(folder, ec)) {
    if (e.path().extension() == ".safetensors" && e.path().filename().string().starts_with("model"))
      bytes += e.file_size(ec);
  }
  f.value = fmt::format(
      "{}: {} layers, {} experts, {} tokens of vocabulary, window {}, {} B per KV page, {}, {:.1f} MiB of weights",
      folder, c.num_hidden_layers, c.n_routed_experts, c.vocab_size, c.sliding_window, (*m)->plan.page_bytes,
      c.num_nextn_predict_layers > 0 ? "with drafter" : "no drafter", double(bytes) / double(1 << 20));
  auto r = recipe::recipe::load(folder);
  if (!r) {
    f.level = verdict::degraded;
    f.advice = "no usable tokenizer: " + r.error().message + "; set model.tokenizer";
  } else if ((*r)->tokens().size() > c.vocab_size) {
    f.level = verdict::degraded;
    f.advice = fmt::format("the tokenizer has {} ids, the model's vocabulary {}: it is the tokenizer of another model",
                           (*r)->tokens().size(), c.vocab_size);
  }
  return f;
}

}  // namespace troupe::cli
