#include "tests/policies/placement_sim.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_set>

#include "policies/decode_place.hpp"
#include "policies/prefill_place.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::policies::sim {
namespace {

constexpr double budget_s = 0.3;
constexpr size_t batch_limit = 16;

std::vector<trace_request> generated(uint64_t seed) {
  rng random{seed};
  std::vector<trace_request> out;
  for (int i = 0; i < 4000; ++i) {
    // Sum of twelve uniforms: a normal draw, good enough for a log-normal length.
    const auto normal = [&] {
      double s = -6;
      for (int k = 0; k < 12; ++k) s += random.uniform();
      return s;
    };
    const auto input = static_cast<uint32_t>(std::clamp(std::exp(8.75 + 1.15 * normal()), 200.0, 126'000.0));
    const bool hit = random.uniform() < 0.5;
    const auto fresh = hit ? std::max<uint32_t>(134, static_cast<uint32_t>(input * random.uniform() * 0.5)) : input;
    const auto output = static_cast<uint32_t>(std::clamp(std::exp(5.5 + 0.8 * normal()), 1.0, 2000.0));
    out.push_back({i * 0.3, input, std::min(fresh, input), output});
  }
  return out;
}

// Arrivals, looped and rate-scaled.
class arrivals {
 public:
  arrivals(const std::vector<trace_request>& trace, uint64_t count, double span) : trace_(trace), count_(count) {
    loop_ = trace.back().at + 3;
    const double loops = static_cast<double>(count) / static_cast<double>(trace.size());
    scale_ = span / (loops * loop_);
  }
  bool more() const { return next_ < count_; }
  double at() const {
    const uint64_t n = trace_.size();
    return (static_cast<double>(next_ / n) * loop_ + trace_[next_ % n].at) * scale_;
  }
  const trace_request& take() { return trace_[next_++ % trace_.size()]; }

 private:
  const std::vector<trace_request>& trace_;
  uint64_t count_, next_ = 0;
  double loop_, scale_;
};

// Length of [from, to] inside [low, high].
double overlap(double from, double to, double low, double high) {
  return std::max(0.0, std::min(to, high) - std::max(from, low));
}

template <class Load>
size_t baseline(placer by, uint32_t ranks, size_t& last, rng& random, Load load) {
  if (by == placer::round_robin) return last = (last + 1) % ranks;
  if (by == placer::two_choices) {
    const size_t a = random.below(ranks), b = random.below(ranks);
    return load(b) < load(a) ? b : a;
  }
  size_t best = 0;
  for (size_t i = 1; i < ranks; ++i)
    if (load(i) < load(best)) best = i;
  return best;
}

double quantile(std::vector<double>& v, double q) {
  if (v.empty()) return 0;
  auto at = v.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

struct prompt {
  double arrived;
  uint32_t cached, fresh, done = 0;
  uint8_t tier = 0;
  double attention = 0, linear = 0;  // as the balancer counts them
};

}  // namespace

const char* to_string(placer p) {
  constexpr const char* names[] = {"round robin", "least requests", "two choices", "ours"};
  return names[static_cast<size_t>(p)];
}

std::vector<trace_request> load_trace(std::string& name, uint64_t seed) {
  const char* folder = std::getenv("TROUPE_TRACES");
  std::ifstream in(folder ? std::string(folder) + "/conversation_trace.jsonl" : "");
  if (!in) {
    name = "generated, 4,000 requests";
    return generated(seed);
  }
  std::vector<trace_request> out;
  std::unordered_set<int64_t> seen;
  std::string line;
  while (std::getline(in, line)) {
    const auto j = nlohmann::json::parse(line);
    const uint32_t length = j.at("input_length");
    uint32_t blocks = 0;
    bool chain = true;
    for (int64_t id : j.at("hash_ids")) {
      chain = chain && !seen.insert(id).second;
      blocks += chain;
    }
    // 512-token blocks of the trace are four blocks of 128; the last 134 tokens are never reused.
    const uint32_t limit = length < 134 ? 0 : (length - 134) / 128 * 128;
    const uint32_t hit = std::min(blocks * 512, limit);
    out.push_back({j.at("timestamp").get<double>() / 1e3, length, length - hit,
                   std::max(1u, j.at("output_length").get<uint32_t>())});
  }
  for (size_t i = 0, j; i < out.size(); i = j) {
    for (j = i; j < out.size() && out[j].at == out[i].at;) ++j;
    for (size_t k = i + 1; k < j; ++k) out[k].at += 3.0 * static_cast<double>(k - i) / static_cast<double>(j - i);
  }
  name = "conversation_trace.jsonl, " + std::to_string(out.size()) + " requests";
  return out;
}

run_report run_prefill(const std::vector<trace_request>& trace, const run_options& o) {
  prefill_place_input view;
  if (o.isolation_ns >= 0) view.isolation_ns = o.isolation_ns;
  const auto& cost = view.cost;
  double work = 0;
  for (const auto& r : trace) work += work_of(cost, view.chunk_tokens, r.fresh, r.input - r.fresh).total() * 1e-9;
  work *= static_cast<double>(o.requests) / static_cast<double>(trace.size());
  const double span = work / o.ranks / o.offered, low = 0.1 * span, high = 0.9 * span;
  arrivals in(trace, o.requests, span);

  const uint32_t groups = o.ranks / o.group;
  TROUPE_CHECK(groups * o.group == o.ranks, "{} ranks in groups of {}", o.ranks, o.group);
  view.ranks.resize(o.ranks);
  std::vector<std::deque<prompt>> queues(o.ranks);
  std::vector<uint32_t> waiting(o.ranks, 0);
  std::vector<std::map<uint8_t, uint32_t>> tiers(groups);
  std::vector<bool> stepping(groups, false);
  struct event {
    double at;
    uint32_t group;
    bool operator>(const event& e) const { return std::tie(at, group) > std::tie(e.at, e.group); }
  };
  std::priority_queue<event, std::vector<event>, std::greater<>> agenda;
  rng random{o.seed};
  size_t last = o.ranks - 1;
  uint32_t in_flight = 0;
  run_report out;
  double done_work = 0;
  std::vector<double> waits;

  const auto show_tier = [&](uint32_t g) {
    const uint8_t t = tiers[g].empty() ? 0 : tiers[g].rbegin()->first;
    for (uint32_t r = g * o.group; r < (g + 1) * o.group; ++r) view.ranks[r].longest_tier = t;
  };
  // Runs one step from `now`: progress is booked at once, the next event is its end.
  const auto step = [&](uint32_t g, double now) {
    double longest = 0, sum = 0;
    for (uint32_t r = g * o.group; r < (g + 1) * o.group; ++r) {
      auto& q = queues[r];
      const size_t n = std::min(q.size(), batch_limit);
      double left = budget_s, used = 0;
      for (int round = 0; round < 2 && n > 0; ++round) {
        for (size_t i = 0; i < n; ++i) {
          auto& p = q[i];
          const double share = round == 0 ? budget_s / 2 / static_cast<double>(n) : left;
          const double c = p.cached + p.done, lin = cost.b * c + cost.d;
          const double rows = std::floor((-lin + std::sqrt(lin * lin + 4 * cost.a * share * 1e9)) / (2 * cost.a));
          const double x = std::min<double>(rows, p.fresh - p.done);
          if (!(x > 0)) continue;
          const double t = (cost.a * x * x + cost.b * x * c + cost.d * x) * 1e-9;
          p.done += static_cast<uint32_t>(x);
          left -= t, used += t;
          const auto rest =
              within_horizon(work_of(cost, view.chunk_tokens, p.fresh - p.done, p.cached + p.done), view.horizon_ns);
          view.ranks[r].attention_ns = std::max(0.0, view.ranks[r].attention_ns - p.attention + rest.attention_ns);
          view.ranks[r].linear_ns = std::max(0.0, view.ranks[r].linear_ns - p.linear + rest.linear_ns);
          p.attention = rest.attention_ns, p.linear = rest.linear_ns;
        }
      }
      longest = std::max(longest, used), sum += used;
    }
    stepping[g] = longest > 0;
    if (!stepping[g]) return;
    done_work += sum * overlap(now, now + longest, low, high) / longest;
    agenda.push({now + longest, g});
  };
  const auto arrive = [&](double now, const trace_request& r) {
    if (in_flight >= o.in_flight) return;
    ++in_flight;
    const uint32_t cached = r.input - r.fresh;
    size_t at;
    const auto w = within_horizon(work_of(cost, view.chunk_tokens, r.fresh, cached), view.horizon_ns);
    const uint8_t tier = tier_of(view.tiers, r.fresh);
    if (o.by == placer::ours) {
      view.new_tokens = r.fresh, view.cached_tokens = cached;
      at = place_prefill(view)->choice;
    } else {
      at = baseline(o.by, o.ranks, last, random, [&](size_t i) { return waiting[i]; });
    }
    ++waiting[at];
    view.ranks[at].attention_ns += w.attention_ns, view.ranks[at].linear_ns += w.linear_ns;
    queues[at].push_back({now, cached, r.fresh, 0, tier, w.attention_ns, w.linear_ns});
    const auto g = static_cast<uint32_t>(at / o.group);
    ++tiers[g][tier];
    show_tier(g);
    if (!stepping[g]) {
      stepping[g] = true;
      agenda.push({now, g});
    }
  };
  for (uint32_t i = 0; i < o.in_flight && in.more(); ++i) arrive(0, in.take());
  while (in.more() || !agenda.empty()) {
    if (in.more() && (agenda.empty() || in.at() <= agenda.top().at)) {
      const double now = in.at();
      arrive(now, in.take());
      continue;
    }
    const auto [now, g] = agenda.top();
    agenda.pop();
    if (now > span) break;
    for (uint32_t r = g * o.group; r < (g + 1) * o.group; ++r) {
      auto& q = queues[r];
      for (size_t i = 0; i < std::min(q.size(), batch_limit);) {
        if (q[i].done < q[i].fresh) {
          ++i;
          continue;
        }
        if (now >= low && now <= high && q[i].tier == 0) waits.push_back(now - q[i].arrived);
        if (auto t = tiers[g].find(q[i].tier); --t->second == 0) tiers[g].erase(t);
        q.erase(q.begin() + static_cast<std::ptrdiff_t>(i));
        --waiting[r], --in_flight, ++out.done;
      }
    }
    show_tier(g);
    step(g, now);
  }
  out.of_bound = done_work / (o.ranks * (high - low));
  out.short_p50 = quantile(waits, 0.5);
  out.short_p99 = quantile(waits, 0.99);
  return out;
}

run_report run_decode(const std::vector<trace_request>& trace, const run_options& o) {
  decode_place_input view;
  const double per_request = view.cost.request_ns * 1e-9, per_token = view.cost.kv_token_ns * 1e-9;
  double work = 0, mean_output = 0;
  for (const auto& r : trace) {
    work += r.output * (per_request + per_token * (r.input + 0.5 * (r.output - 1)));
    mean_output += r.output;
  }
  mean_output /= static_cast<double>(trace.size());
  work *= static_cast<double>(o.requests) / static_cast<double>(trace.size());
  const double span = work / o.ranks / o.offered, low = 0.1 * span, high = 0.9 * span;
  arrivals in(trace, o.requests, span);

  struct ending {
    uint32_t rank, tokens;
  };
  constexpr size_t ring = 4096;  // longer than any answer
  struct group_state {
    double at = 0;
    uint64_t steps = 0;
    std::vector<std::vector<ending>> endings{ring};
  };
  const uint32_t groups = o.ranks / o.group;
  TROUPE_CHECK(groups * o.group == o.ranks, "{} ranks in groups of {}", o.ranks, o.group);
  std::vector<group_state> state(groups);
  view.ranks.resize(o.ranks);
  view.growth_tokens = static_cast<uint64_t>(mean_output);
  rng random{o.seed};
  size_t last = o.ranks - 1;
  uint32_t in_flight = 0;
  run_report out;
  double done_work = 0;
  const auto arrive = [&](const trace_request& r) {
    if (in_flight >= o.in_flight) return;
    ++in_flight;
    size_t at;
    if (o.by == placer::ours) {
      view.kv_tokens = r.input;
      at = place_decode(view)->choice;
    } else {
      at = baseline(o.by, o.ranks, last, random, [&](size_t i) { return view.ranks[i].requests; });
    }
    auto& rank = view.ranks[at];
    ++rank.requests;
    rank.kv_tokens += r.input;
    rank.growth_tokens = rank.requests * view.growth_tokens / 2;
    auto& g = state[at / o.group];
    TROUPE_CHECK(r.output < ring, "output {}", r.output);
    g.endings[(g.steps + r.output) % ring].push_back({static_cast<uint32_t>(at), r.input + r.output});
  };
  for (uint32_t i = 0; i < o.in_flight && in.more(); ++i) arrive(in.take());
  for (;;) {
    auto g = std::min_element(state.begin(), state.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    while (in.more() && in.at() <= g->at) arrive(in.take());
    if (g->at >= span) break;
    const auto first = static_cast<uint32_t>((g - state.begin()) * o.group);
    double longest = 0, sum = 0;
    for (uint32_t r = first; r < first + o.group; ++r) {
      auto& rank = view.ranks[r];
      const double t = per_request * rank.requests + per_token * static_cast<double>(rank.kv_tokens);
      longest = std::max(longest, t), sum += t;
      rank.kv_tokens += rank.requests;
    }
    if (longest == 0) {  // parked until somebody comes
      g->at = in.more() ? std::max(in.at(), g->at + 1e-6) : span;
      continue;
    }
    done_work += sum * overlap(g->at, g->at + longest, low, high) / longest;
    g->at += longest;
    auto& over = g->endings[++g->steps % ring];
    for (const auto& e : over) {
      auto& rank = view.ranks[e.rank];
      --rank.requests, --in_flight, ++out.done;
      rank.kv_tokens -= e.tokens;
      rank.growth_tokens = rank.requests * view.growth_tokens / 2;
    }
    over.clear();
  }
  out.of_bound = done_work / (o.ranks * (high - low));
  return out;
}

uint32_t find_load(const std::vector<trace_request>& trace, run_options o, double goal,
                   run_report (*run)(const std::vector<trace_request>&, const run_options&)) {
  uint32_t low = 1, high = 4096;
  while (high - low > std::max(1u, low / 20)) {
    const uint32_t mid = static_cast<uint32_t>(std::sqrt(double(low) * high));
    o.in_flight = std::max(low + 1, mid) * o.ranks;
    o.requests = std::max<uint64_t>(20ull * o.in_flight, 3 * trace.size());
    (run(trace, o).of_bound >= goal ? high : low) = std::max(low + 1, mid);
  }
  return high * o.ranks;
}

}  // namespace troupe::policies::sim
