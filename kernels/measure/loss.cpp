#include "kernels/measure/loss.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::kernels::measure {

double log_probability(const float* logits, uint32_t n, token_id token) {
  const float top = *std::max_element(logits, logits + n);
  double sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += std::exp(double{logits[i]} - top);
  return double{logits[token]} - top - std::log(sum);
}

token_id likeliest(const float* logits, uint32_t n) {
  return static_cast<token_id>(std::max_element(logits, logits + n) - logits);
}

void loss_sums::add(const loss_sums& o) {
  documents += o.documents;
  tokens += o.tokens;
  bytes += o.bytes;
  right += o.right;
  nats += o.nats;
  answer_tokens += o.answer_tokens;
  answer_nats += o.answer_nats;
}

result<loss_sums> measure_loss(forward_runner& runner, const document& d, std::vector<token_id>* next) {
  const uint32_t n = static_cast<uint32_t>(std::min<size_t>(d.tokens.size(), runner.context()));
  const uint32_t vocabulary = runner.weights().config.vocab_size;
  loss_sums out;
  if (n == 0) return out;
  out.documents = 1;
  out.bytes = d.bytes * n / d.tokens.size();
  if (next) next->clear();
  size_t answer = 0;
  runner.reset();
  auto see = [&](uint32_t position, const float* logits) {
    const token_id best = likeliest(logits, vocabulary);
    if (next) next->push_back(best);
    const uint32_t target = position + 1;
    if (target >= n) return;
    const double nats = -log_probability(logits, vocabulary, d.tokens[target]);
    ++out.tokens;
    out.nats += nats;
    out.right += best == d.tokens[target];
    while (answer < d.ends.size() && target >= d.ends[answer]) ++answer;
    if (answer < d.answers.size() && target >= d.answers[answer]) {
      ++out.answer_tokens;
      out.answer_nats += nats;
    }
  };
  if (auto r = runner.run(d.tokens, {.position = 0, .end = n}, 0, see); !r) return fail(r.error());
  return out;
}

}  // namespace troupe::kernels::measure
