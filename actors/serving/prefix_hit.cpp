#include "actors/serving/prefix_hit.hpp"

#include <utility>

#include "policies/resume.hpp"

namespace troupe::actors {

uint64_t snapshot_owner(incarnation front, request_number request) {
  uint64_t x = front.value * 0x9e3779b97f4a7c15u + request.value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint32_t prefix_hit_limit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known) {
  return policies::plan_resume({prompt_length, known, facts.window, facts.decoder_layers}).hit_limit;
}

policies::hit_length_plan prefix_hit(const kernels::model_facts& facts, uint32_t prompt_length, uint32_t known,
                                     uint32_t blocks, bool exact, std::span<const uint32_t> snapshots) {
  policies::hit_length_input in;
  in.prompt_tokens = known;
  in.block_hit_tokens = blocks * facts.window;
  in.block = facts.window;
  in.hit_limit = prefix_hit_limit(facts, prompt_length, known);
  in.exact = exact;
  in.encoder_layers = facts.encoder_layers;
  for (const uint32_t s : snapshots)
    if (s > 0 && s <= blocks) in.snapshots.push_back(s * facts.window);
  auto hit = policies::plan_hit_length(in);
  return hit ? std::move(*hit) : policies::hit_length_plan{0, 0, hit.error().message};
}

}  // namespace troupe::actors
