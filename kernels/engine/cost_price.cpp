#include "kernels/engine/cost_price.hpp"

#include <algorithm>

namespace troupe::kernels {

result<cost_price> cost_price::make(std::shared_ptr<const policies::cost_model> model, const std::string& fabric,
                                    const expert_shape& experts, uint64_t seed) {
  if (!model) return fail(errc::invalid_argument, "there is no cost model");
  if (auto ok = policies::check_model(*model); !ok) return fail(ok.error());
  cost_price p;
  TROUPE_TRY(p.over_, policies::find_fabric(*model, fabric));
  p.model_ = std::move(model);
  p.experts_ = experts;
  p.seed_ = seed;
  return p;
}

policies::step_cost_parts cost_price::operator()(std::span<const policies::step_work> work, uint32_t ranks,
                                                 const std::shared_ptr<const ep::placement>& places, uint64_t step,
                                                 bool draft) {
  const policies::expert_skew& skew = model_->skew;
  const uint64_t drift = skew.drift_steps > 0 ? step / skew.drift_steps : 0;
  if (experts_.experts > 0 && (!use_ || drift != drift_)) {
    use_ = std::make_shared<const expert_use>(experts_, skew, seed_, drift);
    drift_ = drift;
    places_ = nullptr;
  }
  if (use_ && places && places != places_) {
    places_ = places;
    imbalance_ = use_->imbalance_permille(*places, ranks);
    uint64_t copies = 0;
    if (!places->copies.empty())
      for (const auto& c : places->copies[0]) copies += c.size();
    slots_ = static_cast<uint32_t>((copies + ranks - 1) / ranks);
  }
  return policies::cost_of_step(
      model_->rates, *over_,
      {work, ranks, slots_, ranks > 1 ? imbalance_ : 1000, draft ? model_->acceptance.block : 0});
}

}  // namespace troupe::kernels
