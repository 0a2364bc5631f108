#include "runtime/gateway/api_response.hpp"

#include <nlohmann/json.hpp>

#include "runtime/recipe/utf8.hpp"

namespace troupe::gateway {

namespace {

using nlohmann::json;

std::string json_text(std::string_view text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

json usage_json(const api_usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.completion},
          {"total_tokens", u.prompt + u.completion},
          {"prompt_tokens_details", {{"cached_tokens", u.cached}}},
          {"prompt_cache_hit_tokens", u.cached},
          {"prompt_cache_miss_tokens", u.prompt - u.cached}};
}

json chat_token(const recipe::tokenizer& t, kernels::token_id id, float logprob) {
  std::string_view raw = t.bytes(id);
  json bytes = json::array();
  for (char c : raw) bytes.push_back(static_cast<uint8_t>(c));
  return {{"token", recipe::to_utf8(raw)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

json chat_logprobs(const recipe::tokenizer& t, const std::vector<token_record>& records) {
  json content = json::array();
  for (const token_record& r : records) {
    json entry = chat_token(t, r.token, r.logprob);
    entry["top_logprobs"] = json::array();
    for (const auto& alternative : r.top)
      entry["top_logprobs"].push_back(chat_token(t, alternative.token, alternative.logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json text_logprobs(const recipe::tokenizer& t, const std::vector<token_record>& records, bool alternatives) {
  json tokens = json::array(), values = json::array(), top = json::array(), offsets = json::array();
  for (const token_record& r : records) {
    tokens.push_back(recipe::to_utf8(t.bytes(r.token)));
    values.push_back(r.logprob);
    offsets.push_back(r.offset);
    json of_token = json::object();
    for (const auto& a : r.top) {
      // Tokens that are parts of characters look alike; the likelier one keeps the name.
      of_token.emplace(recipe::to_utf8(t.bytes(a.token)), a.logprob);
    }
    top.push_back(std::move(of_token));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", alternatives ? std::move(top) : json(nullptr)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

api_writer::api_writer(facts f, const recipe::tokenizer& tokens) : facts_(std::move(f)), tokens_(tokens) {
  head_ =
      fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},"seed":{},"choices":[)",
                  json_text(facts_.id), facts_.chat ? "chat.completion.chunk" : "text_completion", facts_.created,
                  json_text(facts_.model), json_text(facts_.fingerprint), facts_.seed);
  tail_ = facts_.include_usage ? R"(],"usage":null})" : "]}";
}

std::string api_writer::chunk(std::string_view choice) const { return fmt::format("{}{}{}", head_, choice, tail_); }

std::string api_writer::logprobs(const std::vector<token_record>& records) const {
  if (facts_.logprobs < 0 || records.empty()) return "null";
  json j = facts_.chat ? chat_logprobs(tokens_, records) : text_logprobs(tokens_, records, facts_.logprobs > 0);
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string api_writer::first_chunk() const {
  if (!facts_.chat) return "";
  return chunk(R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null})");
}

std::string api_writer::text_chunk(std::string_view text, const std::vector<token_record>& records) const {
  if (facts_.chat) {
    return chunk(fmt::format(R"({{"index":0,"delta":{{"content":{}}},"logprobs":{},"finish_reason":null}})",
                             json_text(text), logprobs(records)));
  }
  return chunk(
      fmt::format(R"({{"index":0,"text":{},"logprobs":{},"finish_reason":null}})", json_text(text), logprobs(records)));
}

std::string api_writer::finish_chunk(const char* reason) const {
  return chunk(fmt::format(R"({{"index":0,{},"logprobs":null,"finish_reason":"{}"}})",
                           facts_.chat ? R"("delta":{})" : R"("text":"")", reason));
}

std::string api_writer::usage_chunk(const api_usage& usage) const {
  return fmt::format(R"({}],"usage":{}}})", head_, usage_json(usage).dump());
}

std::string api_writer::body(const std::string& text, const std::vector<token_record>& records, const char* reason,
                             const api_usage& usage) const {
  json choice = {{"index", 0}, {"finish_reason", reason}, {"logprobs", nullptr}};
  if (facts_.logprobs >= 0) {
    choice["logprobs"] =
        facts_.chat ? chat_logprobs(tokens_, records) : text_logprobs(tokens_, records, facts_.logprobs > 0);
  }
  if (facts_.chat)
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  else
    choice["text"] = text;
  json doc = {{"id", facts_.id},
              {"object", facts_.chat ? "chat.completion" : "text_completion"},
              {"created", facts_.created},
              {"model", facts_.model},
              {"system_fingerprint", facts_.fingerprint},
              {"seed", facts_.seed},
              {"choices", json::array({std::move(choice)})},
              {"usage", usage_json(usage)}};
  return doc.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe::gateway
