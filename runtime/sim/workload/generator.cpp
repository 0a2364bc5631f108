// Drawn conversations: sessions begin by an arrival process, each goes on turn by turn with what was said before.
#include <algorithm>
#include <numeric>
#include <queue>

#include "runtime/base/rng.hpp"
#include "runtime/sim/workload/draws.hpp"
#include "runtime/sim/workload/sources.hpp"

namespace troupe::sim {
namespace {

using std::chrono::hours;

// When sessions begin. Thinning: candidates come at the peak rate, and stay with the share that the rate has of it
// then.
class session_arrivals {
 public:
  session_arrivals(const arrival_options& o, uint64_t seed) : options_(o), random_(seed, 1) {
    double peak = 1;  // over the mean
    const auto every = static_cast<double>(o.burst_every.count()), length = static_cast<double>(o.burst_length.count());
    if (o.how == arrival_options::kind::bursts)
      peak = o.burst_factor * (every + length) / (every + length * o.burst_factor);
    if (o.how == arrival_options::kind::diurnal) {
      most_percent_ = *std::max_element(std::begin(o.day_percent), std::end(o.day_percent));
      peak = 24.0 * most_percent_ / std::accumulate(std::begin(o.day_percent), std::end(o.day_percent), 0);
    }
    gap_ = nanoseconds(std::max<int64_t>(1, static_cast<int64_t>(3.6e12 / static_cast<double>(o.per_hour) / peak)));
    if (o.how == arrival_options::kind::bursts) phase_ends_ = draw_exponential(random_, o.burst_every);
  }

  nanoseconds next() {
    for (;;) {
      now_ += draw_exponential(random_, gap_);
      if (stays()) return now_;
    }
  }

 private:
  bool stays() {
    if (options_.how == arrival_options::kind::poisson) return true;
    if (options_.how == arrival_options::kind::bursts) {
      while (now_ >= phase_ends_) {
        in_burst_ = !in_burst_;
        phase_ends_ +=
            draw_exponential(random_, in_burst_ ? options_.burst_length : options_.burst_every) + nanoseconds(1);
      }
      return in_burst_ || random_.below(options_.burst_factor) == 0;
    }
    constexpr int64_t hour = nanoseconds(hours(1)).count();
    const int64_t of_day = (now_ + options_.day_start).count() % (24 * hour);
    const auto h = static_cast<size_t>(of_day / hour);
    const int64_t a = options_.day_percent[h], b = options_.day_percent[(h + 1) % 24];
    // In millionths of a percent, so that the line between two hours is one.
    const int64_t percent = a * 1'000'000 + (b - a) * (of_day % hour / 1'000) / (hour / 1'000 / 1'000'000);
    return static_cast<int64_t>(random_.below(most_percent_ * 1'000'000)) < percent;
  }

  const arrival_options options_;
  rng random_;
  nanoseconds gap_{1}, now_{0}, phase_ends_{0};
  uint64_t most_percent_ = 100;
  bool in_burst_ = false;
};

class generator final : public workload_source {
 public:
  explicit generator(const workload_options& o)
      : g_(o.generator),
        length_(o.length),
        block_tokens_(o.block_tokens),
        seed_(o.seed),
        sessions_(g_.arrivals, o.seed) {
    for (uint32_t t = 0; t < g_.tenants; ++t) tenant_weight_ += 1'000'000 / (t + 1);
    next_session_ = sessions_.next();
  }

  uint32_t block_tokens() const override { return block_tokens_; }
  std::string text() const override {
    constexpr const char* names[] = {"poisson", "bursts", "diurnal"};
    return fmt::format("generated, {} sessions an hour ({}), {} % agents, seed {}", g_.arrivals.per_hour,
                       names[static_cast<size_t>(g_.arrivals.how)], g_.agent_permille / 10.0, seed_);
  }

  result<std::optional<workload_request>> next() override {
    for (;;) {
      conversation c = waiting_.empty() || next_session_ < waiting_.top().due ? begin() : take();
      workload_request r;
      if (!play(c, r)) continue;
      r.index = index_++;
      return r;
    }
  }

 private:
  struct conversation {
    nanoseconds due{0};
    uint64_t id = 0;
    uint32_t tenant = 0, turn = 0, turns = 1;
    uint32_t context = 0;  // tokens so far
    policies::traffic_class traffic = policies::traffic_class::chatbot;
    rng random{0};
    bool operator>(const conversation& o) const { return due != o.due ? due > o.due : id > o.id; }
  };

  const conversation_options& kind_of(const conversation& c) const {
    return c.traffic == policies::traffic_class::agent ? g_.agent : g_.chat;
  }

  uint32_t scaled_draw(conversation& c, uint32_t median, uint32_t sigma, uint32_t most) {
    const double d = draw_log_normal(c.random, median, sigma);
    return static_cast<uint32_t>(std::clamp<uint64_t>(length_.times(static_cast<uint64_t>(std::min(d, 1e9))), 1, most));
  }

  conversation begin() {
    conversation c;
    c.due = next_session_;
    next_session_ = sessions_.next();
    c.id = conversations_++;
    c.random = rng(seed_, (uint64_t{1} << 32) + c.id);
    uint64_t at = c.random.below(tenant_weight_);
    while (at >= 1'000'000 / (c.tenant + 1)) at -= 1'000'000 / (++c.tenant);
    if (c.random.below(1'000) < g_.agent_permille) c.traffic = policies::traffic_class::agent;
    c.turns = draw_geometric(c.random, kind_of(c).mean_turns);
    if (waiting_.size() >= g_.max_open) c.turns = 1;
    c.context = system_tokens(c);
    return c;
  }

  conversation take() {
    conversation c = waiting_.top();
    waiting_.pop();
    return c;
  }

  uint32_t system_tokens(const conversation& c) const {
    return static_cast<uint32_t>(std::min<uint64_t>(length_.times(kind_of(c).system_tokens), g_.max_context / 2));
  }

  // The turn that is due; false when the context is full, which ends the conversation.
  bool play(conversation& c, workload_request& r) {
    const auto& k = kind_of(c);
    uint32_t fresh = scaled_draw(c, k.prompt_tokens, k.prompt_sigma, g_.max_context);
    uint32_t answer = scaled_draw(c, k.answer_tokens, k.answer_sigma, g_.max_answer);
    if (c.turn == 0) {  // a first prompt is cut, not refused
      answer = std::min(answer, g_.max_context / 4);
      fresh = std::min(fresh, g_.max_context - answer - c.context);
    }
    if (uint64_t{c.context} + fresh + answer > g_.max_context) return false;
    r.arrival = c.due;
    r.conversation = c.id, r.turn = c.turn, r.tenant = c.tenant, r.traffic = c.traffic;
    r.input_tokens = c.context + fresh, r.output_tokens = answer;
    const uint32_t bt = block_tokens_, before = r.input_tokens / bt;
    for (uint32_t i = 0; i < before; ++i) r.blocks.push_back(id_of(c, i));
    if (r.input_tokens % bt > 0) r.blocks.push_back(uint64_t{1} << 62 | c.id << 24 | c.turn);  // no later prompt has it
    c.context = r.input_tokens + answer;
    for (uint32_t i = before; i < c.context / bt; ++i) r.grown.push_back(id_of(c, i));
    if (++c.turn < c.turns) {
      const bool later = c.random.below(1'000) < k.return_permille;
      const double gap = draw_log_normal(c.random, static_cast<double>(k.gap.count()), k.gap_sigma);
      c.due += later ? draw_log_uniform(c.random, k.return_least, k.return_most)
                     : nanoseconds(static_cast<int64_t>(std::min(gap, 1e16)));
      waiting_.push(c);
    }
    return true;
  }

  // Blocks inside the system prompt are the tenant's and kind's; all others the conversation's.
  uint64_t id_of(const conversation& c, uint32_t block) const {
    if ((block + uint64_t{1}) * block_tokens_ <= system_tokens(c))
      return uint64_t{1} << 63 | uint64_t{c.tenant} << 32 | static_cast<uint64_t>(c.traffic) << 30 | block;
    return c.id << 24 | block;
  }

  const generator_options g_;
  const ratio length_;
  const uint32_t block_tokens_;
  const uint64_t seed_;
  session_arrivals sessions_;
  nanoseconds next_session_{0};
  uint64_t tenant_weight_ = 0, conversations_ = 0, index_ = 0;
  std::priority_queue<conversation, std::vector<conversation>, std::greater<>> waiting_;
};

result<void> check_conversations(const char* name, const conversation_options& k) {
  const auto bad = [&](const char* member, const char* bounds) {
    return fail(errc::invalid_argument, "workload.{}.{}: {} expected", name, member, bounds);
  };
  if (k.mean_turns < 1 || k.mean_turns > 10'000) return bad("mean_turns", "1 to 10000");
  if (k.prompt_tokens < 1 || k.prompt_tokens > 1u << 24) return bad("prompt_tokens", "1 to 16777216");
  if (k.answer_tokens < 1 || k.answer_tokens > 1u << 24) return bad("answer_tokens", "1 to 16777216");
  if (k.prompt_sigma > 500 || k.answer_sigma > 500 || k.gap_sigma > 500) return bad("*_sigma", "0 to 500 hundredths");
  if (k.gap < nanoseconds(1) || k.gap > hours(24 * 365)) return bad("gap", "1ns to a year");
  if (k.return_permille > 1'000) return bad("return_permille", "0 to 1000");
  if (k.return_least < nanoseconds(1) || k.return_most < k.return_least || k.return_most > hours(24 * 365))
    return bad("return_least, return_most", "1ns <= least <= most <= a year");
  return {};
}

}  // namespace

result<std::unique_ptr<workload_source>> open_generator(const workload_options& o) {
  const auto& g = o.generator;
  const auto bad = [&](const char* member, const char* bounds) {
    return fail(errc::invalid_argument, "workload.{}: {} expected", member, bounds);
  };
  const auto& a = g.arrivals;
  if (a.per_hour < 1 || a.per_hour > 1'000'000'000) return bad("arrivals.per_hour", "1 to 10^9");
  if (a.burst_factor < 1 || a.burst_factor > 1'000) return bad("arrivals.burst_factor", "1 to 1000");
  if (a.burst_every < nanoseconds(1) || a.burst_length < nanoseconds(1) || a.burst_every > hours(24 * 365) ||
      a.burst_length > hours(24 * 365))
    return bad("arrivals.burst_every, burst_length", "1ns to a year");
  if (a.day_start < nanoseconds(0) || a.day_start >= hours(24)) return bad("arrivals.day_start", "0 to 24h");
  uint64_t sum = 0;
  for (const uint32_t p : a.day_percent) {
    if (p > 10'000) return bad("arrivals.day_percent", "0 to 10000 each");
    sum += p;
  }
  if (sum == 0) return bad("arrivals.day_percent", "at least one hour above 0");
  if (g.agent_permille > 1'000) return bad("agent_permille", "0 to 1000");
  if (g.tenants < 1 || g.tenants > 100'000) return bad("tenants", "1 to 100000");
  if (g.max_context < 64 || g.max_context > 1u << 24) return bad("max_context", "64 to 16777216");
  if (g.max_answer < 1) return bad("max_answer", "at least 1");
  if (g.max_open < 1) return bad("max_open", "at least 1");
  if (auto ok = check_conversations("chat", g.chat); !ok) return fail(ok.error());
  if (auto ok = check_conversations("agent", g.agent); !ok) return fail(ok.error());
  return std::make_unique<generator>(o);
}

}  // namespace troupe::sim
