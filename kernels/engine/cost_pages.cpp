#include "kernels/engine/cost_pages.hpp"

#include <cstring>

#include "kernels/engine/cost_engine.hpp"
#include "kernels/engine/handoff.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

static_assert(sizeof(cost_state_head) == cost_state_bytes);
constexpr uint64_t state_magic = 0x31'54'53'4f'43'50'52'54;  // version in the highest digit

uint64_t model_checksum(const model_facts& facts) { return checksum(std::as_bytes(std::span(facts.fingerprint))); }

}  // namespace

uint64_t chain_of(std::span<const token_id> tokens) {
  uint64_t chain = 0;
  for (token_id t : tokens) chain = chain_after(chain, t);
  return chain;
}

uint32_t write_cost_state(const model_facts& facts, uint32_t rows, uint64_t chain, uint64_t damage,
                          std::span<std::byte> out) {
  cost_state_head head;
  head.magic = state_magic;
  head.model = model_checksum(facts);
  head.chain = chain;
  head.rows = rows;
  head.bytes = cost_state_bytes;
  head.damage = damage;
  TROUPE_CHECK(out.size() >= sizeof head, "a state of {} B for a place of {} B", sizeof head, out.size());
  std::memcpy(out.data(), &head, sizeof head);
  return cost_state_bytes;
}

result<cost_state_head> read_cost_state(const model_facts& facts, uint32_t rows, std::span<const std::byte> in) {
  cost_state_head head;
  if (in.size() < sizeof head) return fail(errc::corrupt, "{} bytes are no state", in.size());
  std::memcpy(&head, in.data(), sizeof head);
  if (head.magic != state_magic || head.bytes != cost_state_bytes)
    return fail(errc::corrupt, "these bytes are no state, or of another version");
  if (head.model != model_checksum(facts))
    return fail(errc::invalid_argument, "the state is of another model or cost model");
  if (head.rows != rows)
    return fail(errc::invalid_argument, "the state holds {} tokens, {} were announced", head.rows, rows);
  return head;
}

result<void> check_cost_state(const model_facts& facts, uint32_t rows, std::span<const std::byte> state) {
  if (auto head = read_cost_state(facts, rows, state); !head) return fail(head.error());
  return {};
}

}  // namespace troupe::kernels
