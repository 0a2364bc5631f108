#include "tests/gateway/scripted_generator.hpp"

#include <algorithm>

namespace troupe::gateway::testing {

namespace {
constexpr kernels::token_id first_byte = 3;  // tests/recipe/make_tiny_tokenizer.py
}

std::vector<kernels::token_id> byte_tokens(std::string_view text) {
  std::vector<kernels::token_id> ids;
  for (char c : text) ids.push_back(first_byte + static_cast<uint8_t>(c));
  return ids;
}

script echo(const generate_request& request) {
  script s;
  s.tokens = byte_tokens("You said: ");
  for (auto id : request.prompt) {
    if (id >= first_byte && id < first_byte + 256) s.tokens.push_back(id);
  }
  s.tokens.push_back(1);
  s.cached = static_cast<uint32_t>(request.prompt.size() / 2);
  return s;
}

scripted_generator::scripted_generator(playwright p, uint32_t max_context) : write_(std::move(p)) {
  facts_.name = "tiny-v41";
  facts_.fingerprint = "f00d";
  facts_.vocabulary = 512;
  facts_.max_context = max_context;
  thread_ = std::thread([this] { run(); });
}

scripted_generator::~scripted_generator() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool scripted_generator::ready() const {
  std::lock_guard lock(mutex_);
  return ready_;
}

void scripted_generator::set_ready(bool ready) {
  std::lock_guard lock(mutex_);
  ready_ = ready;
}

void scripted_generator::submit(generate_request request, on_event callback) {
  script s = write_(request);
  {
    std::lock_guard lock(mutex_);
    seen_.push_back(request);
    std::string id = request.id;
    plays_.emplace(id, play{std::move(request), std::move(callback), std::move(s)});
    ++generation_;
  }
  changed_.notify_all();
}

void scripted_generator::cancel(const std::string& id) {
  {
    std::lock_guard lock(mutex_);
    auto it = plays_.find(id);
    if (it == plays_.end() || it->second.cancel) return;
    it->second.cancel = true;
    ++cancelled_;
    ++generation_;
  }
  changed_.notify_all();
}

void scripted_generator::allow(size_t events) {
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, p] : plays_) p.allowed += events;
    ++generation_;
  }
  changed_.notify_all();
}

generate_event scripted_generator::next_event(play& p) {
  const auto& sampling = p.request.sampling;
  const auto& stop = p.request.stop;
  const auto prompt = static_cast<uint32_t>(p.request.prompt.size());
  generate_event e;
  e.first_position = prompt + static_cast<uint32_t>(p.given);
  e.usage = {prompt, 0, p.what.cached, 0, 0};
  if (p.cancel) {
    e.done = true;
    e.failure = errc::cancelled;
  }
  for (size_t i = 0; i < p.what.per_event && !e.done; ++i) {
    bool out = p.what.tokens.empty() || (!p.what.endless && p.given == p.what.tokens.size());
    if (out) {
      e.done = true;
      e.failure = p.what.failure;
      e.failure_text = p.what.failure_text;
      e.finish = e.failure == errc{} ? kernels::finish_reason::stop : kernels::finish_reason::none;
      break;
    }
    auto token = p.what.tokens[p.given % p.what.tokens.size()];
    e.tokens.push_back(token);
    if (sampling.logprobs >= 0) {
      e.logprobs.push_back(-0.25f);
      auto& top = e.top.emplace_back();
      for (int k = 0; k < sampling.logprobs; ++k) top.push_back({(token + k) % 512, -0.25f - static_cast<float>(k)});
    }
    ++p.given;
    ++tokens_;
    bool whole = !p.what.endless && p.given == p.what.tokens.size() && p.what.failure == errc{};
    if (whole || p.given >= stop.max_tokens) {
      e.done = true;
      e.finish = whole && (p.given < stop.max_tokens || token == 1) ? kernels::finish_reason::stop
                                                                    : kernels::finish_reason::length;
    }
  }
  e.usage.completion_tokens = static_cast<uint32_t>(p.given);
  return e;
}

void scripted_generator::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    size_t before = generation_;
    bool any = false;
    std::vector<std::string> ids;
    for (const auto& [id, p] : plays_) ids.push_back(id);
    for (const std::string& id : ids) {
      auto it = plays_.find(id);
      play& p = it->second;
      if (p.what.gated && !p.cancel) {
        if (p.allowed == 0) continue;
        --p.allowed;
      }
      any = true;
      generate_event e = next_event(p);
      bool done = e.done;
      on_event callback = p.callback;
      if (done) plays_.erase(it);
      lock.unlock();
      callback(std::move(e));
      callback = nullptr;
      lock.lock();
      changed_.notify_all();
    }
    if (!any) changed_.wait(lock, [&] { return stop_ || generation_ != before; });
  }
}

std::vector<generate_request> scripted_generator::seen() const {
  std::lock_guard lock(mutex_);
  return seen_;
}
size_t scripted_generator::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}
size_t scripted_generator::active() const {
  std::lock_guard lock(mutex_);
  return plays_.size();
}
uint64_t scripted_generator::tokens_given() const {
  std::lock_guard lock(mutex_);
  return tokens_;
}

bool scripted_generator::wait(const std::function<bool()>& condition, std::chrono::seconds limit) {
  nanoseconds end = steady_clock().now() + limit;
  while (!condition()) {
    if (steady_clock().now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace troupe::gateway::testing
