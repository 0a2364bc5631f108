// What an entrypoint does about cached prefixes: asks the store before a request is placed, and says per attempt how
// much of the prompt is reused.
#pragma once

#include "actors/protocol/messages.hpp"
#include "actors/serving/front_request.hpp"
#include "actors/serving/prefix_store.hpp"

namespace troupe::actors {

/// Owned by an entrypoint and used from its handlers only.
class front_match {
 public:
  front_match(entrypoint_actor::pointer self, const prefix_options& options) : self_(self), options_(options) {}

  /// Asks the store about the request's chain; a match_answer comes within the timeout, from the store or from the
  /// clock, and the request is not to be placed before. False: there is nothing to ask.
  bool begin(request_number number, front_request& r);
  /// The first answer for a request that waits for one: how much of its chain is stored, and so how much of it the
  /// cache is expected to bring. False: a later one, ignore it.
  bool take(const match_answer& m, front_request& r, const kernels::model_facts& facts);
  /// What the scheduler of an attempt is told; `known` tokens of it are known by then.
  prefix_plan plan(const front_request& r, const kernels::model_facts& facts, uint32_t known) const;
  /// Adds how the ended request's prompt was made, in tokens.
  void count(const front_request& r);
  /// Fills the counters of a report.
  void describe(front_report& out) const;

 private:
  entrypoint_actor::pointer self_;
  const prefix_options& options_;
  uint64_t matches_ = 0, failed_ = 0, late_ = 0, hit_tokens_ = 0, miss_tokens_ = 0;
};

}  // namespace troupe::actors
