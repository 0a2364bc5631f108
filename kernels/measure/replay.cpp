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
  replay_case now;
  bool cut = false;  // the prompt's end is found
  auto close = [&] {
    if (cut && now.tokens.size() >= now.prompt + first && out.size() < shape.cases) out.push_back(std::move(now));
    now = {};
    cut = false;
  };
  for (const document& d : documents) {
    if (out.size() >= shape.cases) break;
    const uint32_t at = static_cast<uint32_t>(now.tokens.size());
    now.tokens.insert(now.tokens.end(), d.tokens.begin(), d.tokens.end());
    if (now.tokens.size() > context) now.tokens.resize(context);
    if (!cut) {
      if (d.answers.empty() && now.tokens.size() > least) {
        now.prompt = std::max(least, at);
        cut = true;
      }
      for (uint32_t a : d.answers) {
        if (cut || at + a < least || at + a >= now.tokens.size()) continue;
        now.prompt = at + a;
        cut = true;
      }
    }
    if (cut && now.tokens.size() >= now.prompt + most) {
      now.tokens.resize(now.prompt + most);
      close();
    } else if (now.tokens.size() >= context) {
      close();
    }
  }
  close();
  return out;
}

void replay_agreement::add(const replay_agreement& o) {
  cases += o.cases;
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
