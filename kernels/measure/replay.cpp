#include "kernels/measure/replay.hpp"

#include <algorithm>

#include "kernels/measure/loss.hpp"
#include "policies/hit_length.hpp"

namespace troupe::kernels::measure {
namespace {

constexpr uint32_t backtrack = 6, first = 32;

struct row {
  token_id best = 0;
  float margin = 0;  // to the second
};

row top_of(const float* logits, uint32_t n) {
  row r{likeliest(logits, n), 0};
  float second = -3.4e38f;
  for (uint32_t i = 0; i < n; ++i)
    if (static_cast<token_id>(i) != r.best) second = std::max(second, logits[i]);
  r.margin = logits[r.best] - second;
  return r;
}

}  // namespace

std::vector<replay_case> replay_cases(const std::vector<document>& documents, uint32_t window, uint32_t context,
                                      const replay_shape& shape) {
  const uint32_t least = window * (shape.blocks + 1) + backtrack;
  const uint32_t most = shape.continuation ? shape.continuation : 2 * window;
  std::vector<replay_case> out;
  document now;
  // Ends `now` as a case if its prompt and continuation are there.
  auto close = [&](bool joined) {
    if (now.tokens.size() > context) now.tokens.resize(context);
    const uint32_t n = static_cast<uint32_t>(now.tokens.size());
    uint32_t prompt = now.answers.empty() ? least : 0;
    for (uint32_t a : now.answers)
      if (prompt == 0 && a >= least) prompt = a;
    if (prompt == 0 || n < prompt + first) return false;
    now.tokens.resize(std::min(n, prompt + most));
    out.push_back({std::move(now.tokens), prompt, joined});
    return true;
  };
  std::vector<bool> alone(documents.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    if (out.size() >= shape.cases) return out;
    now = documents[i];
    alone[i] = close(false);
  }
  now = {};
  for (size_t i = 0; i < documents.size(); ++i) {
    const document& d = documents[i];
    if (out.size() >= shape.cases) return out;
    if (alone[i] || d.tokens.empty()) continue;
    const bool go_on = !now.tokens.empty() && now.answers.empty() == d.answers.empty();
    if (!go_on) now = {};
    // One begin of sentence: a turn that follows.
    const uint32_t skip = go_on && d.tokens[0] == now.tokens[0] ? 1 : 0;
    const uint32_t at = static_cast<uint32_t>(now.tokens.size());
    now.tokens.insert(now.tokens.end(), d.tokens.begin() + skip, d.tokens.end());
    for (uint32_t a : d.answers) now.answers.push_back(at + a - skip);
    if (now.tokens.size() < std::min(context, least + most)) continue;
    document whole = now;
    if (!close(true) && now.tokens.size() < context) {
      now = std::move(whole);
      continue;
    }
    now = {};
  }
  return out;
}

void replay_agreement::add(const replay_agreement& o) {
  cases += o.cases;
  joined += o.joined;
  reused += o.reused;
  rows += o.rows;
  same += o.same;
  first_rows += o.first_rows;
  first_same += o.first_same;
  flips_far += o.flips_far;
  nats_exact += o.nats_exact;
  nats_bounded += o.nats_bounded;
}

result<replay_agreement> measure_replay(forward_runner& runner, const replay_case& c, uint32_t replayed_windows) {
  const model& m = runner.weights();
  const uint32_t window = m.plan.window, vocabulary = m.config.vocab_size;
  const uint32_t n = static_cast<uint32_t>(c.tokens.size());
  if (c.prompt == 0 || c.prompt >= n)
    return fail(errc::invalid_argument, "a prompt of {} of {} tokens leaves no continuation", c.prompt, n);
  policies::hit_length_input in;
  in.prompt_tokens = c.prompt;
  in.block_hit_tokens = c.prompt / window * window;
  in.block = window;
  in.backtrack = backtrack;
  in.exact = replayed_windows != 1;
  in.encoder_layers = replayed_windows - 1;
  TROUPE_TRY(auto hit, policies::plan_hit_length(in));
  if (hit.reuse == 0)
    return fail(errc::invalid_argument, "a prompt of {} tokens is too short for a hit: {}", c.prompt, hit.reason);

  replay_agreement out;
  out.cases = 1;
  out.joined = c.joined;
  out.reused = hit.reuse;
  std::vector<row> rows;
  double* nats = &out.nats_exact;
  auto keep = [&](uint32_t position, const float* logits) {
    rows.push_back(top_of(logits, vocabulary));
    if (position + 1 < n) *nats -= log_probability(logits, vocabulary, c.tokens[position + 1]);
  };
  const uint32_t tail = c.prompt > window ? c.prompt - window : 0;
  // The undisturbed run; it leaves in the pages what a store would hold.
  runner.reset();
  if (auto r = runner.run(c.tokens, {.end = n, .decoder_from = tail}, c.prompt - 1, keep); !r) return fail(r.error());
  const std::vector<row> exact = std::exchange(rows, {});
  // The hit: rows behind the cached blocks are written anew.
  const uint32_t cached = hit.reuse + hit.replay;
  nats = &out.nats_bounded;
  runner.reset(cached);
  const run_span replayed{.position = hit.reuse,
                          .end = n,
                          .window_floor = hit.reuse,
                          .write_global_from = cached,
                          .decoder_from = std::max(hit.reuse, tail)};
  if (auto r = runner.run(c.tokens, replayed, c.prompt - 1, keep); !r) return fail(r.error());
  // The row after the last token predicts nothing that was given, but is a next token all the same.
  for (uint32_t i = 0; i < exact.size() && i < rows.size(); ++i) {
    const bool same = exact[i].best == rows[i].best;
    ++out.rows;
    out.same += same;
    if (i < first) {
      ++out.first_rows;
      out.first_same += same;
    }
    out.flips_far += !same && exact[i].margin > 0.5f;
  }
  return out;
}

}  // namespace troupe::kernels::measure
