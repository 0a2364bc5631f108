// What a step of an engine costs, from what its ranks run in it: a floor (bytes over bandwidth, operations over rate)
// with fitted rates, or a table measured on an engine. For engines without weights (kernels/engine/cost_engine.hpp) and
// for whoever wants to know how busy a pool is. Whole numbers only, so that every build gives the same nanoseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// What one rank runs in one step.
struct step_work {
  uint32_t rows = 0;               // chunk rows, decode rows and verified drafts: all pass the encoder layers
  uint32_t decoder_rows = 0;       // those of them that pass the decoder layers too, at most `rows`
  uint64_t positions = 0;          // sum over `rows` of the tokens before each, which an index scores
  uint64_t decoder_positions = 0;  // the same over `decoder_rows`
  uint32_t sequences = 0;          // with rows
  uint64_t context = 0;            // sum over sequences of tokens in place, whose index keys are read once
  uint32_t samples = 0;            // rows that pass the head
  uint32_t drafting = 0;           // sequences of the draft pass
  bool operator==(const step_work&) const = default;
};

/// Adds the rows [position, position + rows) of one sequence, `decoder_rows` of them (the last ones) through the
/// decoder layers and `samples` through the head.
void add_rows(step_work& work, uint64_t position, uint32_t rows, uint32_t decoder_rows, uint32_t samples);

/// A network between ranks. The first `domain` ranks of a group reach each other at one rate (NVLink), the part of the
/// rows that leaves the domain goes at the other; both travel at once.
struct fabric {
  std::string name;
  uint32_t domain = 1;
  uint64_t domain_rate = 0, outside_rate = 0;  // bytes per second and rank
  uint64_t dispatch_ns = 0, combine_ns = 0;    // of an exchange without rows
  uint64_t dispatch_doubling_ns = 0,
           combine_doubling_ns = 0;  // more of it for each doubling of the ranks beyond the domain
  bool operator==(const fabric&) const = default;
};

/// Time of one dispatch or combine of `items` (row, expert) pairs a rank of `bytes` each, over `ep` ranks; 0 for ep 1.
uint64_t exchange_ns(const fabric& f, uint32_t ep, uint64_t items, uint64_t bytes, bool combine);

/// A measured table: ns[c * rows.size() + r] is the time of a step of rows[r] rows at a mean context of context[c]
/// tokens. Both axes ascend. Linear between points and on along the last segment beyond the last row; the first and the
/// last context hold beyond them.
struct measured_table {
  std::vector<uint32_t> rows;
  std::vector<uint64_t> context;
  std::vector<uint64_t> ns;
  bool operator==(const measured_table&) const = default;
};

/// Time by the table, 0 for no rows or an empty table.
uint64_t table_ns(const measured_table& t, uint64_t rows, uint64_t context);

/// Prices of work. _fs: femtoseconds (1e-15 s) for one.
struct step_rates {
  uint32_t encoder_layers = 0, decoder_layers = 0, experts = 0, top_k = 0;
  uint64_t step_ns = 0;                                                 // of a step, whatever is in it
  uint64_t encoder_read_ns = 0, decoder_read_ns = 0, head_read_ns = 0;  // dense weights of all such layers, once
  uint64_t encoder_row_fs = 0, decoder_row_fs = 0, sample_fs = 0;       // operations of dense weights
  uint64_t encoder_attention_fs = 0, decoder_attention_fs = 0;          // a row's window and selected entries
  uint64_t encoder_position_fs = 0, decoder_position_fs = 0;            // a row's index scores, per token before it
  uint64_t context_fs = 0;                                              // reading a sequence's index keys, per token
  uint64_t expert_read_fs = 0, expert_item_fs = 0;  // weights of one expert of one layer; one (row, expert) pair
  uint64_t draft_ns = 0;                            // per draft position, one after the other
  uint64_t draft_row_fs = 0;                        // per drafting sequence and position
  uint32_t dispatch_bytes = 0, combine_bytes = 0;   // of one (row, expert) pair
  uint32_t hidden_permille = 0;                     // part of the exchanges that computing hides
  measured_table chunk, decode,
      draft;  // not empty: measured times instead, of prompt rows, decode rows, drafting sequences
  bool operator==(const step_rates&) const = default;
};

/// What a group of ranks runs in one step. Ranks that are not listed run what the mean of the listed ones runs.
struct group_step {
  std::span<const step_work> ranks;
  uint32_t ep = 1;                     // ranks of the group
  uint32_t slots = 0;                  // experts a rank holds per layer; 0: its share
  uint32_t imbalance_permille = 1000;  // (row, expert) pairs of the busiest rank over the mean
  uint32_t drafts = 0;                 // draft positions, if the group drafts
};

/// Where the time of a step goes. The parts add up to the total.
struct step_cost_parts {
  uint64_t total_ns = 0;
  uint64_t attention_ns = 0;  // everything before the experts, fixed costs too
  uint64_t dispatch_ns = 0, experts_ns = 0, combine_ns = 0;
  uint64_t sampling_ns = 0, draft_ns = 0;
  bool operator==(const step_cost_parts&) const = default;
};

/// The slowest rank's own work, the busiest rank's experts, and the exchanges: the ranks of a group wait for each other
/// in every layer. 0 without rows. Monotone in every member of the work, in `ep` ranks' work and in the imbalance.
step_cost_parts cost_of_step(const step_rates& rates, const fabric& over, const group_step& step);

/// How sure a drafter is: the chance that the draft at a position equals the target's sample, by a score that is
/// uniform over requests and positions. chance_permille[i] belongs to the score i / (size - 1), linear in between.
/// Half of the score is the request's for 16 positions, half the position's.
struct acceptance_model {
  uint32_t block = 5;                     // drafts per sequence and step
  std::vector<uint32_t> chance_permille;  // at least one, 0 to 1000
  bool operator==(const acceptance_model&) const = default;
};

/// Chance in millionths for a request with `seed` at `position`. Pure.
uint32_t accept_chance(const acceptance_model& m, uint64_t seed, uint64_t position);
/// Whether a draft there is accepted: with that chance, by the same key. Pure.
bool accepts(const acceptance_model& m, uint64_t seed, uint64_t position);

/// How uneven experts are used: weight of the i-th busiest = 1 / (i + flatness). 0 of both: evenly.
struct expert_skew {
  uint32_t flatness = 0;     // 0: all experts alike
  uint32_t drift_steps = 0;  // steps after which the order of experts has changed; 0: never
  bool operator==(const expert_skew&) const = default;
};

/// Bytes of a sequence's KV on the wire and in the store.
struct kv_sizes {
  uint32_t page_tokens = 0, page_bytes = 0;
  uint64_t state_bytes = 0;     // what goes along with a hand-over
  uint64_t snapshot_bytes = 0;  // a window snapshot
  bool operator==(const kv_sizes&) const = default;
};

/// Bytes of a hand-over of `tokens`: whole pages and the state.
uint64_t handoff_bytes(const kv_sizes& kv, uint64_t tokens);

/// What kind of measurement a point is.
enum class point_kind : uint8_t { prefill, decode, dispatch, combine };

/// What a published or measured point says, and what it was measured with: `sequences` per rank at `context`, each with
/// `verified` drafts and `tokens` a step (thousandths), or a prompt chunk of `rows` per rank, or an exchange of `rows`.
struct cost_point {
  std::string name, source;
  point_kind kind = point_kind::decode;
  std::string fabric;  // empty: the model's
  uint32_t ep = 1, rows = 0, sequences = 0;
  uint64_t context = 0;
  uint32_t verified_milli = 0, tokens_milli = 0;  // per sequence and step; tokens 0: from the acceptance model
  uint32_t drafts = 0;                            // positions of the draft pass
  bool adaptive = false;                          // verified drafts by policies/verify_lengths, not verified_milli
  uint32_t imbalance_permille = 1000, slots = 0;
  uint32_t row_bytes = 0, top_k = 0;  // of an exchange
  uint64_t value = 0;                 // tokens per second and rank; ns of an exchange
  uint32_t tolerance_permille = 50;
  bool operator==(const cost_point&) const = default;
};

/// A cost model: everything that stands in a file of configs/sim/cost.
struct cost_model {
  std::string name, source;
  step_rates rates;
  std::vector<fabric> fabrics;  // the first is used where none is named
  acceptance_model acceptance;
  expert_skew skew;
  kv_sizes kv;
  uint32_t mean_output = 0;  // tokens until an end-of-sequence on average; 0: never
  std::vector<cost_point> points;
  bool operator==(const cost_model&) const = default;
};

/// The fabric called `name` (empty: the first), or not_found.
result<const fabric*> find_fabric(const cost_model& m, const std::string& name);

/// What the model says about a point.
struct point_residual {
  uint64_t value = 0;                             // in the point's unit
  int64_t residual_permille = 0;                  // (model - published) / published
  uint32_t verified_milli = 0, tokens_milli = 0;  // of a decode point, per sequence and step
  uint64_t step_ns = 0;
  bool within = false;
};
result<point_residual> check_point(const cost_model& m, const cost_point& p);

/// invalid_argument, naming the member, for a model that cannot be evaluated: no rates, axes that do not ascend, table
/// sizes, chances above 1000, no fabric.
result<void> check_model(const cost_model& m);

}  // namespace troupe::policies
