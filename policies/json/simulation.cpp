// Entries about what steps cost: for simulations, and for people who ask.
#include "policies/json/entries.hpp"
#include "policies/json/fields.hpp"
#include "policies/step_cost.hpp"

namespace troupe::policies {
namespace {

struct cost_question {
  step_rates rates;
  fabric over;
  std::vector<step_work> ranks;
  uint32_t ep = 1, slots = 0, imbalance_permille = 1000, drafts = 0;
};
struct cost_answer {
  step_cost_parts parts;
  std::string reason;
};

result<cost_answer> cost(const cost_question& q) {
  cost_model m;
  m.rates = q.rates;
  m.fabrics = {q.over};
  m.acceptance.chance_permille = {0};
  if (auto ok = check_model(m); !ok) return fail(ok.error());
  for (size_t i = 0; i < q.ranks.size(); ++i)
    if (q.ranks[i].decoder_rows > q.ranks[i].rows)
      return fail(errc::invalid_argument, "ranks[{}].decoder_rows: is above rows", i);
  cost_answer a{cost_of_step(q.rates, q.over, {q.ranks, q.ep, q.slots, q.imbalance_permille, q.drafts}), ""};
  const auto& p = a.parts;
  a.reason =
      fmt::format("{} ns: attention and fixed {}, dispatch {}, experts {}, combine {}, sampling {}, drafts {}",
                  p.total_ns, p.attention_ns, p.dispatch_ns, p.experts_ns, p.combine_ns, p.sampling_ns, p.draft_ns);
  return a;
}

}  // namespace

template <>
struct json_fields<measured_table> {
  static auto list() {
    return std::tuple{required("rows", &measured_table::rows, "ascending"),
                      required("context", &measured_table::context, "mean tokens before a row, ascending"),
                      required("ns", &measured_table::ns, "times, one line of rows per context")};
  }
};
template <>
struct json_fields<step_rates> {
  using t = step_rates;
  static auto list() {
    return std::tuple{
        optional("encoder_layers", &t::encoder_layers, "layers that all rows pass"),
        optional("decoder_layers", &t::decoder_layers, "layers that only some rows pass"),
        optional("experts", &t::experts, "routed experts of a layer"),
        optional("top_k", &t::top_k, "experts of a row"),
        optional("step_ns", &t::step_ns, "of a step, whatever is in it"),
        optional("encoder_read_ns", &t::encoder_read_ns, "reading the dense weights of the encoder layers"),
        optional("decoder_read_ns", &t::decoder_read_ns, "of the decoder layers"),
        optional("head_read_ns", &t::head_read_ns, "of the head"),
        optional("encoder_row_fs", &t::encoder_row_fs, "dense operations of a row, encoder layers"),
        optional("decoder_row_fs", &t::decoder_row_fs, "decoder layers"),
        optional("sample_fs", &t::sample_fs, "head"),
        optional("encoder_attention_fs", &t::encoder_attention_fs, "a row's window and selection, encoder layers"),
        optional("decoder_attention_fs", &t::decoder_attention_fs, "decoder layers"),
        optional("encoder_position_fs", &t::encoder_position_fs, "index scores per row and token before it"),
        optional("decoder_position_fs", &t::decoder_position_fs, "decoder layers"),
        optional("context_fs", &t::context_fs, "reading index keys, per token of a sequence"),
        optional("expert_read_fs", &t::expert_read_fs, "weights of one expert of one layer"),
        optional("expert_item_fs", &t::expert_item_fs, "operations of one (row, expert) pair of one layer"),
        optional("draft_ns", &t::draft_ns, "per draft position"),
        optional("draft_row_fs", &t::draft_row_fs, "per drafting sequence and position"),
        optional("dispatch_bytes", &t::dispatch_bytes, "of a pair"),
        optional("combine_bytes", &t::combine_bytes, "of a pair"),
        optional("hidden_permille", &t::hidden_permille, "part of the exchanges that computing hides"),
        optional("chunk", &t::chunk, "measured times of prompt rows"),
        optional("decode", &t::decode, "measured times of decode rows"),
        optional("draft", &t::draft, "measured times of drafting sequences")};
  }
};
template <>
struct json_fields<fabric> {
  using t = fabric;
  static auto list() {
    return std::tuple{
        optional("name", &t::name, "what it is called"),
        required("domain", &t::domain, "ranks that reach each other at domain_rate"),
        required("domain_rate", &t::domain_rate, "bytes per second and rank"),
        required("outside_rate", &t::outside_rate, "bytes per second and rank"),
        optional("dispatch_ns", &t::dispatch_ns, "of a dispatch without rows"),
        optional("combine_ns", &t::combine_ns, "of a combine without rows"),
        optional("dispatch_doubling_ns", &t::dispatch_doubling_ns, "more per doubling of the ranks beyond the domain"),
        optional("combine_doubling_ns", &t::combine_doubling_ns, "more per doubling of the ranks beyond the domain")};
  }
};
template <>
struct json_fields<step_work> {
  using t = step_work;
  static auto list() {
    return std::tuple{required("rows", &t::rows, "all rows of the rank"),
                      optional("decoder_rows", &t::decoder_rows, "those that pass the decoder layers"),
                      optional("positions", &t::positions, "sum of the tokens before each row"),
                      optional("decoder_positions", &t::decoder_positions, "over the decoder rows"),
                      optional("sequences", &t::sequences, "with rows"),
                      optional("context", &t::context, "sum of the tokens in place over the sequences"),
                      optional("samples", &t::samples, "rows that pass the head"),
                      optional("drafting", &t::drafting, "sequences of the draft pass")};
  }
};
template <>
struct json_fields<cost_question> {
  using t = cost_question;
  static auto list() {
    return std::tuple{required("rates", &t::rates, "prices of work"),
                      required("fabric", &t::over, "the network of the group"),
                      required("ranks", &t::ranks, "what each rank runs; ranks that are not listed run the mean"),
                      optional("ep", &t::ep, "ranks of the group"),
                      optional("slots", &t::slots, "experts a rank holds per layer; 0: its share"),
                      optional("imbalance_permille", &t::imbalance_permille, "pairs of the busiest rank over the mean"),
                      optional("drafts", &t::drafts, "draft positions")};
  }
};
template <>
struct json_fields<step_cost_parts> {
  using t = step_cost_parts;
  static auto list() {
    return std::tuple{required("total_ns", &t::total_ns, "of the step"),
                      required("attention_ns", &t::attention_ns, "before the experts, fixed costs too"),
                      required("dispatch_ns", &t::dispatch_ns, "rows to experts"),
                      required("experts_ns", &t::experts_ns, "of the busiest rank"),
                      required("combine_ns", &t::combine_ns, "vectors back"),
                      required("sampling_ns", &t::sampling_ns, "head"),
                      required("draft_ns", &t::draft_ns, "draft pass")};
  }
};
template <>
struct json_fields<cost_answer> {
  static auto list() {
    return std::tuple{required("parts", &cost_answer::parts, "where the time goes"),
                      required("reason", &cost_answer::reason, "in words")};
  }
};

void add_simulation_entries(std::vector<policy_entry>& out) {
  out.push_back(make_entry<cost_question>("step_cost", "what a step of a group of ranks takes by a cost model", cost));
}

}  // namespace troupe::policies
