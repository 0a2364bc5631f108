#include "runtime/cli/load/run.hpp"

#include <fmt/format.h>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/cli/load/call.hpp"

namespace troupe::cli {
namespace {

namespace asio = boost::asio;

constexpr size_t most_kinds = 32;
// A server that refuses is not asked again at once, unless requests have times of their own.
constexpr auto rest = std::chrono::milliseconds(100);

class load_player {
 public:
  load_player(load_plan plan, const load_target& target, const clock_source& clock,
              const std::function<void(const load_progress&)>& progress)
      : plan_(std::move(plan)), target_(target), clock_(clock), progress_(progress) {}

  load_summary run() {
    signals_.async_wait([this](auto e, int) {
      if (!e) stop();
    });
    start_ = clock_.now();
    tick();
    pump();
    context_.run();
    out_.took = std::max(nanoseconds(1), last_end_ - start_);
    out_.skipped = plan_.skipped();
    return std::move(out_);
  }

 private:
  nanoseconds since_start() const { return clock_.now() - start_; }

  void tick() {
    ticker_.expires_after(std::chrono::seconds(1));
    ticker_.async_wait([this](auto e) {
      if (e) return;
      progress_({since_start(), static_cast<uint32_t>(running_.size()), &out_});
      tick();
    });
  }

  // Sends what is due while there is room.
  void pump() {
    const nanoseconds limit = plan_.options().duration;
    while (!out_.stopped && !ended_ && running_.size() < target_.concurrency) {
      if (!next_) next_ = plan_.next();
      const nanoseconds now = since_start();
      if (!next_ || (limit > nanoseconds(0) && now >= limit)) {
        out_.unsent += next_.has_value();
        ended_ = true;
        break;
      }
      const nanoseconds from = plan_.timed() ? next_->due : rest_until_;
      if (from > now) {
        alarm_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(from - now));
        alarm_.async_wait([this](auto e) {
          if (!e) pump();
        });
        break;
      }
      // A load without times is due all at once: waiting for room is what it is for.
      if (plan_.timed()) out_.lag.add(now - next_->due);
      send(*std::exchange(next_, std::nullopt));
    }
    if ((ended_ || out_.stopped) && running_.empty()) {
      ticker_.cancel();
      alarm_.cancel();
      signals_.cancel();
    }
  }

  void send(const load_request& r) {
    const auto prompt = prompt_of(r, plan_.options().block_tokens, target_.vocabulary, plan_.options().seed);
    call_request q;
    q.server = target_.servers[out_.sent % target_.servers.size()];
    q.api_key = target_.api_key;
    q.silence = target_.silence;
    q.body = completion_body(r, target_, prompt, plan_.options().seed);
    q.prompt_tokens = r.input_tokens;
    q.answer_tokens = r.output_tokens;
    q.leaves_at = r.leaves_at;
    q.slow = r.slow;
    ++out_.sent;
    out_.slow += r.slow;
    out_.leavers += r.leaves_at.has_value();
    const uint64_t number = r.index;
    auto ended = [this, number, slow = r.slow, input = r.input_tokens, output = r.output_tokens](const call_result& c) {
      count(c, slow, input, output);
      running_.erase(number);
      pump();
    };
    auto tokens = [this, slow = r.slow](nanoseconds gap, uint32_t n) {
      if (!slow) out_.between_tokens.add(gap / n, n);
    };
    running_.emplace(number, call::start(context_, clock_, std::move(q), std::move(ended), std::move(tokens)));
    out_.most_at_once = std::max(out_.most_at_once, static_cast<uint32_t>(running_.size()));
  }

  void count(const call_result& c, bool slow, uint32_t input, uint32_t output) {
    last_end_ = std::max(last_end_, c.ended);
    if (c.end == call_end::failed && c.tokens == 0) rest_until_ = since_start() + rest;
    out_.tokens += c.tokens;
    if (c.end == call_end::left) ++out_.left;
    if (c.end == call_end::interrupted) ++out_.interrupted;
    if (c.end == call_end::failed) {
      ++out_.failed;
      const bool known = out_.errors.contains(c.failure) || out_.errors.size() + 1 < most_kinds;
      ++out_.errors[known ? c.failure : "other"];
    }
    if (c.end != call_end::finished) return;
    ++out_.finished;
    out_.prompt_tokens += c.prompt_tokens;
    out_.cached_tokens += c.cached_tokens;
    out_.completion_tokens += c.completion_tokens;
    out_.expected_prompt_tokens += input;
    out_.expected_completion_tokens += output;
    if (slow || c.tokens == 0) return;
    out_.first_token.add(c.first_token - c.sent);
    out_.whole.add(c.ended - c.sent);
    if (c.tokens > 1) out_.per_token.add((c.last_token - c.first_token) / (c.tokens - 1));
  }

  void stop() {
    out_.stopped = true;
    signals_.clear();  // a second one ends the process
    out_.unsent += next_.has_value();
    next_.reset();
    alarm_.cancel();
    const auto now = running_;
    for (const auto& [number, c] : now) c->abort();
    pump();
  }

  load_plan plan_;
  const load_target& target_;
  const clock_source& clock_;
  const std::function<void(const load_progress&)>& progress_;
  asio::io_context context_{1};
  asio::steady_timer ticker_{context_}, alarm_{context_};
  asio::signal_set signals_{context_, SIGINT, SIGTERM};
  std::map<uint64_t, std::shared_ptr<call>> running_;  // at most target_.concurrency
  std::optional<load_request> next_;
  bool ended_ = false;
  nanoseconds start_{0}, last_end_{0}, rest_until_{0};
  load_summary out_;
};

}  // namespace

std::string completion_body(const load_request& r, const load_target& target, const std::vector<int32_t>& prompt,
                            uint64_t seed) {
  return fmt::format(
      R"({{"model":{},"stream":true,"stream_options":{{"include_usage":true}},"ignore_eos":true,"max_tokens":{},)"
      R"("temperature":{},"seed":{},"prompt":[{}]}})",
      nlohmann::json(target.model).dump(), r.output_tokens, target.temperature, (seed + r.index) % (uint64_t{1} << 53),
      fmt::join(prompt, ","));
}

load_summary run_load(load_plan plan, const load_target& target, const clock_source& clock,
                      const std::function<void(const load_progress&)>& progress) {
  return load_player(std::move(plan), target, clock, progress).run();
}

}  // namespace troupe::cli
