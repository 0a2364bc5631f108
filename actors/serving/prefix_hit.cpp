#include "actors/serving/prefix_hit.hpp"

#include <utility>

#include "policies/resume.hpp"

namespace troupe::actors {

uint32_t prefix_hit_limit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known) {
  return policies::plan_resume({prompt_length, known, facts.window, facts.decoder_layers}).hit_limit;
}

policies::hit_length_plan prefix_hit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known,
                                     uint32_t blocks, bool exact) {
  policies::hit_length_input in;
  in.prompt_tokens = known;
  in.block_hit_tokens = blocks * facts.window;
  in.block = facts.window;
  in.hit_limit = prefix_hit_limit(facts, prompt_length, known);
  in.exact = exact;
  in.encoder_layers = facts.encoder_layers;
  auto hit = policies::plan_hit_length(in);
  return hit ? std::move(*hit) : policies::hit_length_plan{0, 0, hit.error().message};
}

}  // namespace troupe::actors
