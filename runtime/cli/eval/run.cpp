#include "runtime/cli/eval/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "kernels/cpu/isa.hpp"
#include "runtime/cli/eval/documents.hpp"

namespace troupe::cli {

using namespace kernels::measure;
using kernels::engine_limits;

namespace {

constexpr uint32_t chunk_rows = 512;

class evaluation {
 public:
  evaluation(const eval_request& q, const clock_source& clock, const std::function<void(const std::string&)>& progress)
      : q_(q), clock_(clock), progress_(progress) {}

  result<eval_report> run() {
    TROUPE_TRY(model_, kernels::load_model(q_.model));
    TROUPE_TRY(text_, recipe::recipe::load(q_.model));
    TROUPE_TRY(auto facts, kernels::cpu_model_facts(*model_, {}, ""));
    context_ = std::min(q_.context, model_->config.max_position_embeddings);
    out_.model = facts.name;
    out_.fingerprint = facts.fingerprint;
    out_.text = q_.text;
    out_.isa = kernels::cpu::to_string(kernels::cpu::best_isa());
    out_.threads = q_.threads;
    if (asked("loss") || asked("load"))
      if (auto r = loss(); !r) return fail(r.error());
    if (asked("replay"))
      if (auto r = replay(); !r) return fail(r.error());
    if (asked("acceptance") && (model_->config.num_nextn_predict_layers > 0 || !q_.acceptance_if_any))
      if (auto r = acceptance(); !r) return fail(r.error());
    if (asked("speed"))
      if (auto r = speed(); !r) return fail(r.error());
    if (asked("balance"))
      if (auto r = balance(); !r) return fail(r.error());
    if (asked("samples"))
      if (auto r = samples(); !r) return fail(r.error());
    return std::move(out_);
  }

 private:
  bool asked(const char* what) const { return q_.what.contains(what); }

  // At most one line every two seconds.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    const nanoseconds now = clock_.now();
    if (said_ != nanoseconds{} && now - said_ < std::chrono::seconds(2)) return;
    said_ = now;
    progress_(fmt::format(format, std::forward<Args>(args)...));
  }

  result<void> loss() {
    TROUPE_TRY(auto runner, forward_runner::make(model_, context_, chunk_rows, q_.threads));
    TROUPE_TRY(auto reader, document_reader::open(q_.text, *text_));
    std::ofstream dump;
    if (!q_.dump.empty()) {
      dump.open(q_.dump, std::ios::trunc);
      dump << next_tokens_header("troupe", out_.model) << "\n";
      if (!dump) return fail(errc::io, "{}: cannot be written", q_.dump);
    }
    std::optional<next_comparison> comparison;
    if (!q_.compare.empty()) {
      TROUPE_TRY(auto opened, next_comparison::open(q_.compare));
      comparison.emplace(std::move(opened));
    }
    loss_sums total;
    next_tokens row;
    while (total.bytes < q_.limit_bytes) {
      TROUPE_TRY(auto d, reader.next());
      if (!d) break;
      if (d->tokens.size() > context_) {
        d->bytes = d->bytes * context_ / d->tokens.size();
        d->tokens.resize(context_);
      }
      TROUPE_TRY(const loss_sums l, measure_loss(*runner, *d, &row.next));
      total.add(l);
      say("loss: {} documents, {} of {} bytes, {:.4f} nats/byte", total.documents, total.bytes, q_.limit_bytes,
          total.bytes ? total.nats / static_cast<double>(total.bytes) : 0.0);
      if (!dump.is_open() && !comparison) continue;
      row.document = d->number;
      row.tokens = std::move(d->tokens);
      row.nats = l.nats;
      row.bytes = d->bytes;
      if (dump.is_open()) dump << to_line(row) << "\n";
      if (comparison)
        if (auto r = comparison->add(row); !r) return r;
    }
    if (dump.is_open() && !dump.flush()) return fail(errc::io, "{}: writing failed", q_.dump);
    if (total.tokens == 0) return fail(errc::invalid_argument, "{}: holds no text", q_.text);
    if (asked("loss")) out_.loss = total;
    if (comparison) {
      out_.agreement = comparison->total();
      out_.agreement_with = comparison->by().empty() ? q_.compare : comparison->by();
    }
    if (asked("load")) {
      std::vector<std::vector<uint64_t>> loads;
      runner->take_loads(loads);
      out_.load = summarise_loads(loads);
    }
    return {};
  }

  result<void> replay() {
    const uint32_t window = model_->plan.window;
    const replay_shape shape{.cases = q_.cases};
    // Every case joins documents until its prompt holds a hit: read as many as that may take.
    TROUPE_TRY(auto documents, read_documents(q_.text, *text_, size_t{q_.cases} * 16));
    const uint32_t context = std::min(model_->config.max_position_embeddings, std::max(context_, 8 * window));
    const auto cases = replay_cases(documents, window, context, shape);
    if (cases.empty())
      return fail(errc::invalid_argument, "{}: too little text for a hit; a prompt needs over {} tokens", q_.text,
                  window * (shape.blocks + 1));
    TROUPE_TRY(auto runner, forward_runner::make(model_, context, chunk_rows, q_.threads));
    replay_agreement total;
    for (const replay_case& c : cases) {
      TROUPE_TRY(const replay_agreement one, measure_replay(*runner, c));
      total.add(one);
      say("replay: {} of {} conversations", total.cases, cases.size());
    }
    out_.replay = total;
    return {};
  }

  result<std::vector<request>> requests(double temperature) {
    TROUPE_TRY(auto documents, read_documents(q_.text, *text_, q_.prompts));
    auto out = requests_of(documents, temperature, q_.seed, q_.max_tokens);
    if (out.empty()) return fail(errc::invalid_argument, "{}: holds no prompt", q_.text);
    fit(out, context_);
    return out;
  }

  result<void> acceptance() {
    for (double temperature : q_.temperatures) {
      TROUPE_TRY(auto work, requests(temperature));
      say("acceptance: {} prompts at temperature {}", work.size(), temperature);
      engine_limits limits{.slots = 16, .max_chunk = 256, .max_context = context_, .threads = q_.threads};
      limits.max_draft = std::max(1u, model_->config.dspark_block_size);
      TROUPE_TRY(auto seen, measure_acceptance(model_, limits, work));
      out_.acceptance.push_back({temperature, std::move(seen)});
    }
    return {};
  }

  result<void> speed() {
    TROUPE_TRY(auto work, requests(0));
    for (request& r : work) r.stop.ignore_eos = true;  // every request writes as much
    engine_limits limits{.slots = 32, .max_chunk = 256, .max_context = context_, .threads = q_.threads};
    TROUPE_TRY(out_.load_time, measure_load_time(q_.model, limits, clock_));
    std::vector<kernels::token_id> prompt;
    while (prompt.size() < 1024 && prompt.size() + 1 < context_)
      for (const request& r : work) prompt.insert(prompt.end(), r.tokens.begin(), r.tokens.end());
    prompt.resize(std::min<size_t>({prompt.size(), 1024, context_ - 1}));
    out_.prefill_tokens = static_cast<uint32_t>(prompt.size());
    say("speed: prefill");
    TROUPE_TRY(out_.prefill, measure_prefill(model_, q_.threads, 256, prompt, 2, clock_));
    using enum kernels::measure::drafting;
    // In turns, so that what the machine does meanwhile meets all ways of drafting alike.
    for (uint32_t concurrent : q_.concurrent)
      for (uint32_t repeat = 0; repeat < q_.repeats; ++repeat)
        for (kernels::measure::drafting drafts : {none, fixed, adaptive}) {
          if (drafts != none && model_->config.num_nextn_predict_layers == 0) continue;
          say("speed: {} concurrent, {} drafts", concurrent, to_string(drafts));
          TROUPE_TRY(auto row, measure_decode(model_, q_.threads, concurrent, drafts, work, clock_));
          out_.decode.push_back(row);
        }
    return {};
  }

  result<void> balance() {
    TROUPE_TRY(auto work, requests(0.8));
    for (request& r : work) r.stop.ignore_eos = true;
    out_.balance_options = q_.balance;
    out_.balance_options.context = context_;
    say("balance: {} windows of {} steps, {} ranks", q_.balance.windows, q_.balance.interval, q_.balance.ranks);
    TROUPE_TRY(out_.balance, measure_balance(model_, work, out_.balance_options));
    return {};
  }

  // The first ten questions, whatever they are.
  result<void> samples() {
    TROUPE_TRY(auto work, requests(0));
    work.resize(std::min<size_t>(work.size(), 10));
    say("samples: {} questions", work.size());
    const engine_limits limits{.slots = 10, .max_chunk = 256, .max_context = context_, .threads = q_.threads};
    TROUPE_TRY(auto runner, engine_runner::make(model_, limits));
    TROUPE_TRY(auto answers, runner->run(work));
    for (size_t i = 0; i < work.size(); ++i)
      out_.samples.push_back({text_->tokens().decode(work[i].tokens), text_->tokens().decode(answers[i].tokens),
                              answers[i].finish == kernels::finish_reason::stop});
    return {};
  }

  const eval_request& q_;
  const clock_source& clock_;
  const std::function<void(const std::string&)>& progress_;
  std::shared_ptr<const kernels::model> model_;
  std::unique_ptr<recipe::recipe> text_;
  uint32_t context_ = 0;
  nanoseconds said_{};
  eval_report out_;
};

}  // namespace

std::vector<request> requests_of(const std::vector<document>& documents, double temperature, uint64_t seed,
                                 uint32_t max_tokens) {
  std::vector<request> out;
  for (const document& d : documents) {
    const size_t n = d.answers.empty() ? std::min<size_t>(64, d.tokens.size() / 2) : d.answers.front();
    if (n == 0) continue;
    request& q = out.emplace_back();
    q.tokens.assign(d.tokens.begin(), d.tokens.begin() + static_cast<ptrdiff_t>(n));
    q.sampling = {.temperature = static_cast<float>(temperature), .seed = seed + out.size()};
    q.stop.max_tokens = max_tokens;
  }
  return out;
}

result<eval_report> evaluate(const eval_request& q, const clock_source& clock,
                             const std::function<void(const std::string&)>& progress) {
  return evaluation(q, clock, progress).run();
}

}  // namespace troupe::cli
