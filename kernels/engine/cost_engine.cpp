#include "kernels/engine/cost_engine.hpp"

#include <filesystem>

#include "kernels/engine/cost_core.hpp"
#include "kernels/engine/cpu_engine.hpp"
#include "kernels/engine/move_state.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

class cost_engine final : public engine {
 public:
  explicit cost_engine(std::shared_ptr<cost_core> core) : core_(std::move(core)) {}
  ~cost_engine() override { core_->stop(); }

  const model_facts& facts() const override { return core_->facts(); }
  const engine_limits& limits() const override { return core_->limits(); }
  result<void> submit(step_plan plan) override { return core_->submit(std::move(plan)); }
  result<void> regroup(std::unique_ptr<ep::group> group, ep::placement placement) override {
    return core_->regroup(std::move(group), std::move(placement));
  }
  result<void> stage(placement_move move) override {
    auto ok = core_->moves().stage(std::move(move));
    if (ok) core_->wake();
    return ok;
  }
  result<void> flip(placement_version version) override {
    auto ok = core_->moves().flip(version);
    if (ok) core_->wake();
    return ok;
  }
  result<void> drop(placement_version version) override { return core_->moves().drop(version); }
  placement_status placement() const override { return core_->moves().status(); }
  expert_window take_expert_window(uint64_t min_steps) override { return core_->moves().take(min_steps); }
  void stop() override { core_->stop(); }

 private:
  const std::shared_ptr<cost_core> core_;
};

// A page of 4 bytes a token.
void describe_pages(model_plan& plan) {
  source_plan all;
  all.ratio = 1;
  all.per_page = plan.window;
  all.main_bytes = sizeof(uint32_t);
  all.key_offset = plan.window * all.main_bytes;
  plan.sources = {all};
  plan.page_bytes = all.key_offset;
}

// What decides the answers, and the times by which hits are judged: a store of another model or cost model is not read.
result<std::string> fingerprint_of(const model& outline, const policies::cost_model& cost, const std::string& replay) {
  return fingerprint(outline, fmt::format("cost {} {}", cost.name, cost.mean_output), replay);
}

}  // namespace

result<std::unique_ptr<engine>> make_cost_engine(cost_engine_config c, engine::sink on_step) {
  TROUPE_CHECK(c.outline && c.model && c.timer && on_step, "a cost engine lacks a part");
  const engine_limits& l = c.limits;
  if (l.slots == 0 || l.max_chunk == 0 || l.max_context == 0 || l.pages == 0)
    return fail(errc::invalid_argument,
                "engine limits: slots {}, max_chunk {}, max_context {}, pages {} must be positive", l.slots,
                l.max_chunk, l.max_context, l.pages);
  const uint64_t pages = uint64_t{l.pages} * c.outline->plan.page_bytes;
  if (!c.pages.empty() && c.pages.size() < pages)
    return fail(errc::invalid_argument, "page memory: {} bytes, {} pages need {}", c.pages.size(), l.pages, pages);
  if (!c.handoff.empty() && c.handoff.size() < uint64_t{l.handoffs} * cost_state_bytes)
    return fail(errc::invalid_argument, "handoff memory: {} bytes, {} places need {}", c.handoff.size(), l.handoffs,
                uint64_t{l.handoffs} * cost_state_bytes);
  const expert_shape experts = experts_of(*c.outline);
  TROUPE_TRY(cost_price price, cost_price::make(c.model, "", experts, 0));
  TROUPE_TRY(model_facts facts, cost_model_facts(*c.outline, *c.model, l, c.replay_mode));
  std::unique_ptr<ep::group> group = std::move(c.group);
  ep::placement placement = std::move(c.placement);
  if (!group && !c.wait_for_group) {
    cost_group_options o;
    o.model = c.model;
    o.timer = c.timer;
    o.experts = experts;
    TROUPE_TRY(auto alone, cost_group::make(std::move(o)));
    TROUPE_TRY(group, alone->seat(0));
    placement = initial_placement(*c.outline, 1);
  }
  if (group)
    if (auto ok = check_placement(*c.outline, placement, group->shape().ranks); !ok) return fail(ok.error());
  auto core = std::make_shared<cost_core>(std::move(c), std::move(facts), std::move(price), std::move(on_step));
  if (group) core->enter(std::move(group), std::move(placement));
  return std::make_unique<cost_engine>(std::move(core));
}

result<std::shared_ptr<const model>> load_cost_outline(const std::string& directory) {
  TROUPE_TRY(model_config config, load_config(directory));
  auto m = std::make_shared<model>(model{directory, std::move(config), {}, checkpoint::none(), {}, {}, {}, {}});
  TROUPE_TRY(m->plan, make_plan(m->config));
  describe_pages(m->plan);
  return std::shared_ptr<const model>(std::move(m));
}

result<model_facts> cost_model_facts(const model& outline, const policies::cost_model& cost,
                                     const engine_limits& limits, const std::string& replay_mode) {
  const model_config& c = outline.config;
  model_facts f;
  f.name = std::filesystem::path(outline.directory).lexically_normal().filename().string();
  if (f.name.empty())
    f.name = std::filesystem::path(outline.directory).lexically_normal().parent_path().filename().string();
  TROUPE_TRY(f.fingerprint, fingerprint_of(outline, cost, replay_mode));
  f.window = c.sliding_window;
  f.page_bytes = outline.plan.page_bytes;
  f.vocabulary = c.vocab_size;
  f.max_context = limits.max_context;
  f.encoder_layers = outline.plan.encoder_layers;
  f.decoder_layers = c.num_hidden_layers - outline.plan.encoder_layers;
  f.experts = c.n_routed_experts;
  f.has_drafter = c.num_nextn_predict_layers > 0 && cost.acceptance.block > 0;
  f.bos = c.bos;
  f.eos = c.eos;
  f.pad = c.pad;
  f.handoff_bytes = cost_state_bytes;
  return f;
}

expert_shape experts_of(const model& outline) {
  const model_config& c = outline.config;
  return {c.num_hidden_layers,        outline.plan.encoder_layers, c.n_routed_experts,          c.num_experts_per_tok,
          c.num_nextn_predict_layers, c.dspark_n_routed_experts,   c.dspark_num_experts_per_tok};
}

}  // namespace troupe::kernels
