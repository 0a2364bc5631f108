#include "runtime/sim/load.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kv/replay/prompt.hpp"

namespace troupe::sim {
namespace {

uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 1099511628211ull; }

}  // namespace

struct load::request {
  workload_request what;
  request_outcome out;
  std::vector<kernels::token_id> prompt, answer;
  std::vector<kv::block_hash> chain;
  uint32_t attempt = 0;
  actor_number front = 0;
};

// One attempt's. A front that is lost takes its sinks along: so does a client learn that its connection is gone.
class load::sink final : public actors::client_sink {
 public:
  sink(load& l, std::shared_ptr<request> r) : load_(&l), alive_(l.alive_), request_(std::move(r)) {
    attempt_ = request_->attempt;
  }
  ~sink() override {
    if (done_ || !*alive_) return;
    actors::client_event e;
    e.done = true;
    e.failure = errc::unavailable;
    e.failure_text = "the connection to the front was lost";
    load_->event(request_, attempt_, std::move(e));
  }
  void on_event(actors::client_event e) override {
    if (done_ || !*alive_) return;
    done_ = e.done;
    load_->event(request_, attempt_, std::move(e));
  }

 private:
  load* load_;
  std::shared_ptr<bool> alive_;
  std::shared_ptr<request> request_;
  uint32_t attempt_ = 0;
  bool done_ = false;
};

load::load(world& w, workload_source& source, event_log& log, load_options options)
    : world_(w), source_(source), log_(log), options_(options) {}

load::~load() { *alive_ = false; }

void load::later(nanoseconds d, std::function<void()> f) {
  world_.events().after(d, [alive = alive_, f = std::move(f)] {
    if (*alive) f();
  });
}

void load::start() {
  begin_ = world_.now();
  fetch();
}

void load::fetch() {
  if (closed_ || exhausted_) return;
  auto r = source_.next();
  if (!r) source_error_ = fail(r.error());
  if (!r || !*r) {
    exhausted_ = true;
    return;
  }
  next_ = std::move(*r);
  later(std::max(begin_ + next_->arrival - world_.now(), nanoseconds{0}), [this] { arrive(); });
}

void load::arrive() {
  if (closed_) return;
  auto r = std::make_shared<request>();
  r->what = std::move(*next_);
  next_.reset();
  r->out.index = r->what.index;
  r->out.arrival = world_.now();
  r->out.input = r->what.input_tokens;
  r->out.wanted = r->what.output_tokens;
  r->prompt = kv::trace_prompt(r->what.blocks, r->what.index, r->what.input_tokens, source_.block_tokens(),
                               world_.facts().vocabulary, world_.seed());
  if (world_.cache()) {
    auto chain = kv::hash_chain(*world_.cache(), fmt::format("tenant-{}", r->what.tenant),
                                std::vector<uint32_t>(r->prompt.begin(), r->prompt.end()));
    if (chain) r->chain = std::move(*chain);
  }
  ++submitted_;
  open_[r->what.index] = r;
  attempt(r);
  fetch();
}

void load::attempt(const std::shared_ptr<request>& r) {
  auto fronts = world_.fronts();
  // A conversation stays with its front; another attempt goes to another one.
  auto* front = fronts.empty() ? nullptr : fronts[(r->what.conversation + r->attempt) % fronts.size()];
  const bool first = r->front == 0;
  r->front = log_.actor(front ? front->name : "clients");
  if (first)
    log_.record(happened::request_submitted(world_.now(), r->front, r->what.index, r->out.input, r->out.wanted,
                                            static_cast<uint64_t>(r->what.traffic), r->what.tenant));
  if (!front) {  // nobody takes the connection: it waits as long as for a cluster that is full
    again(r, options_.retry, errc::exhausted, "no front is up");
    ++r->out.refusals;
    return;
  }
  log_.record(happened::request_placed(world_.now(), r->front, r->what.index, r->attempt, pool_kind::front, 0, 0));
  actors::client_submit m;
  m.id = fmt::format("{}.{}", r->what.index, r->attempt);
  m.tenant = m.salt = fmt::format("tenant-{}", r->what.tenant);
  m.traffic = static_cast<uint8_t>(r->what.traffic);
  m.cache = world_.cache().has_value();
  m.chain = r->chain;
  m.prompt = r->prompt;
  m.sampling.seed = mix(world_.seed() * 0x9e3779b97f4a7c15ull, r->what.index);
  m.stop.max_tokens = r->out.wanted;
  m.stop.ignore_eos = true;
  m.sink = std::make_shared<sink>(*this, r);
  world_.submit(*front, std::move(m));
}

void load::event(const std::shared_ptr<request>& r, uint32_t attempt, actors::client_event e) {
  if (attempt != r->attempt || !open_.contains(r->what.index)) return;
  const auto prompt = static_cast<uint32_t>(r->prompt.size());
  if (!e.tokens.empty()) {
    const uint32_t first = e.first_position - prompt;
    const auto have = static_cast<uint32_t>(r->answer.size());
    // The first attempt's tokens come one after the other; a later attempt's begin anew and must be the same.
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < e.tokens.size(); ++i) {
      const uint32_t at = first + i;
      if (at < r->answer.size()) {
        if (r->answer[at] != e.tokens[i] && violation_.empty())
          violation_ = fmt::format("request {} got another token at {} when it was computed again", r->what.index, at);
      } else if (at == r->answer.size()) {
        r->answer.push_back(e.tokens[i]);
        ++fresh;
      } else if (violation_.empty()) {
        violation_ = fmt::format("request {} got token {} after {}", r->what.index, at, r->answer.size());
      }
    }
    if (fresh > 0) {
      if (have == 0) r->out.first_token = world_.now();
      tokens_ += fresh;
      log_.record(happened::request_tokens(world_.now(), r->front, r->what.index, r->attempt, have, fresh));
    }
  }
  if (!e.done) return;
  r->out.cached = e.cached_tokens;
  r->out.drafted += e.drafted;
  r->out.accepted += e.accepted;
  if (e.failure == errc{}) {
    if (r->answer.size() != r->out.wanted && violation_.empty())
      violation_ = fmt::format("request {} ended with {} of {} tokens", r->what.index, r->answer.size(), r->out.wanted);
    return end(r, true, {}, {});
  }
  const bool full = e.failure == errc::exhausted;
  again(r, std::max(options_.retry, nanoseconds(std::chrono::milliseconds(e.retry_after_ms))), e.failure,
        e.failure_text);
  if (full) ++r->out.refusals;
}

void load::again(const std::shared_ptr<request>& r, nanoseconds after, errc why, const std::string& text) {
  const bool full = why == errc::exhausted;
  const bool enough = full
                          ? world_.now() - r->out.arrival > options_.patience
                          : why == errc::invalid_argument || r->out.attempts - r->out.refusals >= options_.max_attempts;
  // Ended from the agenda, so that an actor's handler does not go on into the next request.
  ++r->attempt;
  later(after, [this, r, enough, why, text] {
    if (enough) return end(r, false, why, text);
    ++r->out.attempts;
    attempt(r);
  });
}

void load::end(const std::shared_ptr<request>& r, bool finished, errc why, const std::string& text) {
  if (open_.erase(r->what.index) == 0) return;
  r->out.end = world_.now();
  r->out.output = static_cast<uint32_t>(r->answer.size());
  r->out.finished = finished;
  r->out.failure = why;
  r->out.failure_text = text;
  uint64_t h = 14695981039346656037ull;
  for (auto t : r->answer) h = mix(h, static_cast<uint32_t>(t));
  r->out.tokens_hash = h;
  finished_ += finished ? 1 : 0;
  const auto how = finished ? request_end::finished : request_end::failed;
  if (finished)
    log_.record(happened::prefix_matched(world_.now(), r->front, r->what.index, r->chain.size(),
                                         r->out.cached / std::max(1u, world_.facts().window), r->out.input,
                                         r->out.cached));
  log_.record(happened::request_ended(world_.now(), r->front, r->what.index, how, r->out.output));
  outcomes_.push_back(r->out);
}

}  // namespace troupe::sim
