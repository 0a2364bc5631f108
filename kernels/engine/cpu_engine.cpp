#include "kernels/engine/cpu_engine.hpp"

#include <algorithm>
#include <filesystem>

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/operators.hpp"
#include "kernels/engine/handoff.hpp"
#include "kernels/engine/step_engine.hpp"
#include "kernels/ep/local_group.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {

result<model_facts> cpu_model_facts(const model& m, const engine_limits& limits, const std::string& replay_mode) {
  const model_config& c = m.config;
  model_facts f;
  f.name = std::filesystem::path(m.directory).lexically_normal().filename().string();
  if (f.name.empty()) f.name = std::filesystem::path(m.directory).lexically_normal().parent_path().filename().string();
  TROUPE_TRY(f.fingerprint, fingerprint(m, "cpu f32", replay_mode));
  f.window = c.sliding_window;
  f.page_bytes = m.plan.page_bytes;
  f.vocabulary = c.vocab_size;
  f.max_context = limits.max_context;
  f.encoder_layers = m.plan.encoder_layers;
  f.decoder_layers = c.num_hidden_layers - m.plan.encoder_layers;
  f.experts = c.n_routed_experts;
  f.has_drafter = c.num_nextn_predict_layers > 0;
  f.bos = c.bos;
  f.eos = c.eos;
  f.pad = c.pad;
  f.handoff_bytes = handoff_bytes(m);
  f.snapshot_bytes = m.plan.snapshot_bytes();
  return f;
}

ep::group_shape engine_group_shape(const model& m, const engine_limits& limits, uint32_t ranks) {
  return {ranks,
          m.config.hidden_size,
          std::max(m.config.num_experts_per_tok, m.config.dspark_num_experts_per_tok),
          step_rows(limits),
          m.config.n_routed_experts,
          limits.micro_batch_rows > 0 ? 2u : 1u};
}

ep::placement initial_placement(const model& m, uint32_t ranks) {
  const model_config& c = m.config;
  ep::placement p = ep::contiguous_placement(ranks, c.num_hidden_layers, c.n_routed_experts);
  ep::placement draft = ep::contiguous_placement(ranks, c.num_nextn_predict_layers, c.dspark_n_routed_experts);
  for (auto& layer : draft.copies) p.copies.push_back(std::move(layer));
  return p;
}

ep::placement initial_placement(const model& m, uint32_t ranks, uint32_t redundant, placement_version version) {
  const uint32_t experts = m.config.n_routed_experts;
  ep::placement p = initial_placement(m, ranks);
  p.version = version;
  const uint32_t per_rank = std::min(experts, (experts + ranks - 1) / ranks + redundant);
  const auto copies = ep::copies_of(ep::first_slots(ranks, experts, per_rank), ranks, experts);
  TROUPE_CHECK(copies.has_value(), "{}", copies.error().message);
  for (uint32_t l = 0; l < m.config.num_hidden_layers; ++l) p.copies[l] = *copies;
  return p;
}

result<std::unique_ptr<engine>> make_cpu_engine(cpu_engine_config config, engine::sink on_step) {
  step_engine_parts parts;
  parts.weights = std::move(config.weights);
  if (!parts.weights) {
    TROUPE_TRY(parts.weights, load_model(config.model_directory));
  }
  const model& m = *parts.weights;
  if (config.limits.threads == 0 || config.limits.threads > 1024)
    return fail(errc::invalid_argument, "engine limits: threads is {}, allowed are 1 to 1024", config.limits.threads);
  cpu::isa which = cpu::best_isa();
  if (!config.isa.empty()) {
    const auto named = cpu::isa_from_string(config.isa);
    if (!named) return fail(errc::invalid_argument, "instruction set {}: known are portable, avx2, avx512", config.isa);
    if (!cpu::supported(*named)) return fail(errc::unsupported, "instruction set {}: not on this CPU", config.isa);
    which = *named;
  }
  parts.limits = config.limits;
  TROUPE_TRY(parts.facts, cpu_model_facts(m, config.limits, config.replay_mode));
  if (config.pages.empty()) {
    const size_t bytes = size_t{config.limits.pages} * m.plan.page_bytes;
    parts.own_pages = std::make_unique<std::byte[]>(bytes);
    config.pages = {parts.own_pages.get(), bytes};
  }
  parts.pages = config.pages;
  parts.handoff = config.handoff;
  parts.snapshots = config.snapshots;
  parts.clock = config.clock ? config.clock : &steady_clock();
  parts.on_drafts = std::move(config.on_drafts);
  parts.adaptive_drafts = config.adaptive_drafts;
  parts.group = std::move(config.group);
  parts.placement = std::move(config.placement);
  parts.expert_slots = config.expert_slots;
  parts.split = config.split;
  if (!parts.group && !config.wait_for_group) {
    TROUPE_TRY(parts.group, ep::make_local_group(engine_group_shape(m, config.limits, 1)));
    parts.placement = initial_placement(m, 1);
  }
  parts.ops = cpu::make_operators(config.limits.threads, which);
  return step_engine::make(std::move(parts), std::move(on_step));
}

}  // namespace troupe::kernels
