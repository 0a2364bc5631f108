#include "kernels/engine/plan_check.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::kernels {
namespace {

template <class... Args>
tl::unexpected<error> bad(const step_plan& plan, fmt::format_string<Args...> format, Args&&... args) {
  return fail(errc::invalid_argument, "plan {}: {}", plan.id, fmt::format(format, std::forward<Args>(args)...));
}

bool in_vocabulary(token_id t, const model_facts& facts) {
  return t >= 0 && static_cast<uint32_t>(t) < facts.vocabulary;
}

result<void> check_open(const step_plan& plan, size_t i, const engine_limits& limits, const model_facts& facts) {
  const sequence_open& o = plan.open[i];
  if (o.tokens.empty() || o.tokens.size() > limits.max_context)
    return bad(plan, "open[{}].tokens: {} tokens, allowed are 1 to {}", i, o.tokens.size(), limits.max_context);
  for (size_t t = 0; t < o.tokens.size(); ++t)
    if (!in_vocabulary(o.tokens[t], facts))
      return bad(plan, "open[{}].tokens[{}]: {} is outside the vocabulary of {}", i, t, o.tokens[t], facts.vocabulary);
  if (o.prompt_length == 0 || o.prompt_length > o.tokens.size())
    return bad(plan, "open[{}].prompt_length: is {}, with {} tokens known", i, o.prompt_length, o.tokens.size());
  const sampling_params& s = o.sampling;
  if (!std::isfinite(s.temperature) || s.temperature < 0)
    return bad(plan, "open[{}].sampling.temperature: is {}, must be 0 or more", i, s.temperature);
  if (!(s.top_p > 0 && s.top_p <= 1)) return bad(plan, "open[{}].sampling.top_p: is {}, must be in (0, 1]", i, s.top_p);
  if (s.logprobs < -1 || s.logprobs > 20)
    return bad(plan, "open[{}].sampling.logprobs: is {}, allowed are -1 to 20", i, s.logprobs);
  if (o.stop.max_tokens == 0) return bad(plan, "open[{}].stop.max_tokens: is 0", i);
  if (o.tokens.size() - o.prompt_length >= o.stop.max_tokens)
    return bad(plan, "open[{}].stop.max_tokens: is {}, {} were already emitted", i, o.stop.max_tokens,
               o.tokens.size() - o.prompt_length);
  for (token_id t : o.stop.stop_ids)
    if (!in_vocabulary(t, facts))
      return bad(plan, "open[{}].stop.stop_ids: {} is outside the vocabulary of {}", i, t, facts.vocabulary);
  if (const snapshot_place& w = o.windows; w.position > 0) {
    if (o.imported.rows > 0) return bad(plan, "open[{}].windows: beside an imported sequence", i);
    if (w.place >= limits.snapshots)
      return bad(plan, "open[{}].windows.place: is {}, the snapshot memory has {} places", i, w.place,
                 limits.snapshots);
    if (w.position % facts.window != 0 || uint64_t{w.position} + facts.window > o.tokens.size())
      return bad(plan, "open[{}].windows.position: is {}, with {} tokens known and windows of {}", i, w.position,
                 o.tokens.size(), facts.window);
  }
  if (o.imported.rows == 0) return {};
  const sequence_import& in = o.imported;
  if (in.state >= limits.handoffs)
    return bad(plan, "open[{}].imported.state: is {}, the handoff memory has {} places", i, in.state, limits.handoffs);
  if (uint64_t{in.rows} + 1 != o.tokens.size() || in.rows < o.prompt_length)
    return bad(plan, "open[{}].imported.rows: is {}, with {} tokens known and a prompt of {}", i, in.rows,
               o.tokens.size(), o.prompt_length);
  if (in.pages.size() != (uint64_t{in.rows} + facts.window - 1) / facts.window)
    return bad(plan, "open[{}].imported.pages: {} pages for {} tokens", i, in.pages.size(), in.rows);
  for (page_id p : in.pages)
    if (p.value >= limits.pages)
      return bad(plan, "open[{}].imported.pages: page {} is out of range, the pool has {}", i, p.value, limits.pages);
  return {};
}

result<void> check_chunk(const step_plan& plan, size_t i, const model_facts& facts, const planned_slot& slot) {
  const sequence_step& s = plan.sequences[i];
  // After an abandoned step a slot one token short may be either; a chunk of that one row is then as good as a decode.
  if (slot.sampled && uint64_t{s.position} + s.rows > slot.known)
    return bad(plan, "sequences[{}].rows: is {}, but slot {} is decoding", i, s.rows, s.slot.value);
  if (uint64_t{s.position} + s.rows > slot.known)
    return bad(plan, "sequences[{}].rows: rows {} to {}, slot {} has {} tokens", i, s.position,
               uint64_t{s.position} + s.rows - 1, s.slot.value, slot.known);
  if (s.position > std::max(slot.committed, s.write_global_from))
    return bad(plan, "sequences[{}].position: is {}, slot {} is committed to {}", i, s.position, s.slot.value,
               slot.committed);
  if (s.window_floor > s.position)
    return bad(plan, "sequences[{}].window_floor: is {}, above the first row {}", i, s.window_floor, s.position);
  if (s.position != slot.committed) {
    // Rings hold nothing useful before a jump.
    if (s.window_floor != s.position)
      return bad(plan, "sequences[{}].window_floor: is {}, rows replayed from {} need that floor", i, s.window_floor,
                 s.position);
    if (s.decoder_from < s.position)
      return bad(plan, "sequences[{}].decoder_from: is {}, before the replayed rows from {}", i, s.decoder_from,
                 s.position);
  }
  if (s.decoder_from < slot.windows_from)
    return bad(plan, "sequences[{}].decoder_from: is {}, the windows came at {} and are not those of all layers", i,
               s.decoder_from, slot.windows_from);
  if (s.decoder_floor < s.decoder_from)
    return bad(plan, "sequences[{}].decoder_floor: is {}, decoder layers run from {}", i, s.decoder_floor,
               s.decoder_from);
  if (s.write_global_from > s.position && s.write_global_from % facts.window != 0)
    return bad(plan, "sequences[{}].write_global_from: is {}, not a multiple of the page of {} tokens", i,
               s.write_global_from, facts.window);
  if (s.sample && s.position + s.rows != slot.known)
    return bad(plan, "sequences[{}].sample: the chunk ends at {}, slot {} has {} tokens", i, s.position + s.rows,
               s.slot.value, slot.known);
  if (s.sample && s.decoder_from >= s.position + s.rows)
    return bad(plan, "sequences[{}].decoder_from: is {}, the sampled row {} lies before it", i, s.decoder_from,
               s.position + s.rows - 1);
  const uint64_t reach = std::max<uint64_t>(uint64_t{s.position} + s.rows, s.write_global_from);
  if ((reach + facts.window - 1) / facts.window > slot.pages)
    return bad(plan, "sequences[{}].pages: {} tokens need {} pages, slot {} has {}", i, reach,
               (reach + facts.window - 1) / facts.window, s.slot.value, slot.pages);
  return {};
}

}  // namespace

result<void> check_plan(const step_plan& plan, const engine_limits& limits, const model_facts& facts,
                        planned_state& state) {
  if (plan.id <= state.last_plan) return bad(plan, "id: must grow, the last one was {}", state.last_plan);
  state.last_plan = plan.id;
  if (plan.max_steps == 0) return bad(plan, "max_steps: is 0");
  for (size_t i = 0; i < plan.close.size(); ++i) {
    const uint32_t s = plan.close[i].value;
    if (s >= limits.slots || !state.slots[s].open) return bad(plan, "close[{}]: slot {} is not open", i, s);
    state.slots[s] = {};
  }
  for (size_t i = 0; i < plan.open.size(); ++i) {
    const uint32_t s = plan.open[i].slot.value;
    if (s >= limits.slots) return bad(plan, "open[{}].slot: is {}, there are {} slots", i, s, limits.slots);
    if (state.slots[s].open) return bad(plan, "open[{}].slot: {} is open", i, s);
    if (auto r = check_open(plan, i, limits, facts); !r) return r;
    state.slots[s].open = true;
    state.slots[s].known = static_cast<uint32_t>(plan.open[i].tokens.size());
    state.slots[s].committed = std::max(plan.open[i].imported.rows, plan.open[i].windows.position);
    state.slots[s].windows_from = plan.open[i].windows.position;
    if (plan.open[i].imported.rows > 0)
      state.slots[s].pages = static_cast<uint32_t>(plan.open[i].imported.pages.size());
  }
  const uint32_t table = (limits.max_context + facts.window - 1) / facts.window;
  uint64_t chunk_rows = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const sequence_step& s = plan.sequences[i];
    if (s.slot.value >= limits.slots || !state.slots[s.slot.value].open)
      return bad(plan, "sequences[{}].slot: {} is not open", i, s.slot.value);
    for (size_t j = 0; j < i; ++j)
      if (plan.sequences[j].slot == s.slot)
        return bad(plan, "sequences[{}].slot: {} is also in sequences[{}]", i, s.slot.value, j);
    planned_slot& slot = state.slots[s.slot.value];
    for (page_id p : s.pages)
      if (p.value >= limits.pages)
        return bad(plan, "sequences[{}].pages: page {} is out of range, the pool has {}", i, p.value, limits.pages);
    slot.pages += static_cast<uint32_t>(s.pages.size());
    if (slot.pages > table)
      return bad(plan, "sequences[{}].pages: slot {} would have {} pages, {} hold the largest context", i, s.slot.value,
                 slot.pages, table);
    if (s.export_to != no_handoff && (s.export_to >= limits.handoffs || !s.sample))
      return bad(plan, "sequences[{}].export_to: is {}, of {} places, with sample {}", i, s.export_to, limits.handoffs,
                 s.sample);
    for (const snapshot_place& w : s.snapshots)
      if (w.position == 0 || w.position % facts.window != 0 || w.place >= limits.snapshots)
        return bad(plan, "sequences[{}].snapshots: position {} in place {}; windows of {}, {} places", i, w.position,
                   w.place, facts.window, limits.snapshots);
    if (s.rows > 0) {
      if (auto r = check_chunk(plan, i, facts, slot); !r) return r;
      chunk_rows += s.rows;
      slot.committed = s.position + s.rows;
      slot.sampled = s.sample;
    } else if (!slot.sampled && slot.known != slot.committed + 1) {
      return bad(plan, "sequences[{}].rows: is 0 (decode), but slot {} has {} of {} tokens in place", i, s.slot.value,
                 slot.committed, slot.known);
    } else {
      slot.sampled = true;
    }
  }
  if (chunk_rows > limits.max_chunk)
    return bad(plan, "sequences: {} chunk rows, the limit is {}", chunk_rows, limits.max_chunk);
  return {};
}

}  // namespace troupe::kernels
