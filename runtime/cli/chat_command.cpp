// troupe chat: a conversation with a running cluster over HTTP, streamed.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"
#include "runtime/cli/http_client.hpp"

namespace troupe::cli {
namespace {

struct chat_options : cluster_options {
  std::string url, once, system, model;
  uint32_t max_tokens = 256;
  double temperature = -1, top_p = -1;  // negative: the model's own
  int64_t seed = -1;
};

result<config::address> server_of(const chat_options& o, std::string& model) {
  if (o.url.empty()) {
    TROUPE_TRY(auto file, o.find());
    if (model.empty()) model = file.model;
    return config::parse_address(file.http);
  }
  return parse_base_url(o.url);
}

http_request request_to(const config::address& server) {
  http_request r;
  r.server = server;
  if (const char* key = std::getenv("TROUPE_API_KEY")) r.api_key = key;
  return r;
}

// Sends the conversation, prints the answer as it comes and returns it.
result<std::string> turn(const config::address& server, const chat_options& o, const std::string& model,
                         const nlohmann::json& messages) {
  nlohmann::json body{{"model", model}, {"messages", messages}, {"stream", true}, {"max_tokens", o.max_tokens}};
  if (o.temperature >= 0) body["temperature"] = o.temperature;
  if (o.top_p >= 0) body["top_p"] = o.top_p;
  if (o.seed >= 0) body["seed"] = o.seed;
  http_request r = request_to(server);
  r.target = "/v1/chat/completions";
  r.body = body.dump();
  std::string answer, broken;
  auto done = fetch_stream(r, [&](std::string_view data) {
    nlohmann::json chunk = nlohmann::json::parse(data, nullptr, false);
    if (chunk.is_object() && chunk.contains("error")) {
      broken = error_text({0, std::string(data)});
      return false;
    }
    if (!chunk.is_object() || !chunk.contains("choices") || chunk["choices"].empty()) return true;
    const nlohmann::json& delta = chunk["choices"][0].value("delta", nlohmann::json::object());
    if (delta.contains("content") && delta["content"].is_string()) {
      std::string text = delta["content"];
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
      answer += text;
    }
    return true;
  });
  std::fputc('\n', stdout);
  if (!done) return fail(done.error());
  if (done->status != 200)
    return fail(done->status == 503 || done->status == 429 ? errc::unavailable : errc::io, "{}", error_text(*done));
  if (!broken.empty()) return fail(errc::io, "the answer broke off: {}", broken);
  return answer;
}

int run(const chat_options& o) {
  std::string model = o.model;
  auto server = server_of(o, model);
  if (!server) return complain("chat", server.error().message, code_for(server.error()));
  if (model.empty()) {
    http_request r = request_to(*server);
    r.target = "/v1/models";
    auto models = fetch(r);
    if (!models) return complain("chat", models.error().message, code_for(models.error()));
    nlohmann::json j = nlohmann::json::parse(models->body, nullptr, false);
    if (models->status != 200 || !j.is_object() || !j.contains("data") || j["data"].empty())
      return complain("chat", error_text(*models), failed);
    model = j["data"][0].value("id", "");
  }
  nlohmann::json messages = nlohmann::json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  bool person = isatty(STDIN_FILENO) && o.once.empty();
  if (person) tell("{} at {}; an empty line or Ctrl-D ends\n", model, server->text());
  for (;;) {
    std::string line = o.once;
    if (o.once.empty()) {
      if (person) tell("> ");
      if (!std::getline(std::cin, line) || line.empty()) return ok;
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    auto answer = turn(*server, o, model, messages);
    if (!answer) return complain("chat", answer.error().message, code_for(answer.error()));
    messages.push_back({{"role", "assistant"}, {"content", *answer}});
    if (!o.once.empty()) return ok;
  }
}

}  // namespace

void add_chat(CLI::App& app, context& ctx) {
  auto o = std::make_shared<chat_options>();
  CLI::App* c = app.add_subcommand("chat", "Talk to a running cluster");
  o->add_to(*c);
  c->add_option("--url", o->url,
                "Address of the gateway, http://HOST:PORT (an IP address), instead of a cluster on this machine");
  c->add_option("--once", o->once, "Send this message, print the answer, end");
  c->add_option("--system", o->system, "System message");
  c->add_option("--model", o->model, "Model to ask for; the served one by default");
  c->add_option("--max-tokens", o->max_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  c->add_option("--temperature", o->temperature,
                "0 always takes the likeliest token; by default what the model asks for")
      ->check(CLI::Range(0.0, 2.0));
  c->add_option("--top-p", o->top_p, "Sample from the likeliest tokens of this total probability")
      ->check(CLI::Range(0.01, 1.0));
  c->add_option("--seed", o->seed, "Makes the answer repeatable");
  c->footer(
      "The API key, where one is needed, comes from TROUPE_API_KEY. Without --once, each line of stdin is a message.\n"
      "Examples:\n  troupe chat --once 'hello'\n  troupe chat --url http://127.0.0.1:8000 --temperature 0");
  c->callback([c, o, &ctx] {
    const bool nothing = c->count("--once") > 0 && o->once.empty();
    ctx.result = nothing ? complain("chat", "--once '': there is nothing to send", usage) : run(*o);
  });
}

}  // namespace troupe::cli
