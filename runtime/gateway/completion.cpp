#include "runtime/gateway/completion.hpp"

#include <algorithm>
#include <charconv>

#include "runtime/base/log.hpp"

namespace troupe::gateway {

namespace {

constexpr uint32_t completion_default_tokens = 16;  // OpenAI's default for /v1/completions

http_response error_response(const api_error& e, http_headers headers) {
  http_response r{e.status, "application/json", to_json(e), std::move(headers)};
  if (e.retry_after > 0) r.headers.emplace_back("Retry-After", std::to_string(e.retry_after));
  return r;
}

const char* reason_name(const generate_event& last, bool stopped) {
  return !stopped && last.finish == kernels::finish_reason::length ? "length" : "stop";
}

}  // namespace

completion::completion(std::shared_ptr<core> shared, std::shared_ptr<exchange> out, const client& who,
                       std::string request_id, nanoseconds arrived)
    : core_(std::move(shared)),
      out_(std::move(out)),
      who_(who),
      request_id_(std::move(request_id)),
      arrived_(arrived) {}

completion::~completion() { release(); }

void completion::release() {
  if (counted_) core_->running.fetch_sub(1);
  counted_ = false;
}

http_headers completion::headers() const { return {{"X-Request-Id", request_id_}}; }

std::shared_ptr<completion> completion::start(std::shared_ptr<core> shared, std::shared_ptr<exchange> out,
                                              http_request request, const client& who, std::string request_id,
                                              bool chat) {
  core& c = *shared;
  // Counted first, then compared: two connections cannot both take the last place, and a drain sees every admitted one.
  uint32_t before = c.running.fetch_add(1);
  auto self = std::make_shared<completion>(shared, out, who, std::move(request_id), request.arrived);
  auto turn_away = [&](const char* reason, api_error e) -> std::shared_ptr<completion> {
    c.metrics.rejected(reason);
    self->refuse(e);
    return nullptr;
  };
  if (c.draining.load())
    return turn_away("draining", {503, "the server is shutting down", "server_error", "", "draining", 5});
  if (!c.gen.ready())
    return turn_away("not_ready", {503, "the model is not ready yet", "server_error", "", "not_ready", 5});
  if (before >= c.opts.max_requests) {
    return turn_away("overload", {429, fmt::format("{} requests are running, that is the limit; try again", before),
                                  "rate_limit_error", "", "overloaded", 1});
  }
  if (!request.last_event_id.empty()) {
    const auto& text = request.last_event_id;
    uint32_t position = 0;
    auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), position);
    if (ec != std::errc{} || end != text.data() + text.size() || self->request_id_ != request.request_id) {
      self->refuse(
          {400,
           "Last-Event-ID goes with the X-Request-Id of the answer that is to go on, and is the id of its last "
           "event that came",
           "invalid_request_error", "", "bad_last_event_id", 0});
      return nullptr;
    }
    self->delivered_ = position;
  }
  self->id_ = fmt::format("{}.{}", self->request_id_, c.requests.fetch_add(1));
  c.on_encoder([self, body = std::move(request.body), chat] {
    api_result<prepared> p;
    try {
      p = prepare(*self->core_, body, chat, self->who_);
    } catch (const std::exception& e) {  // out of memory on a huge body, say: this request fails, the server goes on
      p = tl::unexpected<api_error>(
          from_failure(errc::internal, fmt::format("preparing the request failed: {}", e.what())));
    }
    self->out_->post([self, p = std::move(p)]() mutable { self->on_prepared(std::move(p)); });
  });
  return self;
}

api_result<completion::prepared> completion::prepare(core& shared, const std::string& body, bool chat,
                                                     const client& who) {
  const kernels::model_facts& facts = shared.gen.facts();
  auto request = parse_request(body, chat, facts.vocabulary, shared.opts.sampling);
  if (!request) return tl::unexpected(std::move(request.error()));
  const char* field = chat ? "messages" : "prompt";
  if (request->model != shared.model) {
    api_error e{404, fmt::format("the model `{}` does not exist; this server has `{}`", request->model.substr(0, 200),
                                 shared.model)};
    e.param = "model";
    e.code = "model_not_found";
    return tl::unexpected(std::move(e));
  }
  prepared p;
  if (request->ids) {
    p.prompt = std::move(*request->ids);
  } else {
    auto ids = chat ? shared.recipe->chat(request->messages, {}, who.salt)
                    : shared.recipe->prompt(request->prompt_text, who.salt);
    if (!ids) return bad_field(field, ids.error().message);
    p.prompt = std::move(*ids);
  }
  const uint64_t context = facts.max_context, used = p.prompt.size();
  auto too_long = [&](const std::string& what) {
    return bad_field(field, fmt::format("this model's maximum context length is {} tokens; {}", context, what),
                     "context_length_exceeded");
  };
  if (used >= context) return too_long(fmt::format("the prompt alone has {}", used));
  const uint64_t room = context - used;
  if (request->max_tokens && *request->max_tokens > room) {
    return too_long(fmt::format("the request asks for {} ({} in the prompt, {} in the completion)",
                                used + *request->max_tokens, used, *request->max_tokens));
  }
  uint64_t otherwise = !chat                                 ? completion_default_tokens
                       : shared.opts.default_max_tokens != 0 ? shared.opts.default_max_tokens
                                                             : room;
  otherwise = std::max<uint64_t>(otherwise, request->min_tokens);
  p.max_tokens = static_cast<uint32_t>(request->max_tokens ? *request->max_tokens : std::min(otherwise, room));
  if (request->min_tokens > p.max_tokens) {
    return bad_field("min_tokens", fmt::format("min_tokens is {}, but the context leaves room for {}",
                                               request->min_tokens, p.max_tokens));
  }
  p.request = std::move(*request);
  p.chain = shared.gen.blocks_of(who.salt, p.prompt);
  return p;
}

void completion::refuse(const api_error& e) {
  ended_ = true;
  release();
  if (!gone_) out_->respond(error_response(e, headers()));
}

void completion::on_prepared(api_result<prepared> p) {
  if (gone_) {
    ended_ = true;
    release();
    return;
  }
  if (!p) return refuse(p.error());
  request_ = std::move(p->request);
  prompt_tokens_ = static_cast<uint32_t>(p->prompt.size());
  seed_ = request_.seed ? *request_.seed : core::seed_of(who_.tenant, request_id_);
  writer_.emplace(
      api_writer::facts{request_.chat, (request_.chat ? "chatcmpl-" : "cmpl-") + request_id_, wall_seconds(),
                        core_->model, core_->gen.facts().fingerprint, seed_, request_.logprobs, request_.include_usage},
      core_->recipe->tokens());
  answer_.emplace(core_->recipe->tokens(), std::move(request_.stop), request_.min_tokens, request_.logprobs >= 0);
  if (!request_.stream || delivered_ < prompt_tokens_) delivered_ = -1;
  first_sent_ = delivered_ >= 0;

  generate_request g;
  g.id = id_;
  g.tenant = who_.tenant;
  g.salt = who_.salt;
  g.traffic = who_.traffic;
  g.priority = std::min(request_.priority.value_or(who_.priority), who_.priority);
  g.prompt = std::move(p->prompt);
  g.chain = std::move(p->chain);
  g.sampling = {request_.temperature, request_.top_p, request_.top_k, seed_, request_.logprobs};
  g.stop.max_tokens = p->max_tokens;
  g.stop.min_tokens = request_.min_tokens;
  g.stop.ignore_eos = request_.ignore_eos;
  submitted_ = true;
  core_->metrics.waiting.add(1);
  core_->gen.submit(std::move(g), [self = shared_from_this()](generate_event e) {
    auto* out = self->out_.get();
    out->post([self, e = std::move(e)]() mutable { self->on_event(std::move(e)); });
  });
}

void completion::on_event(generate_event event) {
  if (ended_) return;
  measure(event);
  if (gone_) {
    if (event.done) account(event);
    return;
  }
  if (request_.stream && (out_->full() || !held_.empty())) {
    held_.push_back(std::move(event));
    return;
  }
  take(event);
}

void completion::on_room() {
  while (!held_.empty() && !ended_ && !gone_ && !out_->full()) {
    // All that has waited goes out as one chunk.
    generate_event all = std::move(held_.front());
    held_.pop_front();
    for (; !held_.empty(); held_.pop_front()) {
      generate_event& next = held_.front();
      all.tokens.insert(all.tokens.end(), next.tokens.begin(), next.tokens.end());
      all.logprobs.insert(all.logprobs.end(), next.logprobs.begin(), next.logprobs.end());
      all.top.insert(all.top.end(), std::make_move_iterator(next.top.begin()), std::make_move_iterator(next.top.end()));
      all.done = next.done;
      all.finish = next.finish;
      all.usage = next.usage;
      all.failure = next.failure;
      all.failure_text = std::move(next.failure_text);
    }
    take(all);
  }
}

void completion::measure(const generate_event& event) {
  auto seconds = [](nanoseconds d) { return std::chrono::duration<double>(d).count(); };
  nanoseconds now = core_->clock.now();
  auto& m = core_->metrics;
  size_t n = event.tokens.size();
  if (n > 0) {
    if (!got_token_) {
      got_token_ = true;
      m.waiting.add(-1);
      m.running.add(1);
      m.time_to_first_token.observe(seconds(now - arrived_));
    } else {
      double share = seconds(now - last_token_) / static_cast<double>(n);
      for (size_t i = 0; i < n; ++i) {
        m.inter_token.observe(share);
        m.time_per_output_token.observe(share);
      }
    }
    last_token_ = now;
  }
}

void completion::take(generate_event& event) {
  for (size_t i = 0; i < event.tokens.size() && !answer_->stopped(); ++i) {
    token_record r;
    r.token = event.tokens[i];
    if (i < event.logprobs.size()) r.logprob = event.logprobs[i];
    if (i < event.top.size()) r.top = std::move(event.top[i]);
    position_ = event.first_position + static_cast<uint32_t>(i);
    if (!answer_->add(std::move(r)) && !event.done) core_->gen.cancel(id_);
    if (position_ <= delivered_) drop_delivered();
  }
  if (event.done) return finish(event);
  emit();
}

// What was given out up to a token depends on the tokens only, so this is what the client has.
void completion::drop_delivered() {
  (void)answer_->take_text();
  (void)answer_->take_records();
}

void completion::emit() {
  std::string text = answer_->take_text();
  std::vector<token_record> records = answer_->take_records();
  if (!request_.stream) {
    text_ += text;
    records_.insert(records_.end(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
    return;
  }
  if (answer_->tokens() == 0) return;
  open_stream();
  if (!first_sent_) {
    first_sent_ = true;
    // Without an id: it holds no token.
    if (std::string first = writer_->first_chunk(); !first.empty()) out_->write(fmt::format("data: {}\n\n", first));
  }
  if (!text.empty() || !records.empty()) event_line(writer_->text_chunk(text, records));
}

void completion::open_stream() {
  if (streaming_) return;
  streaming_ = true;
  http_headers h = headers();
  h.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  h.emplace_back("Cache-Control", "no-cache");
  h.emplace_back("X-Accel-Buffering", "no");  // proxies must not collect a stream
  out_->begin_stream(h);
}

void completion::event_line(const std::string& json) {
  // The position of the last token taken: with it a client comes back by Last-Event-ID.
  if (answer_->tokens() > 0)
    out_->write(fmt::format("id: {}\ndata: {}\n\n", position_, json));
  else
    out_->write(fmt::format("data: {}\n\n", json));
}

void completion::on_silence() {
  if (!submitted_ || ended_ || gone_ || !request_.stream || out_->full()) return;
  open_stream();
  out_->write(": keep-alive\n\n");
}

void completion::finish(const generate_event& last) {
  const bool stopped = answer_->stopped();
  const bool failed = !stopped && (last.failure != errc{} || last.finish == kernels::finish_reason::error);
  account(last);
  if (failed) {
    errc code = last.failure != errc{} ? last.failure : errc::internal;
    api_error e = from_failure(code, last.failure_text.empty() ? "the model failed" : last.failure_text);
    if (e.status == 429) core_->metrics.rejected("overload");
    return fail_answer(e);
  }
  answer_->finish();
  if (request_.stream && answer_->tokens() > 0 && ++position_ <= delivered_) drop_delivered();
  const char* reason = reason_name(last, stopped);
  api_usage usage{prompt_tokens_, answer_->tokens(), std::min(last.usage.cached_tokens, prompt_tokens_)};
  emit();
  if (!request_.stream) {
    return out_->respond({200, "application/json", writer_->body(text_, records_, reason, usage), headers()});
  }
  open_stream();
  event_line(writer_->finish_chunk(reason));
  if (request_.include_usage) out_->write(fmt::format("data: {}\n\n", writer_->usage_chunk(usage)));
  out_->write("data: [DONE]\n\n");
  out_->end_stream();
}

void completion::fail_answer(const api_error& e) {
  if (!streaming_) return out_->respond(error_response(e, headers()));
  emit();                                                // tokens that came before the failure are the client's
  out_->write(fmt::format("data: {}\n\n", to_json(e)));  // and no [DONE]: this answer is not complete
  out_->end_stream();
}

void completion::account(const generate_event& last) {
  ended_ = true;
  auto& m = core_->metrics;
  (got_token_ ? m.running : m.waiting).add(-1);
  double seconds = std::chrono::duration<double>(core_->clock.now() - arrived_).count();
  const bool stopped = answer_->stopped();
  const char* end = "stop";
  if (gone_ || (!stopped && last.failure == errc::cancelled))
    end = "abort", m.finished_abort.add();
  else if (!stopped && (last.failure != errc{} || last.finish == kernels::finish_reason::error))
    end = "error", m.finished_error.add();
  else if (!stopped && last.finish == kernels::finish_reason::length)
    end = "length", m.finished_length.add();
  else
    m.finished_stop.add();
  uint32_t generated = std::max(last.usage.completion_tokens, answer_->tokens());
  uint32_t cached = std::min(last.usage.cached_tokens, prompt_tokens_);
  m.prompt_tokens.add(prompt_tokens_);
  m.generation_tokens.add(generated);
  m.prefix_queries.add(prompt_tokens_);
  m.prefix_hits.add(cached);
  m.draft_tokens.add(last.usage.drafted);
  m.accepted_tokens.add(last.usage.accepted);
  m.e2e_latency.observe(seconds);
  m.request_prompt_tokens.observe(prompt_tokens_);
  m.request_generation_tokens.observe(generated);
  log::info("request {} tenant {} end {} prompt {} cached {} generated {} seconds {:.3f}{}{}", id_, who_.tenant, end,
            prompt_tokens_, cached, generated, seconds, last.failure_text.empty() ? "" : ": ", last.failure_text);
  release();
}

void completion::on_client_gone() {
  if (ended_ || gone_) return;
  gone_ = true;
  core_->metrics.client_gone.add();
  bool done = !held_.empty() && held_.back().done;
  generate_event last = done ? std::move(held_.back()) : generate_event{};
  held_.clear();
  if (done) return account(last);
  if (submitted_) core_->gen.cancel(id_);
}

void completion::on_stop() {
  if (ended_ || gone_ || (!held_.empty() && held_.back().done)) return;
  // To the generator it is as if the client went: a last event that still comes accounts the usage.
  gone_ = true;
  held_.clear();
  if (submitted_) core_->gen.cancel(id_);
  fail_answer({503, "the server stopped before this answer was complete", "server_error", "", "stopped", 5});
}

}  // namespace troupe::gateway
