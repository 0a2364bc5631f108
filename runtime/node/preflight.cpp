#include "runtime/node/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kernels/model/config.hpp"
#include "kernels/model/model.hpp"
#include "runtime/config/cost_file.hpp"
#include "runtime/gateway/keys.hpp"
#include "runtime/node/open_model.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::node {
namespace {

// The rule of engine_host, which owns the pages: a sequence takes one page per window of its context.
void check_pages(const config::ranks_section& r, const std::string& name, uint32_t sliding_window,
                 const std::string& file, std::vector<config::problem>& out) {
  const uint64_t window = std::max(1u, sliding_window);
  const uint64_t needed = (uint64_t{r.max_context} + window - 1) / window;
  if (needed <= r.pages) return;
  out.push_back({file, 0, 0, name + ".pages",
                 fmt::format("{} pages of {} tokens cannot hold one sequence of {}.max_context {}: raise {}.pages to "
                             "{} or lower {}.max_context",
                             r.pages, window, name, r.max_context, name, needed, name)});
}

}  // namespace

std::vector<config::problem> check_files(const config::settings& s, const std::string& file) {
  std::vector<config::problem> out;
  if (!s.front.api_keys.empty()) {
    if (auto keys = gateway::key_ring::load(s.front.api_keys); !keys)
      out.push_back({file, 0, 0, "front.api_keys", keys.error().message});
  }
  if (s.engine.kind == "cost") {
    if (auto cost = config::load_cost_model(s.engine.cost_model); !cost)
      out.push_back({file, 0, 0, "engine.cost_model", cost.error().message});
  }
  std::error_code ec;
  if (!std::filesystem::is_directory(s.model.path, ec)) {
    out.push_back({file, 0, 0, "model.path", fmt::format("there is no folder {}", s.model.path)});
    return out;
  }
  if (!std::filesystem::exists(s.model.path + "/config.json", ec)) {
    out.push_back({file, 0, 0, "model.path", fmt::format("{} has no config.json: it is no checkpoint", s.model.path)});
    return out;
  }
  auto model = kernels::load_config(s.model.path);
  if (!model) {
    out.push_back({file, 0, 0, "model.path", model.error().message});
    return out;
  }
  if (s.prefill.ranks > 0) check_pages(s.prefill, "prefill", model->sliding_window, file, out);
  check_pages(s.decode, "decode", model->sliding_window, file, out);
  return out;
}

std::vector<std::string> notes(const config::settings& s) {
  std::vector<std::string> out;
  const auto& st = s.storage;
  if (st.nodes > 0) {
    const uint32_t shards = st.data + st.parity, most = (shards + st.nodes - 1) / st.nodes;
    if (st.parity > 0 && most > st.parity)
      out.push_back(fmt::format(
          "storage.nodes: {} nodes hold up to {} of an extent's {} shards each, and the code bears the loss of {}: "
          "losing one node loses blocks; {} nodes would do",
          st.nodes, most, shards, st.parity, (shards + st.parity - 1) / st.parity));
    if (st.nodes * st.disks < shards + 1)
      out.push_back(
          fmt::format("storage.nodes: {} targets hold extents of {} shards: while one is away nothing can be written",
                      shards, shards));
  }
  if (s.cache.enabled && st.nodes > 0 && st.block_tokens > 0) {
    if (auto model = kernels::load_config(s.model.path); model && st.block_tokens != model->sliding_window)
      out.push_back(
          fmt::format("storage.block_tokens: the store has blocks of {} tokens, the model pages of {}: "
                      "prompts are not cached",
                      st.block_tokens, model->sliding_window));
  }
  return out;
}

std::vector<config::problem> check_all(const config::settings& s, const std::string& file) {
  auto out = check_files(s, file);
  std::error_code ec;
  auto bad = [&](const char* key, std::string text) {
    if (std::none_of(out.begin(), out.end(), [&](const auto& p) { return p.key == key; }))
      out.push_back({file, 0, 0, key, std::move(text)});
  };
  if (!std::filesystem::is_directory(s.model.path, ec)) {
    bad("model.path", fmt::format("there is no folder {}", s.model.path));
    return out;
  }
  if (auto model = open_model(s); !model) bad("model.path", model.error().message);
  if (!s.model.tokenizer.empty()) {
    if (auto t = recipe::tokenizer::load(s.model.tokenizer); !t) bad("model.tokenizer", t.error().message);
  } else if (auto r = recipe::recipe::load(s.model.path); !r) {
    bad("model.tokenizer", r.error().message);
  }
  return out;
}

}  // namespace troupe::node
