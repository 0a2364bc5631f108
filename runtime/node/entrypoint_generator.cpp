#include "runtime/node/entrypoint_generator.hpp"

#include <atomic>
#include <condition_variable>

namespace troupe::node {
namespace {

// Turns the actor's events into the gateway's. If the entrypoint ends without a last event, the destructor sends one.
class sink final : public actors::client_sink {
 public:
  explicit sink(gateway::generator::on_event callback) : callback_(std::move(callback)) {}

  ~sink() override {
    if (done_) return;
    gateway::generate_event e;
    e.done = true;
    e.failure = errc::unavailable;
    e.failure_text = "the entrypoint ended before the request did";
    callback_(std::move(e));
  }

  void on_event(actors::client_event e) override {
    if (done_) return;
    done_ = e.done;
    gateway::generate_event out;
    out.first_position = e.first_position;
    out.tokens = std::move(e.tokens);
    out.logprobs = std::move(e.logprobs);
    out.top = std::move(e.top);
    out.done = e.done;
    out.finish = e.finish;
    out.usage = {e.prompt_tokens, e.completion_tokens, e.cached_tokens, e.drafted, e.accepted};
    out.failure = e.failure;
    out.failure_text = std::move(e.failure_text);
    callback_(std::move(out));
  }

 private:
  gateway::generator::on_event callback_;
  bool done_ = false;
};

void refuse(const gateway::generator::on_event& callback, errc code, std::string text) {
  gateway::generate_event e;
  e.done = true;
  e.failure = code;
  e.failure_text = std::move(text);
  callback(std::move(e));
}

}  // namespace

void entrypoint_generator::attach(actors::entrypoint_actor entrypoint) {
  std::lock_guard lock(mutex_);
  entrypoint_ = std::move(entrypoint);
}

actors::entrypoint_actor entrypoint_generator::current() const {
  std::lock_guard lock(mutex_);
  return entrypoint_;
}

std::vector<kv::block_hash> entrypoint_generator::blocks_of(std::string_view salt,
                                                            std::span<const kernels::token_id> prompt) const {
  if (!blocks_) return {};
  auto chain = kv::hash_chain(*blocks_, salt, std::vector<uint32_t>(prompt.begin(), prompt.end()));
  return chain ? std::move(*chain) : std::vector<kv::block_hash>{};
}

void entrypoint_generator::submit(gateway::generate_request r, on_event callback) {
  auto to = current();
  if (!to)
    return refuse(callback, errc::unavailable,
                  "this front process has no entrypoint: it has not joined its cluster, or is stopping");
  actors::client_submit m;
  m.id = std::move(r.id);
  m.tenant = std::move(r.tenant);
  m.salt = std::move(r.salt);
  m.traffic = static_cast<uint8_t>(r.traffic == gateway::traffic_class::agent ? kv::traffic_class::agent
                                                                              : kv::traffic_class::chatbot);
  m.priority = r.priority;
  m.cache = blocks_.has_value();
  m.chain = std::move(r.chain);
  m.prompt = std::move(r.prompt);
  m.sampling = r.sampling;
  m.stop = std::move(r.stop);
  m.speculate = r.speculate;
  m.sink = std::make_shared<sink>(std::move(callback));
  actors::post(to, std::move(m));
}

void entrypoint_generator::cancel(const std::string& id) {
  if (auto to = current()) actors::post(to, actors::client_cancel{id});
}

result<void> run_canary(gateway::generator& g, nanoseconds limit) {
  struct shared_state {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    uint32_t tokens = 0;
    errc failure{};
    std::string text;
  };
  static std::atomic<uint64_t> count{0};
  auto state = std::make_shared<shared_state>();
  gateway::generate_request r;
  r.id = "canary-" + std::to_string(count.fetch_add(1));
  r.tenant = "troupe";
  r.prompt = {g.facts().bos};
  r.sampling.temperature = 0;
  r.stop.max_tokens = 2;  // the first may come from a prefill rank, the second proves the decode ranks
  r.stop.ignore_eos = true;
  std::string id = r.id;
  g.submit(std::move(r), [state](gateway::generate_event e) {
    std::lock_guard lock(state->mutex);
    state->tokens += static_cast<uint32_t>(e.tokens.size());
    state->failure = e.failure;
    state->text = e.failure_text;
    state->done = e.done;
    if (e.done) state->changed.notify_all();
  });
  std::unique_lock lock(state->mutex);
  if (!state->changed.wait_for(lock, limit, [&] { return state->done; })) {
    lock.unlock();
    g.cancel(id);
    return fail(errc::timeout, "the canary request did not end in time");
  }
  if (state->failure != errc{}) return fail(state->failure, "the canary request failed: {}", state->text);
  if (state->tokens != 2)
    return fail(errc::internal, "the canary request brought {} tokens, 2 were asked for", state->tokens);
  return {};
}

}  // namespace troupe::node
