// How a batch makes the next plan, and what it learns from those that ran.
#include <algorithm>

#include "actors/serving/batch.hpp"
#include "policies/chunk.hpp"
#include "policies/pages.hpp"
#include "policies/resume.hpp"
#include "runtime/base/check.hpp"

namespace troupe::actors {
namespace {

constexpr size_t max_candidates = 16;  // waiting requests looked at per plan

}  // namespace

void batch::line_up(uint64_t number) {
  const auto behind = std::upper_bound(waiting_.begin(), waiting_.end(), at(number).order,
                                       [this](int64_t order, uint64_t other) { return order < at(other).order; });
  waiting_.insert(behind, number);
}

void batch::add_to_plan(planned& out, record& rec, uint64_t number, uint32_t rows, uint32_t grow) {
  auto& s = at(number);
  entry e{number, rows, 0, grow, 0, false};
  // A prompt that is handed over takes the drafter's context along, though nobody drafts here.
  const bool drafts = draft_bound(s) > 0, context = drafts || (what_ == role::prefill && s.speculate);
  uint32_t more = grow;  // pages that the rank has not taken yet
  if (s.at == phase::waiting || s.importing || s.filled) {
    e.opens = true;
    e.imports = s.importing;
    e.fills = s.filled;
    if (s.at == phase::waiting) {
      s.at = phase::running;
      take_slot(s, number);
      s.opened = static_cast<uint32_t>(s.known.size());
      std::erase(waiting_, number);
      running_.push_back(number);
    }
    auto resume = policies::plan_resume({s.prompt_length, s.opened, facts_.window, facts_.decoder_layers});
    note("start: " + resume.reason);
    s.decoder_from = resume.decoder_from;
    kernels::sequence_open open{s.slot, s.known, s.prompt_length, s.sampling, s.stop, drafts, {}};
    if (s.importing) open.imported.rows = s.handoff.rows;  // the rank knows the rest
    if (s.windows) open.windows.position = s.reuse;
    out.plan.open.push_back(std::move(open));
    out.imports.push_back(s.importing ? number : 0);
    out.reads.push_back(s.filled ? s.read : 0);
    if (s.filled) {
      more += s.pages - hit_blocks(s);
      reads_.erase(s.read);
      s.read = 0;
    }
    counters_.cached_tokens += s.reuse;
    s.importing = s.filled = false;
    s.handoff = {};
  }
  kernels::sequence_step step;
  step.slot = s.slot;
  step.decoder_from = s.decoder_from;
  step.decoder_floor = s.decoder_from;
  step.draft_context = context;
  if (s.planned < s.opened) {
    step.position = e.before = s.planned;
    step.window_floor = s.windows ? s.reuse - facts_.window : s.reuse;
    step.write_global_from = s.reuse + s.replay;
    step.rows = rows;
    s.planned += rows;
    step.sample = s.planned == s.opened;
    if (step.sample && what_ == role::prefill && limits_.handoffs > 0) {
      step.export_to = 0;  // the rank names the place
      stream_item soon;
      soon.first_position = s.opened;
      soon.last_chunk = true;
      emit(s, std::move(soon));
    }
    e.worst = rows;
  } else {
    step.sample = true;
    e.worst = 1 + draft_bound(s);
    if (draft_bound(s) > 0) out.plan.verify_budget += limits_.max_draft;
  }
  ask_snapshots(s, step);
  s.in_flight += e.worst;
  s.pages += grow;
  pages_free_ -= grow;
  out.plan.sequences.push_back(std::move(step));
  out.grow.push_back(more);
  rec.entries.push_back(e);
}

batch::planned batch::plan() {
  planned out;
  if (!configured_ || hold_ || plans_.size() > plans_ahead_) return out;
  out.follows = std::exchange(fresh_, false) ||
                std::any_of(plans_.begin(), plans_.end(), [](const record& r) { return !r.entries.empty(); });

  // Who could run: the running ones, oldest first, then waiting ones while there are slots.
  std::vector<uint64_t> who;
  for (uint64_t number : running_)
    if (runs_next(at(number))) who.push_back(number);
  const size_t candidates = std::min({waiting_.size(), free_slots_.size(), max_candidates});
  who.insert(who.end(), waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(candidates));

  policies::page_input pages{pages_usable(), 0, {}};
  for (auto& [number, s] : sequences_)
    if (s.at == phase::closing) pages.returning += s.pages;
  for (uint64_t number : who) pages.running.push_back({at(number).pages, pages_after_next(at(number))});
  auto granted = policies::plan_pages(pages);
  const auto starved = [&](uint64_t number) {
    const auto i = static_cast<size_t>(std::find(who.begin(), who.end(), number) - who.begin());
    return i < who.size() && !granted.runs[i];
  };
  if (has_leases() && std::any_of(running_.begin(), running_.end(), starved)) {
    expire_leases(nanoseconds::max());  // room that is only kept goes to those who run
    pages.free = pages_usable();
    granted = policies::plan_pages(pages);
  }
  if (!granted.preempt.empty()) note("pages: " + granted.reason);
  for (size_t i : granted.preempt) {
    auto& s = at(who[i]);
    if (s.at != phase::running) continue;
    if (has_slot_open(s)) write_back(s, true);  // it comes back to what the store has of it
    s.preempted = true;
    ++counters_.preempted;
    leave(who[i]);
  }

  // What prefill ranks hold is fetched, as many at once as there are places; its growth is granted when it runs. What
  // the store has is read; others run meanwhile.
  for (size_t i = 0; i < who.size(); ++i) {
    const auto& s = at(who[i]);
    if (s.at != phase::waiting) continue;
    if (s.handoff.kind == handoff_kind::pull) {
      if (granted.runs[i] && imports_out_ < limits_.handoffs) begin_fetch(who[i], pages_for(s.handoff.rows));
    } else if (s.prefix.reuse > 0) {
      if (granted.runs[i]) begin_read(who[i], granted.grow[i]);
    } else {
      continue;
    }
    granted.runs[i] = false;
  }

  policies::chunk_input chunks;
  std::vector<size_t> prompts;
  uint32_t before = 0;
  bool decodes = false;
  for (size_t i = 0; i < who.size(); ++i) {
    auto& s = at(who[i]);
    const uint32_t left = s.at == phase::waiting ? static_cast<uint32_t>(s.known.size()) : s.opened - s.planned;
    if (!granted.runs[i]) continue;
    decodes = decodes || left == 0;
    if (left == 0) continue;
    if (s.at != phase::waiting) before = std::max(before, s.planned);
    prompts.push_back(i);
    chunks.remaining.push_back(left);
  }
  chunks.budget = costs_.rows_within(step_budget_.count(), before, decodes, facts_.window, limits_.max_chunk);
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

void batch::learn(const record& rec, int64_t time_ns) {
  std::vector<step_costs::prompt_rows> prompts;
  for (const auto& e : rec.entries)
    if (e.rows > 0) prompts.push_back({e.rows, e.before});
  if (auto said = costs_.observe(prompts, prompts.size() < rec.entries.size(), time_ns); !said.empty())
    note(std::move(said));
}

rank_load batch::load() const {
  rank_load out;
  out.requests = static_cast<uint32_t>(unfinished());
  out.slots = limits_.slots;
  out.queue_limit = queue_limit_;
  out.page_tokens = facts_.window;
  out.pages = limits_.pages;
  out.max_chunk = limits_.max_chunk;
  if (const auto& cost = costs_.prefill()) {
    out.cost_a = cost->a;
    out.cost_b = cost->b;
    out.cost_d = cost->d;
  }
  for (const auto& [number, s] : sequences_) out.kv_tokens += s.committed;
  return out;
}

}  // namespace troupe::actors
