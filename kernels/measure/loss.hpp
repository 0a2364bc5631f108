// Teacher-forced loss of a document: how surprised the model is by each next token, and what it would have said
// instead.
#pragma once

#include <vector>

#include "kernels/measure/document.hpp"
#include "kernels/measure/forward_runner.hpp"

namespace troupe::kernels::measure {

/// Natural logarithm of the softmax of `logits` [n] at `token`, computed in double. 0 <= token < n.
double log_probability(const float* logits, uint32_t n, token_id token);
/// Index of the largest of `logits` [n]; ties go to the lowest.
token_id likeliest(const float* logits, uint32_t n);

/// Sums over documents. Nats are sums of -ln p; divide by tokens or bytes.
struct loss_sums {
  uint64_t documents = 0, tokens = 0, bytes = 0;  // tokens: predicted ones, the first of a document is not
  uint64_t right = 0;                             // tokens that were the likeliest
  double nats = 0;
  uint64_t answer_tokens = 0;  // those of answers, their end of sentence included
  double answer_nats = 0;
  void add(const loss_sums& o);
};

/// Loss of one document, cut to the runner's context (its bytes then count by the share of tokens kept). `next`, unless
/// null, becomes the likeliest token after every token. Every layer runs on every row.
result<loss_sums> measure_loss(forward_runner& runner, const document& d, std::vector<token_id>* next = nullptr);

}  // namespace troupe::kernels::measure
