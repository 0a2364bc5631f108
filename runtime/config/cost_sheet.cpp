#include "runtime/config/cost_sheet.hpp"

#include "runtime/config/cost_file.hpp"

namespace troupe::config {
namespace {

__extension__ using wide = unsigned __int128;

// Digits with at most `decimals` behind a point, as a whole number of the smallest step.
result<uint64_t> parse_decimal(const std::string& text, uint32_t decimals) {
  uint64_t value = 0;
  uint32_t after = 0;
  bool point = false, digits = false;
  for (char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9' || (point && after == decimals) || value > (uint64_t{1} << 58) / 10)
      return fail(errc::invalid_argument, "'{}' is not a number with at most {} decimals", text, decimals);
    value = value * 10 + static_cast<uint64_t>(c - '0');
    after += point;
    digits = true;
  }
  if (!digits) return fail(errc::invalid_argument, "'{}' is not a number", text);
  for (; after < decimals; ++after) value *= 10;
  return value;
}

struct unit {
  const char* name;
  uint64_t factor;
};

// A number with up to three decimals and one of the units.
template <class S>
field<S> quantity(std::string name, uint64_t S::*member, std::vector<unit> units, std::string type,
                  std::string meaning) {
  std::string list;
  for (const unit& u : units) list += (list.empty() ? "" : ", ") + std::string(u.name);
  return {name,
          type,
          "0 " + std::string(units[0].name),
          list,
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            const size_t space = text.find(' ');
            if (space == std::string::npos)
              return fail(errc::invalid_argument, "'{}' has no unit; write a number, a space and one of {}", text,
                          list);
            TROUPE_TRY(const uint64_t value, parse_decimal(text.substr(0, space), 3));
            for (const unit& u : units)
              if (text.substr(space + 1) == u.name) {
                const wide all = wide(value) * u.factor / 1000;
                if (all > UINT64_MAX) return fail(errc::invalid_argument, "{} is too large", text);
                s.*member = static_cast<uint64_t>(all);
                return {};
              }
            return fail(errc::invalid_argument, "'{}' is not a unit; known are {}", text.substr(space + 1), list);
          },
          [=](const S& s) { return fmt::format("{} {}", s.*member, units[0].name); }};
}

std::vector<unit> byte_rates() {
  return {{"B/s", 1}, {"MB/s", 1'000'000}, {"GB/s", 1'000'000'000}, {"TB/s", 1'000'000'000'000}};
}
std::vector<unit> operation_rates() {
  return {
      {"FLOP/s", 1}, {"GFLOP/s", 1'000'000'000}, {"TFLOP/s", 1'000'000'000'000}, {"PFLOP/s", 1'000'000'000'000'000}};
}
std::vector<unit> operations() {
  return {{"FLOP", 1}, {"KFLOP", 1000}, {"MFLOP", 1'000'000}, {"GFLOP", 1'000'000'000}};
}

template <class S>
field<S> rate(std::string name, uint64_t S::*m, std::string meaning) {
  return quantity(std::move(name), m, byte_rates(), "bytes per second", std::move(meaning));
}
template <class S>
field<S> work(std::string name, uint64_t S::*m, std::string meaning) {
  return quantity(std::move(name), m, operations(), "operations", std::move(meaning));
}

// A decimal number, stored in steps of 1 / scale.
template <class S>
field<S> decimal(std::string name, uint32_t S::*member, uint32_t decimals, uint64_t most, std::string value,
                 std::string meaning) {
  uint64_t scale = 1;
  for (uint32_t i = 0; i < decimals; ++i) scale *= 10;
  return {name,
          "number",
          value,
          fmt::format("0 to {}, at most {} decimals", most, decimals),
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(const uint64_t v, parse_decimal(text, decimals));
            if (v > most * scale)
              return fail(errc::invalid_argument, "{} is out of range; it must be 0 to {}", text, most);
            s.*member = static_cast<uint32_t>(v);
            return {};
          },
          [=](const S& s) { return fmt::format("{}.{:0{}}", s.*member / scale, s.*member % scale, decimals); }};
}

// Durations kept as plain nanoseconds.
template <class S>
field<S> time(std::string name, uint64_t S::*member, std::string meaning) {
  return {name,
          "duration",
          "0s",
          "0s and more",
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(const auto d, config::parse_duration(text));
            s.*member = static_cast<uint64_t>(d.count());
            return {};
          },
          [=](const S& s) { return config::format_duration(std::chrono::nanoseconds(s.*member)); }};
}

template <class S>
field<S> bytes(std::string name, uint64_t S::*member, std::string meaning) {
  return config::size<S>(std::move(name), member, 0, 0, 1ull << 50, std::move(meaning));
}
template <class S>
field<S> bytes(std::string name, uint32_t S::*member, std::string meaning) {
  return {name,
          "size",
          "0B",
          "0B to 2GiB",
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(const uint64_t v, config::parse_bytes(text));
            if (v > uint64_t{1} << 31)
              return fail(errc::invalid_argument, "{} is out of range; it must be at most 2GiB", text);
            s.*member = static_cast<uint32_t>(v);
            return {};
          },
          [=](const S& s) { return config::format_bytes(s.*member); }};
}

template <class S>
std::string rows_of(const section<S>& table) {
  std::string out;
  for (const auto& f : table.fields)
    out += fmt::format("| `{}.{}` | {} | {} | {} | {} |\n", table.name, f.name, f.type,
                       f.default_text.empty() ? "empty" : "`" + f.default_text + "`", f.bounds, f.meaning);
  return out;
}

}  // namespace

result<uint32_t> parse_fraction(const std::string& text) {
  TROUPE_TRY(const uint64_t v, parse_decimal(text, 6));
  if (v > 1'000'000) return fail(errc::invalid_argument, "{} is out of range; it must be 0 to 1", text);
  return static_cast<uint32_t>(v);
}

const section<hardware_sheet>& hardware_table() {
  using s = hardware_sheet;
  static const section<s> table{
      "hardware",
      "Rates of one rank by the data sheet.",
      {rate<s>("memory", &s::memory, "Memory bandwidth."),
       quantity("gemm", &s::gemm, operation_rates(), "operations per second", "Matrix products of weights."),
       quantity("attention", &s::attention, operation_rates(), "operations per second",
                "Attention and index scores.")}};
  return table;
}

const section<efficiency_sheet>& efficiency_table() {
  using s = efficiency_sheet;
  static const section<s> table{
      "efficiency",
      "Part of the rates that is reached: fitted to the points.",
      {decimal<s>("memory", &s::memory, 6, 1, "1", "Of hardware.memory."),
       decimal<s>("gemm", &s::gemm, 6, 1, "1", "Of hardware.gemm."),
       decimal<s>("attention", &s::attention, 6, 1, "1", "Of hardware.attention."),
       decimal<s>("hidden", &s::hidden, 6, 1, "0", "Part of the exchanges that runs beside computing.")}};
  return table;
}

const section<fixed_sheet>& fixed_table() {
  using s = fixed_sheet;
  static const section<s> table{
      "fixed",
      "Times that do not depend on the rows.",
      {config::duration<s>("step", &s::step, {}, {}, std::chrono::seconds(10), "Of every step."),
       config::duration<s>("draft", &s::draft, {}, {}, std::chrono::seconds(10),
                           "Of each draft position of a step that drafts: they come one after the other.")}};
  return table;
}

const section<model_sheet>& cost_model_table() {
  using s = model_sheet;
  static const section<s> table{
      "model",
      "Bytes and operations of the model, weights as they are stored, operations counted as two per weight.",
      {config::count<s, s>("encoder_layers", &s::encoder_layers, 0, 0, 10000, "layers", "Layers that all rows pass."),
       config::count<s, s>("decoder_layers", &s::decoder_layers, 0, 0, 10000, "layers",
                           "Layers that only decode rows and the last window of a prompt pass."),
       config::count<s, s>("experts", &s::experts, 0, 0, 100000, "experts", "Routed experts of a layer."),
       config::count<s, s>("top_k", &s::top_k, 0, 0, 1000, "experts", "Experts that a row is routed to."),
       bytes<s>("encoder_bytes", &s::encoder_bytes, "Dense weights of all encoder layers, read once a step."),
       bytes<s>("decoder_bytes", &s::decoder_bytes, "The same of the decoder layers."),
       bytes<s>("head_bytes", &s::head_bytes, "The same of the head."),
       bytes<s>("expert_bytes", &s::expert_bytes, "One expert of one layer."),
       bytes<s>("context_bytes", &s::context_bytes, "Index keys read per token of a sequence and step."),
       work<s>("encoder_row", &s::encoder_row, "Dense weights of all encoder layers, per row."),
       work<s>("decoder_row", &s::decoder_row, "The same of the decoder layers."),
       work<s>("head_row", &s::head_row, "The same of the head."),
       work<s>("expert_pair", &s::expert_pair, "One (row, expert) pair of one layer."),
       work<s>("encoder_attention", &s::encoder_attention, "Window and selected entries, all encoder layers, per row."),
       work<s>("decoder_attention", &s::decoder_attention, "The same of the decoder layers."),
       work<s>("encoder_position", &s::encoder_position,
               "Index scores of all encoder layers, per row and token before it."),
       work<s>("decoder_position", &s::decoder_position, "The same of the decoder layers."),
       work<s>("draft_row", &s::draft_row, "The drafter, per sequence and draft position."),
       bytes<s>("dispatch_bytes", &s::dispatch_bytes, "What is sent for one (row, expert) pair."),
       bytes<s>("combine_bytes", &s::combine_bytes, "What comes back.")}};
  return table;
}

const section<policies::kv_sizes>& kv_table() {
  using s = policies::kv_sizes;
  static const section<s> table{
      "kv",
      "Bytes of a sequence's KV on the wire and in the store.",
      {config::count<s, s>("page_tokens", &s::page_tokens, 0, 0, 1u << 20, "tokens", "Of a page."),
       bytes<s>("page_bytes", &s::page_bytes, "Of a page."),
       bytes<s>("state_bytes", &s::state_bytes, "What goes along with a hand-over: the windows."),
       bytes<s>("snapshot_bytes", &s::snapshot_bytes, "A window snapshot.")}};
  return table;
}

const section<policies::expert_skew>& skew_table() {
  using s = policies::expert_skew;
  static const section<s> table{
      "skew",
      "How unevenly experts are used.",
      {config::count<s, s>(
           "flatness", &s::flatness, 0, 0, 1u << 20, "",
           "The i-th busiest expert of a layer is used in proportion to 1 / (i + flatness). 0: all alike."),
       config::count<s, s>("drift_steps", &s::drift_steps, 0, 0, 1u << 30, "steps",
                           "After so many steps a quarter of the experts have changed places. 0: never.")}};
  return table;
}

const section<policies::cost_model>& tokens_table() {
  using s = policies::cost_model;
  static const section<s> table{
      "tokens",
      "What the engine writes.",
      {config::count<s, s>("mean_output", &s::mean_output, 0, 0, 1u << 24, "tokens",
                           "Until an end-of-sequence, on average. 0: answers end at their limit only.")}};
  return table;
}

const section<policies::fabric>& fabric_table() {
  using s = policies::fabric;
  static const section<s> table{
      "fabrics",
      "Networks between the ranks of a group; the first is used where none is named.",
      {config::text<s>("name", &s::name, "", "What it is called."),
       config::count<s, s>("domain", &s::domain, 1, 1, 1u << 20, "ranks",
                           "Ranks that reach each other at domain_rate."),
       rate<s>("domain_rate", &s::domain_rate, "Per rank, within the domain."),
       rate<s>("outside_rate", &s::outside_rate, "Per rank, for the part of the rows that leaves the domain."),
       time<s>("dispatch", &s::dispatch_ns, "A dispatch without rows."),
       time<s>("combine", &s::combine_ns, "A combine without rows."),
       time<s>("dispatch_doubling", &s::dispatch_doubling_ns, "More for each doubling of the ranks beyond the domain."),
       time<s>("combine_doubling", &s::combine_doubling_ns, "The same of a combine.")}};
  return table;
}

const section<policies::cost_point>& point_table() {
  using s = policies::cost_point;
  static const auto kind = [] {
    field<s> f{"kind",
               "choice",
               "decode",
               "prefill, decode, dispatch, combine",
               "What was measured.",
               false,
               [](s& p, const std::string& text) -> result<void> {
                 const char* names[] = {"prefill", "decode", "dispatch", "combine"};
                 for (uint8_t i = 0; i < 4; ++i)
                   if (text == names[i]) return p.kind = static_cast<policies::point_kind>(i), result<void>{};
                 return fail(errc::invalid_argument, "'{}' is not one of prefill, decode, dispatch, combine", text);
               },
               [](const s& p) {
                 const char* names[] = {"prefill", "decode", "dispatch", "combine"};
                 return std::string(names[static_cast<size_t>(p.kind)]);
               }};
    return f;
  };
  static const section<s> table{
      "points",
      "What the model is judged by.",
      {config::text<s>("name", &s::name, "", "What it is called."),
       config::text<s>("source", &s::source, "", "Where it was published, or how it was measured."), kind(),
       config::text<s>("fabric", &s::fabric, "", "Empty: the first."),
       config::count<s, s>("ep", &s::ep, 1, 1, 1u << 20, "ranks", "Of the group."),
       config::count<s, s>("rows", &s::rows, 0, 0, 1u << 24, "rows", "Per rank: of a prompt chunk or an exchange."),
       config::count<s, s>("sequences", &s::sequences, 0, 0, 1u << 20, "sequences", "Decoding per rank."),
       config::field<s>{"context", "number of tokens", "0", "0 and more",
                        "Tokens before the chunk, or in place of each sequence.", false,
                        [](s& p, const std::string& text) -> result<void> {
                          TROUPE_TRY(p.context, config::parse_count(text));
                          if (p.context > 1u << 30) return fail(errc::invalid_argument, "{} is too many", text);
                          return {};
                        },
                        [](const s& p) { return std::to_string(p.context); }},
       decimal<s>("verified", &s::verified_milli, 3, 100, "0", "Drafts verified per sequence and step."),
       decimal<s>("tokens", &s::tokens_milli, 3, 100, "0",
                  "Tokens per sequence and step. 0: by the acceptance model, all drafts verified."),
       config::count<s, s>("drafts", &s::drafts, 0, 0, 16, "drafts", "Positions of the draft pass."),
       config::flag<s>("adaptive", &s::adaptive, false, "Drafts to verify are chosen by policies/verify_lengths."),
       decimal<s>("imbalance", &s::imbalance_permille, 3, 1000, "1", "Pairs of the busiest rank over the mean."),
       config::count<s, s>("slots", &s::slots, 0, 0, 100000, "experts",
                           "Held per rank and layer. 0: the rank's share."),
       bytes<s>("row_bytes", &s::row_bytes, "Of an exchange, per pair."),
       config::count<s, s>("top_k", &s::top_k, 0, 0, 1000, "experts", "Of an exchange, pairs per row."),
       config::field<s>{"value", "number or duration", "0", "tokens per second and rank, or a duration",
                        "What was published.", false,
                        [](s& p, const std::string& text) -> result<void> {
                          if (auto n = config::parse_count(text); n) return p.value = *n, result<void>{};
                          TROUPE_TRY(const auto d, config::parse_duration(text));
                          p.value = static_cast<uint64_t>(d.count());
                          return {};
                        },
                        [](const s& p) { return std::to_string(p.value); }},
       decimal<s>("tolerance", &s::tolerance_permille, 3, 1, "0.05", "Residual at which the check fails.")}};
  return table;
}

void fill_rates(const cost_sheet& c, policies::step_rates& r) {
  const model_sheet& m = c.model;
  r.encoder_layers = m.encoder_layers;
  r.decoder_layers = m.decoder_layers;
  r.experts = m.experts;
  r.top_k = m.top_k;
  r.step_ns = static_cast<uint64_t>(c.fixed.step.count());
  r.draft_ns = static_cast<uint64_t>(c.fixed.draft.count());
  r.dispatch_bytes = m.dispatch_bytes;
  r.combine_bytes = m.combine_bytes;
  r.hidden_permille = c.efficiency.hidden / 1000;
  // amount / (rate * efficiency), in units of 1 / per_second seconds, to the nearest.
  const auto price = [](uint64_t amount, uint64_t rate, uint32_t millionths, uint64_t per_second) -> uint64_t {
    if (amount == 0 || rate == 0 || millionths == 0) return 0;
    const wide speed = wide(rate) * millionths;  // 1e-6 per second
    const wide v = (wide(amount) * per_second * 1'000'000 + speed / 2) / speed;
    return v > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(v);
  };
  constexpr uint64_t ns = 1'000'000'000, fs = 1'000'000'000'000'000;
  const auto read_ns = [&](uint64_t b) { return price(b, c.hardware.memory, c.efficiency.memory, ns); };
  const auto read_fs = [&](uint64_t b) { return price(b, c.hardware.memory, c.efficiency.memory, fs); };
  const auto gemm = [&](uint64_t o) { return price(o, c.hardware.gemm, c.efficiency.gemm, fs); };
  const auto attention = [&](uint64_t o) { return price(o, c.hardware.attention, c.efficiency.attention, fs); };
  r.encoder_read_ns = read_ns(m.encoder_bytes);
  r.decoder_read_ns = read_ns(m.decoder_bytes);
  r.head_read_ns = read_ns(m.head_bytes);
  r.expert_read_fs = read_fs(m.expert_bytes);
  r.context_fs = read_fs(m.context_bytes);
  r.encoder_row_fs = gemm(m.encoder_row);
  r.decoder_row_fs = gemm(m.decoder_row);
  r.sample_fs = gemm(m.head_row);
  r.expert_item_fs = gemm(m.expert_pair);
  r.draft_row_fs = gemm(m.draft_row);
  r.encoder_attention_fs = attention(m.encoder_attention);
  r.decoder_attention_fs = attention(m.decoder_attention);
  r.encoder_position_fs = attention(m.encoder_position);
  r.decoder_position_fs = attention(m.decoder_position);
}

std::string cost_markdown() {
  std::string out = "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  out += rows_of(hardware_table()) + rows_of(efficiency_table()) + rows_of(fixed_table()) +
         rows_of(cost_model_table()) + rows_of(kv_table()) + rows_of(skew_table()) + rows_of(tokens_table()) +
         rows_of(fabric_table()) + rows_of(point_table());
  return out;
}

}  // namespace troupe::config
