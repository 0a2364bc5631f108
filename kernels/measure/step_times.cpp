#include "kernels/measure/step_times.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "kernels/engine/handoff.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/processor_clock.hpp"

namespace troupe::kernels::measure {
namespace {

// An engine whose slots have their pages to themselves; one plan at a time.
class stepper {
 public:
  static result<std::unique_ptr<stepper>> make(std::shared_ptr<const model> weights, uint32_t threads, uint32_t slots,
                                               uint32_t context, uint32_t max_chunk) {
    auto s = std::make_unique<stepper>();
    s->window_ = weights->plan.window;
    s->vocabulary_ = weights->config.vocab_size;
    s->per_slot_ = (context + s->window_ - 1) / s->window_;
    cpu_engine_config c;
    c.weights = std::move(weights);
    c.limits = {.slots = slots,
                .max_chunk = max_chunk,
                .max_context = context,
                .pages = slots * s->per_slot_,
                .threads = threads};
    if (threads == 1) c.clock = &thread_clock();  // what other programs take does not count
    TROUPE_TRY(s->engine_, make_cpu_engine(std::move(c), [raw = s.get()](step_result r) {
                 std::lock_guard lock(raw->mutex_);
                 raw->results_.push_back(std::move(r));
                 raw->arrived_.notify_all();
               }));
    return s;
  }
  ~stepper() {
    if (engine_) engine_->stop();
  }

  // Runs the plan; the times of its steps.
  result<std::vector<int64_t>> run(step_plan plan) {
    plan.id = ++plan_;
    if (auto ok = engine_->submit(std::move(plan)); !ok) return fail(ok.error());
    std::vector<int64_t> out;
    for (;;) {
      std::unique_lock lock(mutex_);
      if (!arrived_.wait_for(lock, std::chrono::minutes(5), [&] { return !results_.empty(); }))
        return fail(errc::timeout, "a step takes more than five minutes");
      const step_result r = std::move(results_.front());
      results_.pop_front();
      if (r.failure != errc{}) return fail(r.failure, "{}", r.failure_text);
      if (r.rows > 0) out.push_back(r.times.total);
      if (r.plan_done) return out;
    }
  }

  sequence_open open(uint32_t slot, uint32_t tokens, bool speculate) const {
    sequence_open o;
    o.slot = slot_id{slot};
    uint64_t x = slot + 1;
    for (uint32_t i = 0; i < tokens; ++i) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      o.tokens.push_back(static_cast<token_id>(16 + (x >> 33) % (vocabulary_ / 2)));
    }
    o.prompt_length = tokens;
    o.sampling.temperature = 0;
    o.stop = {.max_tokens = 1u << 20, .ignore_eos = true};
    o.speculate = speculate;
    return o;
  }
  // A chunk of encoder rows, or, with `last`, the end of a prompt.
  sequence_step chunk(uint32_t slot, uint32_t position, uint32_t rows, bool last, bool first) const {
    sequence_step s{.slot = slot_id{slot}, .position = position, .rows = rows};
    const uint32_t end = position + rows;
    s.decoder_from = s.decoder_floor = last ? (end > window_ ? end - window_ : 0) : end;
    s.sample = last;
    if (first)
      for (uint32_t p = 0; p < per_slot_; ++p) s.pages.push_back(page_id{slot * per_slot_ + p});
    return s;
  }
  // Opens the slot and runs its first `rows` tokens.
  result<void> begin(sequence_open o, uint32_t rows, bool sample, uint32_t max_chunk) {
    const uint32_t slot = o.slot.value;
    step_plan plan;
    plan.open.push_back(std::move(o));
    for (uint32_t at = 0; at < rows; at += max_chunk) {
      const uint32_t n = std::min(max_chunk, rows - at);
      // All of the decoder's tail must be in the last chunk.
      plan.sequences = {chunk(slot, at, n, sample && at + n == rows, at == 0)};
      if (auto r = run(std::move(plan)); !r) return fail(r.error());
      plan = {};
    }
    return {};
  }
  result<void> close(uint32_t slots) {
    step_plan plan;
    for (uint32_t s = 0; s < slots; ++s) plan.close.push_back(slot_id{s});
    if (auto r = run(std::move(plan)); !r) return fail(r.error());
    return {};
  }

 private:
  uint32_t window_ = 1, vocabulary_ = 0, per_slot_ = 0;
  uint64_t plan_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<step_result> results_;
  std::unique_ptr<engine> engine_;
};

result<uint64_t> chunk_time(stepper& s, uint32_t rows, uint32_t context, uint32_t repeats, uint32_t max_chunk) {
  if (auto ok = s.begin(s.open(0, context + rows * repeats, false), context, false, max_chunk); !ok)
    return fail(ok.error());
  int64_t best = INT64_MAX;
  for (uint32_t i = 0; i < repeats; ++i) {
    step_plan plan;
    if (context == 0 && i == 0) plan.open.push_back(s.open(0, rows * repeats, false));
    // Context 0 has no begin: its first chunk brings the pages, and every repeat but the first has a little context.
    plan.sequences = {s.chunk(0, context + i * rows, rows, false, context == 0 && i == 0)};
    TROUPE_TRY(const auto times, s.run(std::move(plan)));
    for (int64_t t : times) best = std::min(best, t);
  }
  if (auto ok = s.close(1); !ok) return fail(ok.error());
  return static_cast<uint64_t>(best);
}

struct decode_times {
  uint64_t plain = 0, drafting = 0;
};

// `n` sequences of `context` tokens: steps without drafts, and steps that draft and verify one.
result<decode_times> decode_time(stepper& s, uint32_t n, uint32_t context, uint32_t repeats, uint32_t max_chunk) {
  step_plan plan;
  for (uint32_t i = 0; i < n; ++i)
    if (auto ok = s.begin(s.open(i, context, true), context, true, max_chunk); !ok) return fail(ok.error());
  for (uint32_t i = 0; i < n; ++i) plan.sequences.push_back({.slot = slot_id{i}});
  plan.max_steps = repeats;
  decode_times out;
  TROUPE_TRY(const auto plain, s.run(plan));
  out.plain = static_cast<uint64_t>(*std::min_element(plain.begin(), plain.end()));
  plan.verify_budget = 1;
  TROUPE_TRY(const auto drafting, s.run(plan));
  out.drafting = static_cast<uint64_t>(*std::min_element(drafting.begin(), drafting.end()));
  if (auto ok = s.close(n); !ok) return fail(ok.error());
  return out;
}

// Noise must not make more rows look cheaper.
void make_monotone(policies::measured_table& t) {
  for (size_t i = 0; i < t.ns.size(); ++i) {
    if (i % t.rows.size() > 0) t.ns[i] = std::max(t.ns[i], t.ns[i - 1]);
    if (i >= t.rows.size()) t.ns[i] = std::max(t.ns[i], t.ns[i - t.rows.size()]);
  }
}

}  // namespace

result<step_times_result> measure_steps(std::shared_ptr<const model> weights, const step_times_options& o,
                                        const std::function<void(const std::string&)>& tell) {
  TROUPE_CHECK(!o.chunk_rows.empty() && !o.chunk_context.empty() && !o.decode_rows.empty() &&
                   !o.decode_context.empty() && o.repeats > 0,
               "nothing to measure");
  const uint32_t max_chunk = o.chunk_rows.back(), slots = o.decode_rows.back();
  const auto context = static_cast<uint32_t>(std::max(o.chunk_context.back() + uint64_t{max_chunk} * o.repeats,
                                                      o.decode_context.back() + 2 * uint64_t{o.repeats} * 8));
  TROUPE_TRY(auto s, stepper::make(weights, o.threads, slots, context, max_chunk));
  step_times_result out;
  out.chunk.rows = o.chunk_rows;
  out.chunk.context = o.chunk_context;
  for (uint64_t c : o.chunk_context)
    for (uint32_t rows : o.chunk_rows) {
      TROUPE_TRY(const uint64_t ns, chunk_time(*s, rows, static_cast<uint32_t>(c), o.repeats, max_chunk));
      out.chunk.ns.push_back(ns);
      tell(fmt::format("{} prompt rows at {} tokens: {} us", rows, c, ns / 1000));
    }
  const bool drafts = weights->config.num_nextn_predict_layers > 0;
  out.decode.rows = o.decode_rows;
  out.decode.context = o.decode_context;
  std::vector<uint64_t> drafting;
  for (uint64_t c : o.decode_context)
    for (uint32_t n : o.decode_rows) {
      TROUPE_TRY(const auto t, decode_time(*s, n, static_cast<uint32_t>(c), o.repeats, max_chunk));
      out.decode.ns.push_back(t.plain);
      drafting.push_back(t.drafting);
      tell(fmt::format("{} decoding sequences at {} tokens: {} us, with a draft pass {} us", n, c, t.plain / 1000,
                       t.drafting / 1000));
    }
  make_monotone(out.chunk);
  make_monotone(out.decode);
  if (drafts) {
    // The draft pass is what such a step takes beyond one more row; contexts make no difference to it.
    out.draft.rows = o.decode_rows;
    out.draft.context = {0};
    for (size_t i = 0; i < o.decode_rows.size(); ++i) {
      const uint64_t without = policies::table_ns(out.decode, o.decode_rows[i] + 1, o.decode_context[0]);
      out.draft.ns.push_back(drafting[i] > without ? drafting[i] - without : 1);
    }
    make_monotone(out.draft);
  }
  // Between the points of the tables.
  const uint32_t rows = (o.chunk_rows[o.chunk_rows.size() - 1] + o.chunk_rows[o.chunk_rows.size() - 2]) / 2;
  const uint64_t at = (o.chunk_context.front() + o.chunk_context.back()) / 2;
  TROUPE_TRY(const uint64_t chunk_ns, chunk_time(*s, rows, static_cast<uint32_t>(at), o.repeats, max_chunk));
  policies::cost_point p;
  p.name = fmt::format("{} prompt rows a step at {} tokens", rows, at);
  p.source = "measured with the tables";
  p.kind = policies::point_kind::prefill;
  p.rows = rows;
  p.context = at;
  p.value = rows * uint64_t{1'000'000'000} / chunk_ns;
  p.tolerance_permille = 300;
  out.points.push_back(p);
  const uint32_t n = (o.decode_rows.back() + o.decode_rows[o.decode_rows.size() - 2]) / 2;
  const uint64_t mean = (o.decode_context.front() + o.decode_context.back()) / 2;
  TROUPE_TRY(const auto decode, decode_time(*s, n, static_cast<uint32_t>(mean), o.repeats, max_chunk));
  p.name = fmt::format("{} decoding sequences at {} tokens, no drafts", n, mean);
  p.kind = policies::point_kind::decode;
  p.rows = 0;
  p.sequences = n;
  p.context = mean;
  p.tokens_milli = 1000;
  p.value = n * uint64_t{1'000'000'000} / decode.plain;
  out.points.push_back(p);
  return out;
}

std::string cost_file_text(const model& m, const step_times_options& o, const step_times_result& r) {
  std::string out = fmt::format(
      "# Measured with `troupe sim --measure-cost` on {} with {} thread{} of a CPU; the fastest of {} steps counts.\n"
      "format: troupe-cost-1\nname: {}-cpu\nsource: \"measured step times of the CPU engine\"\n\nmeasured:\n",
      m.config.name, o.threads, o.threads == 1 ? "" : "s", o.repeats, m.config.name);
  const auto table = [&](const char* name, const policies::measured_table& t) {
    if (t.rows.empty()) return;
    out += fmt::format("  {}:\n    rows: [{}]\n    context: [{}]\n    time:\n", name, fmt::join(t.rows, ", "),
                       fmt::join(t.context, ", "));
    for (size_t c = 0; c < t.context.size(); ++c) {
      out += "      - [";
      for (size_t i = 0; i < t.rows.size(); ++i)
        out += fmt::format("{}{}us", i ? ", " : "", std::max<uint64_t>(t.ns[c * t.rows.size() + i] / 1000, 1));
      out += "]\n";
    }
  };
  table("chunk", r.chunk);
  table("decode", r.decode);
  table("draft", r.draft);
  out += fmt::format(
      "\nkv:\n  page_tokens: {}\n  page_bytes: {}B\n  state_bytes: {}B\n  snapshot_bytes: {}B\n\nacceptance:\n  block: "
      "{}\n  chance: [0.1, 0.3, 0.5, 0.7, 0.9]   # not measured\n\npoints:\n",
      m.plan.window, m.plan.page_bytes, handoff_bytes(m), m.plan.snapshot_bytes(), m.config.dspark_block_size);
  for (const auto& p : r.points)
    out += fmt::format(
        "  - name: \"{}\"\n    source: \"{}\"\n    kind: {}\n    rows: {}\n    sequences: {}\n    context: {}\n"
        "    tokens: {}\n    value: {}\n    tolerance: 0.3\n",
        p.name, p.source, p.kind == policies::point_kind::prefill ? "prefill" : "decode", p.rows, p.sequences,
        p.context, p.tokens_milli / 1000, p.value);
  return out;
}

}  // namespace troupe::kernels::measure
