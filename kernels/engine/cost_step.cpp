// One step of a cost engine: which rows run, which tokens come out, which drafts are accepted.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/engine/cost_core.hpp"
#include "kernels/engine/handoff.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {
namespace {

// Special tokens lie at the beginning and towards the end of every vocabulary that we know: none of them is written.
constexpr uint32_t first_token = 16;

uint32_t last_token(uint32_t vocabulary) { return std::max(vocabulary / 2, first_token + 1); }

}  // namespace

void cost_core::apply_lists(step_result& result) {
  for (slot_id s : plan_.close) {
    slots_[s.value] = {};
    result.closed.push_back(s);
  }
  for (sequence_open& o : plan_.open) {
    slot_state& s = slots_[o.slot.value];
    s = {};
    s.open = true;
    s.tokens = std::move(o.tokens);
    s.prompt_length = o.prompt_length;
    s.sampling = o.sampling;
    s.stop = std::move(o.stop);
    s.speculate = o.speculate;
    uint64_t prompt = 0;
    if (!page_memory_.empty()) s.tags.reserve(s.tokens.size());
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      if (i == s.prompt_length) prompt = s.chain;
      s.chain = chain_after(s.chain, s.tokens[i]);
      if (!page_memory_.empty()) s.tags.push_back(tag_of(s.chain));
    }
    if (s.prompt_length == s.tokens.size()) prompt = s.chain;
    s.luck = mix_bits(prompt + s.sampling.seed);
    if (o.imported.rows == 0) continue;
    s.committed = o.imported.rows;
    s.pages = o.imported.pages;
    if (handoff_.empty()) continue;
    auto head = read_cost_state(facts_, o.imported.rows, state_place(o.imported.state));
    TROUPE_CHECK(head.has_value(), "a state that was checked when its plan was submitted has changed: {}",
                 head.error().message);
    s.damage = head->damage;
  }
  for (const sequence_step& step : plan_.sequences) {
    slot_state& s = slots_[step.slot.value];
    for (page_id p : step.pages) {
      // A page that starts before write_global_from was filled by the caller; the others start empty.
      if (!page_memory_.empty() && s.pages.size() * facts_.window >= step.write_global_from)
        std::memset(tags_of(p), 0, facts_.page_bytes);
      s.pages.push_back(p);
    }
  }
}

bool cost_core::can_decode(const slot_state& s) const {
  return s.known() == s.committed + 1 && s.committed < s.pages.size() * facts_.window;
}

uint32_t cost_core::most_drafts(const slot_state& s) const {
  const uint32_t rows = static_cast<uint32_t>(s.pages.size()) * facts_.window - (s.committed + 1);
  const uint32_t emitted = s.known() - s.prompt_length;
  const uint32_t tokens = std::min(limits_.max_context - s.known(), s.stop.max_tokens - emitted);
  return std::min({s.draft_count, limits_.max_draft, rows, tokens > 0 ? tokens - 1 : 0});
}

void cost_core::compose() {
  items_.clear();
  work_ = {};
  for (const sequence_step& step : plan_.sequences) {
    const slot_state& s = slots_[step.slot.value];
    if (s.finished || (step.rows > 0 && steps_done_ > 0) || (step.rows == 0 && !can_decode(s))) continue;
    items_.push_back({step.slot.value, &step, step.rows == 0, step.rows == 0 || step.sample, 0});
  }
  choose_drafts();
  grant_drafts(choice_.budget);
  for (const step_item& item : items_) {
    const slot_state& s = slots_[item.slot];
    const sequence_step& step = *item.step;
    if (item.decode) {
      policies::add_rows(work_, s.committed, 1 + item.drafts, 1 + item.drafts, 1 + item.drafts);
    } else {
      const uint32_t end = step.position + step.rows, from = std::clamp(step.decoder_from, step.position, end);
      policies::add_rows(work_, step.position, step.rows, end - from, step.sample);
    }
    work_.drafting += wants_draft(item);
  }
}

void cost_core::choose_drafts() {
  choice_ = {plan_.verify_budget, plan_.verify_budget > 0};
  if (!control_ || block_ == 0) return;
  draft_outlook o;
  at_hand_.width = block_;
  at_hand_.value.clear();
  at_hand_.drafts.clear();
  for (const step_item& item : items_) {
    const slot_state& s = slots_[item.slot];
    if (!item.decode) {
      o.other_rows += item.step->rows;
      continue;
    }
    ++o.requests;
    at_hand_.drafts.push_back(most_drafts(s));
    for (uint32_t k = 0; k < block_; ++k) at_hand_.value.push_back(k < s.draft_count ? s.confidences[k] : 0);
  }
  o.most_drafts = plan_.verify_budget;
  o.drafts = &at_hand_;
  choice_ = control_->choose(o);
}

// Gives the step's budget to the drafts most likely to be accepted.
void cost_core::grant_drafts(uint32_t budget) {
  grants_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].decode) continue;
    const slot_state& s = slots_[items_[i].slot];
    grants_.offer(i, std::span(s.confidences).first(most_drafts(s)));
  }
  for (const uint32_t item : grants_.choose(budget)) ++items_[item].drafts;
}

bool cost_core::wants_draft(const step_item& item) const {
  return item.sample && block_ > 0 && limits_.max_draft > 0 && choice_.draft && slots_[item.slot].speculate &&
         item.step->draft_context;
}

// Of the position behind the known tokens. The same for every way there.
token_id cost_core::sample(const slot_state& s) const {
  const uint64_t seed = s.sampling.temperature == 0 ? 0 : mix_bits(s.sampling.seed + 1);
  uint64_t h = mix_bits(mix_bits(s.chain + seed) ^ (uint64_t{s.known()} << 20) ^ s.damage);
  const bool may_end = s.known() - s.prompt_length >= s.stop.min_tokens;
  if (model_->mean_output > 0 && may_end && !s.stop.ignore_eos && (h >> 32) % model_->mean_output == 0)
    return facts_.eos;
  const uint32_t last = last_token(facts_.vocabulary);
  for (;;) {
    const auto t = static_cast<token_id>(first_token + (h >> 16) % (last - first_token));
    const bool banned = t == facts_.eos || (!may_end && std::find(s.stop.stop_ids.begin(), s.stop.stop_ids.end(), t) !=
                                                            s.stop.stop_ids.end());
    if (!banned) return t;
    h = mix_bits(h + 1);
  }
}

// After the newest token.
finish_reason cost_core::finish_of(const slot_state& s) const {
  const token_id token = s.tokens.back();
  if (token == facts_.eos && !s.stop.ignore_eos) return finish_reason::stop;
  for (token_id t : s.stop.stop_ids)
    if (t == token) return finish_reason::stop;
  if (s.known() - s.prompt_length >= s.stop.max_tokens || s.known() >= limits_.max_context)
    return finish_reason::length;
  return finish_reason::none;
}

void cost_core::append(slot_state& s, token_id token) {
  s.tokens.push_back(token);
  s.chain = chain_after(s.chain, token);
  if (!page_memory_.empty()) s.tags.push_back(tag_of(s.chain));
}

uint32_t* cost_core::tags_of(page_id page) {
  return reinterpret_cast<uint32_t*>(page_memory_.data() + size_t{page.value} * facts_.page_bytes);
}

void cost_core::write_tags(slot_state& s, uint32_t from, uint32_t to) {
  if (page_memory_.empty()) return;
  for (uint32_t p = from; p < to; ++p) tags_of(s.pages[p / facts_.window])[p % facts_.window] = s.tags[p];
}

// Attention reads every page: the last token in place of each says whose it is.
void cost_core::read_tags(slot_state& s, uint32_t rows) {
  if (page_memory_.empty() || rows == 0) return;
  const uint32_t w = facts_.window;
  for (uint32_t page = 0; page * w < rows; ++page) {
    const uint32_t at = std::min((page + 1) * w, rows) - 1, found = tags_of(s.pages[page])[at % w];
    if (found != s.tags[at]) s.damage = mix_bits(s.damage + found + at);
  }
}

uint64_t cost_core::page_sum(const slot_state& s, uint32_t index) const {
  const uint32_t first = index * facts_.window, rows = std::min(facts_.window, s.committed - first);
  if (!page_memory_.empty())
    return page_checksum(outline_->plan,
                         page_memory_.subspan(size_t{s.pages[index].value} * facts_.page_bytes, facts_.page_bytes),
                         rows);
  return chain_of(std::span(s.tokens).subspan(first, rows));
}

sequence_export cost_core::export_sequence(const slot_state& s, uint32_t place) {
  sequence_export out;
  out.rows = s.committed;
  const uint64_t chain = chain_of(std::span(s.tokens).first(s.committed));
  out.state_bytes = cost_state_bytes;
  out.state_checksum = chain;
  if (const auto to = state_place(place); !to.empty()) {
    write_cost_state(facts_, s.committed, chain, s.damage, to);
    out.state_checksum = checksum(to.first(cost_state_bytes));
  }
  for (uint32_t p = 0; p * facts_.window < s.committed; ++p) out.page_checksums.push_back(page_sum(s, p));
  return out;
}

// The step has succeeded: rows are in place, tokens come out.
void cost_core::run_item(const step_item& item, step_result& result) {
  slot_state& s = slots_[item.slot];
  const sequence_step& step = *item.step;
  sequence_result out;
  out.slot = slot_id{item.slot};
  out.first_position = s.known();
  const uint32_t position = item.decode ? s.committed : step.position;
  read_tags(s, item.decode ? s.committed : std::max(position, step.write_global_from));
  uint32_t emitted = 0;
  if (item.sample) {
    out.tokens.reserve(1 + item.drafts);
    // A draft stands iff it would be what the target samples at its position.
    for (uint32_t i = 0; i <= item.drafts && out.finish == finish_reason::none; ++i) {
      const bool stands = i < item.drafts && policies::accepts(model_->acceptance, s.luck, s.known());
      append(s, sample(s));
      ++emitted;
      out.tokens.push_back(s.tokens.back());
      if (s.sampling.logprobs >= 0) {  // it knows of no other token: the probability is 1
        out.logprobs.push_back(0);
        auto& top = out.top.emplace_back();
        if (s.sampling.logprobs > 0) top.push_back({s.tokens.back(), 0});
      }
      out.finish = finish_of(s);
      if (!stands) break;
    }
  }
  s.committed = item.decode ? position + emitted : position + step.rows;
  write_tags(s, std::max(position, item.decode ? 0 : step.write_global_from), s.committed);
  s.finished = out.finish != finish_reason::none;
  s.draft_count = 0;
  if (wants_draft(item) && !s.finished) {
    s.draft_count = block_;
    s.confidences.resize(block_);
    for (uint32_t k = 0; k < block_; ++k)
      s.confidences[k] = static_cast<float>(policies::accept_chance(model_->acceptance, s.luck, s.known() + k)) / 1e6f;
  }
  out.committed = s.committed;
  out.drafted = item.drafts;
  out.accepted = item.decode && emitted > 0 ? emitted - 1 : 0;
  if (item.sample && step.export_to != no_handoff && !s.finished && emitted > 0)
    out.exported = export_sequence(s, step.export_to);
  drafted_ += item.drafts;
  emitted_ += item.decode ? emitted : 0;
  result.rows += item.decode ? 1 + item.drafts : step.rows;
  result.sequences.push_back(std::move(out));
}

}  // namespace troupe::kernels
