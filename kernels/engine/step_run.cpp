// One step of the engine: which rows run, what is sampled, which drafts are accepted.
#include <algorithm>
#include <utility>

#include "kernels/engine/handoff.hpp"
#include "kernels/engine/snapshot.hpp"
#include "kernels/engine/step_engine.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels {

// A decode row needs a token that is not in place yet and a page to put it in; without the page the sequence waits.
bool step_engine::can_decode(const slot_state& s) const {
  return s.known == s.committed + 1 && s.committed < s.pages * facts_.window;
}

uint32_t step_engine::most_drafts(const slot_state& s) const {
  const uint32_t rows = s.pages * facts_.window - (s.committed + 1);
  const uint32_t emitted = s.known - s.prompt_length;
  const uint32_t tokens = std::min(limits_.max_context - s.known, s.stop.max_tokens - emitted);  // l drafts give l + 1
  return std::min({s.draft_count, limits_.max_draft, rows, tokens > 0 ? tokens - 1 : 0});
}

// Which sequences run, with which rows.
void step_engine::compose(bool first_step) {
  items_.clear();
  rows_.clear();
  for (const sequence_step& step : plan_.sequences) {
    const slot_state& s = slots_[step.slot.value];
    if (s.finished || (step.rows > 0 && !first_step) || (step.rows == 0 && !can_decode(s))) continue;
    step_item item;
    item.slot = step.slot.value;
    item.step = &step;
    item.decode = step.rows == 0;
    item.sample = item.decode || step.sample;
    items_.push_back(item);
  }
  choose_drafts();
  grant_drafts(choice_.budget);
  for (step_item& item : items_) {
    slot_state& s = slots_[item.slot];
    const sequence_step& step = *item.step;
    sequence_rows r;
    r.slot = item.slot;
    r.draft_context = block_ > 0 && step.draft_context;
    uint32_t tail = s.committed;
    if (item.decode) {
      for (uint32_t i = 0; i < item.drafts; ++i) s.tokens[s.known + i] = s.drafts[i];
      r.position = s.committed;
      r.rows = 1 + item.drafts;
      r.window_floor = s.window_floor;
      r.decoder_floor = s.decoder_floor;
    } else {
      // A jump (replay) starts new floors, a chunk that continues keeps the highest.
      const bool continues = step.position == s.committed;
      r.position = step.position;
      r.rows = step.rows;
      r.window_floor = continues ? std::max(step.window_floor, s.window_floor) : step.window_floor;
      r.decoder_floor = continues ? std::max(step.decoder_floor, s.decoder_floor) : step.decoder_floor;
      r.decoder_from = step.decoder_from;
      r.write_global_from = step.write_global_from;
      tail = std::max(step.position, step.decoder_from);
    }
    r.first_decoder_floor = r.window_floor;
    r.tokens = s.tokens;
    item.context_floor = s.context_end == tail && s.context_end > s.context_floor ? s.context_floor : tail;
    rows_.push_back(r);
  }
}

// How many drafts are verified, and whether the step drafts for the next one.
void step_engine::choose_drafts() {
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
    at_hand_.value.insert(at_hand_.value.end(), s.confidences.begin(), s.confidences.end());
  }
  o.most_drafts = plan_.verify_budget;
  o.drafts = &at_hand_;
  choice_ = control_->choose(o);
}

// Tells the control what the step was.
void step_engine::observe_drafts(int64_t total_ns) {
  if (!control_ || items_.empty()) return;
  draft_measurement m;
  m.drafted = static_cast<uint32_t>(draft_sequences_.size());
  m.draft_ns = draft_ns_;
  m.target_ns = total_ns - draft_ns_;
  for (const step_item& item : items_) {
    if (!item.decode) continue;
    m.verified += item.drafts;
    m.tokens += item.emitted;
  }
  control_->observe(m);
}

// Gives the step's budget to the drafts most likely to be accepted.
void step_engine::grant_drafts(uint32_t budget) {
  grants_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].decode) continue;
    const slot_state& s = slots_[items_[i].slot];
    grants_.offer(i, std::span(s.confidences).first(most_drafts(s)));
  }
  for (const uint32_t item : grants_.choose(budget)) ++items_[item].drafts;
}

bool step_engine::wants_draft(const step_item& item) const {
  return item.sample && block_ > 0 && limits_.max_draft > 0 && choice_.draft && slots_[item.slot].speculate &&
         item.step->draft_context;
}

ep::step_header step_engine::header() const {
  ep::step_header h;
  h.has_work = h.encoder = forward_->has_rows();
  h.decoder = forward_->has_tail();
  for (const step_item& item : items_) h.draft = h.draft || wants_draft(item);
  if (limits_.micro_batch_rows > 0 && forward_->rows() >= limits_.micro_batch_rows && group_->shape().ranks > 1)
    h.micro_batches = group_->shape().micro_batches;
  moves_.announce(h, group_step_ + 1);
  return h;
}

result<void> step_engine::run_step(const ep::step_header& agreed, step_result& result) {
  result.micro_batches = agreed.micro_batches;
  if (agreed.encoder || agreed.decoder)
    if (auto r = forward_->layers(*group_, moves_.table(), agreed.decoder, agreed.micro_batches); !r) return r;
  const int64_t start = clock_.now().count();
  sample_rows();
  sampling_ns_ += clock_.now().count() - start;
  for (step_item& item : items_) {
    const slot_state& s = slots_[item.slot];
    item.committed = item.decode ? s.committed : item.step->position + item.step->rows;
    if (item.sample) accept(item);
  }
  draft_sequences_.clear();
  draft_ns_ = 0;
  if (agreed.draft) {
    const int64_t from = clock_.now().count();
    if (auto r = draft_pass(); !r) return r;
    draft_ns_ = clock_.now().count() - from;
  }
  finish_step(result);
  return {};
}

// Samples every row that needs a token, in batches of what the logits memory holds.
void step_engine::sample_rows() {
  sampled_tail_.clear();
  sample_rows_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i) {
    step_item& item = items_[i];
    if (!item.sample) continue;
    const slot_state& s = slots_[item.slot];
    const uint32_t first = item.decode ? s.committed : item.step->position + item.step->rows - 1;
    item.first_sample = static_cast<uint32_t>(sampled_tail_.size());
    item.samples = item.decode ? 1 + item.drafts : 1;
    for (uint32_t k = 0; k < item.samples; ++k) {
      const uint32_t position = first + k + 1;  // of the token
      sample_row row{s.sampling.temperature, s.sampling.top_p, s.sampling.top_k, s.sampling.seed, position};
      if (position - s.prompt_length < s.stop.min_tokens) {
        row.banned = s.banned.data();
        row.banned_count = static_cast<uint32_t>(s.banned.size());
      }
      row.logprobs = s.sampling.logprobs;
      sampled_tail_.push_back(forward_->tail_index(i, first + k));
      sample_rows_.push_back(row);
    }
  }
  const uint32_t total = static_cast<uint32_t>(sampled_tail_.size());
  for (uint32_t first = 0; first < total; first += forward_->logits_rows()) {
    const uint32_t n = std::min(forward_->logits_rows(), total - first);
    const float* logits = forward_->logits({sampled_tail_.data() + first, n});
    ops_->sample(where_, logits, n, facts_.vocabulary, sample_rows_.data() + first, sampled_.data() + first,
                 logprobs_.data() + first, top_tokens_.data() + size_t{first} * operators::max_top,
                 top_logprobs_.data() + size_t{first} * operators::max_top);
  }
  ops_->synchronise(where_);
}

finish_reason step_engine::finish_of(const slot_state& s, token_id token, uint32_t known) const {
  if (token == facts_.eos && !s.stop.ignore_eos) return finish_reason::stop;
  for (token_id t : s.stop.stop_ids)
    if (t == token) return finish_reason::stop;
  if (known - s.prompt_length >= s.stop.max_tokens || known >= limits_.max_context) return finish_reason::length;
  return finish_reason::none;
}

// A draft stands iff it equals what the target samples at its position; the first other token replaces it and ends the
// step's run. The rows of rejected drafts are never committed.
void step_engine::accept(step_item& item) {
  const slot_state& s = slots_[item.slot];
  for (uint32_t i = 0; i < item.samples; ++i) {
    const token_id token = sampled_[item.first_sample + i];
    if (token < 0) {  // nothing to sample from, see operators::sample
      item.finish = finish_reason::error;
      break;
    }
    item.emitted = i + 1;
    item.finish = finish_of(s, token, s.known + i + 1);
    if (item.finish != finish_reason::none || i >= item.drafts || s.drafts[i] != token) break;
  }
  if (item.decode) item.committed += item.emitted;
}

result<void> step_engine::draft_pass() {
  const uint32_t capacity = forward_->draft_capacity();
  for (uint32_t i = 0; i < items_.size(); ++i) {
    step_item& item = items_[i];
    if (!wants_draft(item) || item.finish != finish_reason::none || draft_sequences_.size() >= capacity) continue;
    const slot_state& s = slots_[item.slot];
    draft_sequence d;
    d.sequence = i;
    d.last = item.committed - 1;
    d.floor = item.context_floor;
    d.anchor = sampled_[item.first_sample + item.emitted - 1];
    d.sampling = sample_rows_[item.first_sample];
    if (d.last + 2 - s.prompt_length >= s.stop.min_tokens) d.sampling.banned_count = 0;
    item.draft_index = static_cast<int32_t>(draft_sequences_.size());
    draft_sequences_.push_back(d);
  }
  return forward_->draft(*group_, moves_.table(), draft_sequences_, drafts_.data(), confidences_.data());
}

void step_engine::report_drafts(const step_item& item) const {
  const slot_state& s = slots_[item.slot];
  draft_outcome out{slot_id{item.slot}, s.known, {s.drafts.data(), item.drafts}, {s.confidences.data(), item.drafts}};
  while (out.matched < std::min(item.emitted, item.drafts) &&
         s.drafts[out.matched] == sampled_[item.first_sample + out.matched])
    ++out.matched;
  out.ended =
      out.matched == item.emitted;  // else the token after the matches shows the first mismatch, if there is one
  on_drafts_(out);
}

// The sequence as it stands after the step. Its pages are not written any more unless it goes on here.
sequence_export step_engine::export_sequence(const step_item& item) {
  const slot_state& s = slots_[item.slot];
  sequence_export out;
  handoff_head head;
  head.rows = s.committed;
  head.window_floor = s.window_floor;
  head.decoder_floor = s.decoder_floor;
  head.context_floor = s.context_floor;
  head.context_end = s.context_end;
  const auto place = handoff_place(item.step->export_to);
  out.rows = s.committed;
  out.state_bytes = write_handoff(*model_, facts_, *ops_, where_, *state_, item.slot, s.tokens, head, place);
  out.state_checksum = checksum(place.first(out.state_bytes));
  const auto table = state_->table(item.slot);
  for (uint32_t p = 0, first = 0; first < s.committed; ++p, first += facts_.window)
    out.page_checksums.push_back(
        page_checksum(model_->plan, page_memory_.subspan(size_t{table[p]} * facts_.page_bytes, facts_.page_bytes),
                      std::min(facts_.window, s.committed - first)));
  return out;
}

// Before the step's rows move into the rings, which hold little more than the last window. A chunk may cross several.
void step_engine::take_snapshots() {
  taken_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i) {
    const step_item& item = items_[i];
    for (const snapshot_place& w : item.step->snapshots) {
      const bool crossed = w.position > rows_[i].position && w.position <= item.committed;
      if (!crossed || w.position - facts_.window < rows_[i].window_floor) continue;
      const auto to = snapshot_bytes(w.place);
      const size_t window_bytes = to.size() / (facts_.encoder_layers + 1);
      for (uint32_t l = 0; l <= facts_.encoder_layers; ++l)
        forward_->copy_window(i, l, w.position - facts_.window, facts_.window, to.data() + l * window_bytes);
      ops_->synchronise(where_);
      taken_.emplace_back(i, snapshot_taken{w.position, w.place, snapshot_checksum(to)});
    }
  }
}

// The step has succeeded: moves it into the slots and writes the result.
void step_engine::finish_step(step_result& result) {
  take_snapshots();
  commits_.clear();
  for (uint32_t i = 0; i < items_.size(); ++i)
    commits_.push_back({i, items_[i].decode ? items_[i].emitted : items_[i].step->rows});
  forward_->commit(commits_);
  for (uint32_t i = 0; i < items_.size(); ++i) {
    const step_item& item = items_[i];
    const sequence_rows& rows = rows_[i];
    slot_state& s = slots_[item.slot];
    if (on_drafts_ && item.drafts > 0) report_drafts(item);
    sequence_result out;
    out.slot = slot_id{item.slot};
    out.first_position = s.known;
    out.committed = item.committed;
    out.finish = item.finish;
    out.drafted = item.drafts;
    out.accepted = item.decode && item.emitted > 0 ? item.emitted - 1 : 0;
    for (uint32_t k = 0; k < item.emitted; ++k) {
      const uint32_t at = item.first_sample + k;
      s.tokens[s.known + k] = sampled_[at];
      out.tokens.push_back(sampled_[at]);
      if (s.sampling.logprobs < 0) continue;
      out.logprobs.push_back(logprobs_[at]);
      auto& top = out.top.emplace_back();
      for (int32_t t = 0; t < s.sampling.logprobs; ++t)
        top.push_back(
            {top_tokens_[size_t{at} * operators::max_top + t], top_logprobs_[size_t{at} * operators::max_top + t]});
    }
    s.known += item.emitted;
    s.window_floor = rows.window_floor;
    s.decoder_floor = rows.decoder_floor;
    s.committed = item.committed;
    if (rows.draft_context && item.committed > rows.decoder_from) {
      s.context_floor = item.context_floor;
      s.context_end = item.committed;
    }
    s.finished = item.finish != finish_reason::none;
    s.draft_count = 0;
    if (item.draft_index >= 0) {
      const size_t from = static_cast<size_t>(item.draft_index) * block_;
      std::copy_n(drafts_.begin() + static_cast<ptrdiff_t>(from), block_, s.drafts.begin());
      std::copy_n(confidences_.begin() + static_cast<ptrdiff_t>(from), block_, s.confidences.begin());
      while (s.draft_count < block_ && s.drafts[s.draft_count] >= 0) ++s.draft_count;
    }
    if (item.sample && item.step->export_to != no_handoff && !s.finished && item.emitted > 0)
      out.exported = export_sequence(item);
    for (const auto& [of, snapshot] : taken_)
      if (of == i) out.snapshots.push_back(snapshot);
    result.rows += rows.rows;
    result.sequences.push_back(std::move(out));
  }
}

}  // namespace troupe::kernels
