// How a batch makes the next plan.
#include <algorithm>

#include "actors/serving/batch.hpp"
#include "policies/chunk.hpp"
#include "policies/pages.hpp"
#include "policies/resume.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {
namespace {

constexpr size_t max_plans = 2;        // one running, one next
constexpr size_t max_candidates = 16;  // waiting requests looked at per plan

}  // namespace

void batch::add_to_plan(planned& out, record& rec, uint64_t number, uint32_t rows, uint32_t grow) {
  auto& s = at(number);
  entry e{number, rows, 0, grow, false};
  if (s.at == phase::waiting) {
    e.opens = true;
    s.at = phase::running;
    s.slot = kernels::slot_id{*free_slots_.begin()};
    free_slots_.erase(free_slots_.begin());
    slots_.emplace(s.slot, number);
    s.opened = static_cast<uint32_t>(s.known.size());
    auto resume = policies::plan_resume({s.prompt_length, s.opened, facts_.window, facts_.decoder_layers});
    note("start: " + resume.reason);
    s.decoder_from = resume.decoder_from;
    std::erase(waiting_, number);
    running_.push_back(number);
    out.plan.open.push_back({s.slot, s.known, s.prompt_length, s.sampling, s.stop, draft_bound(s) > 0});
  }
  kernels::sequence_step step;
  step.slot = s.slot;
  step.decoder_from = s.decoder_from;
  step.decoder_floor = s.decoder_from;
  step.draft_context = draft_bound(s) > 0;
  if (s.planned < s.opened) {
    step.position = s.planned;
    step.rows = rows;
    s.planned += rows;
    step.sample = s.planned == s.opened;
    e.worst = rows;
  } else {
    step.sample = true;
    e.worst = 1 + draft_bound(s);
    if (draft_bound(s) > 0) out.plan.verify_budget += limits_.max_draft;
  }
  s.in_flight += e.worst;
  s.pages += grow;
  pages_free_ -= grow;
  out.plan.sequences.push_back(std::move(step));
  out.grow.push_back(grow);
  rec.entries.push_back(e);
}

batch::planned batch::plan() {
  planned out;
  if (!configured_ || hold_ || plans_.size() >= max_plans) return out;

  // Who could run: the running ones, oldest first, then waiting ones while there are slots.
  std::vector<uint64_t> who;
  for (uint64_t number : running_)
    if (runs_next(at(number))) who.push_back(number);
  const size_t candidates = std::min({waiting_.size(), free_slots_.size(), max_candidates});
  who.insert(who.end(), waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(candidates));

  policies::page_input pages{pages_free_, 0, {}};
  for (auto& [number, s] : sequences_)
    if (s.at == phase::closing) pages.returning += s.pages;
  for (uint64_t number : who) pages.running.push_back({at(number).pages, pages_after_next(at(number))});
  auto granted = policies::plan_pages(pages);
  if (!granted.preempt.empty()) note("pages: " + granted.reason);
  for (size_t i : granted.preempt) {
    auto& s = at(who[i]);
    if (s.at != phase::running) continue;
    s.preempted = true;
    ++counters_.preempted;
    leave(who[i]);
  }

  policies::chunk_input chunks{limits_.max_chunk, {}};
  std::vector<size_t> prompts;
  for (size_t i = 0; i < who.size(); ++i) {
    auto& s = at(who[i]);
    const uint32_t left = s.at == phase::waiting ? static_cast<uint32_t>(s.known.size()) : s.opened - s.planned;
    if (!granted.runs[i] || left == 0) continue;
    prompts.push_back(i);
    chunks.remaining.push_back(left);
  }
  auto shared = policies::plan_chunks(chunks);
  if (!prompts.empty()) note("chunks: " + shared.reason);
  std::vector<uint32_t> rows(who.size(), 0);
  for (size_t k = 0; k < prompts.size(); ++k) rows[prompts[k]] = shared.rows[k];

  record rec;
  for (size_t i = 0; i < who.size(); ++i) {
    auto& s = at(who[i]);
    if (!granted.runs[i] || (s.at != phase::running && s.at != phase::waiting)) continue;
    const bool prompt = s.at == phase::waiting || s.planned < s.opened;
    if (prompt && rows[i] == 0) continue;
    add_to_plan(out, rec, who[i], rows[i], granted.grow[i]);
  }
  rec.closes = std::exchange(to_close_, {});
  if (rec.entries.empty() && rec.closes.empty()) return out;
  out.any = true;
  out.plan.id = rec.id = next_plan_++;
  out.plan.close = rec.closes;
  out.plan.verify_budget = std::min(out.plan.verify_budget, verify_budget_);
  plans_.push_back(std::move(rec));
  return out;
}

}  // namespace troupe::actors
