#include "runtime/gateway/routes.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/gateway/completion.hpp"

namespace troupe::gateway {

namespace {

using nlohmann::json;

struct route {
  const char* path;
  const char* method;
};
constexpr route routes[] = {{"/v1/models", "GET"},
                            {"/v1/completions", "POST"},
                            {"/v1/chat/completions", "POST"},
                            {"/health", "GET"},
                            {"/live", "GET"},
                            {"/ready", "GET"},
                            {"/version", "GET"},
                            {"/metrics", "GET"}};
constexpr std::string_view one_model = "/v1/models/";

/// A request id that is safe in logs and headers: what the client sent if it is, a fresh one otherwise.
std::string request_id(core& c, const std::string& sent) {
  bool good = !sent.empty() && sent.size() <= 128 && std::all_of(sent.begin(), sent.end(), [](char ch) {
    return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '-' || ch == '_' ||
           ch == '.' || ch == ':';
  });
  return good ? sent : c.draw_id();
}

/// Undoes percent-encoding; what is none stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      auto [end, ec] = std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
      if (ec == std::errc{} && end == text.data() + i + 3) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

/// The client of a request; nullptr when the key is missing or unknown.
const client* authenticate(const core& c, const std::string& authorization) {
  if (!c.keys) return &c.local;
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() <= scheme.size()) return nullptr;
  for (size_t i = 0; i < scheme.size(); ++i) {
    char ch = authorization[i];
    if (ch >= 'A' && ch <= 'Z') ch = static_cast<char>(ch - 'A' + 'a');
    if (ch != scheme[i]) return nullptr;
  }
  return c.keys->find(std::string_view(authorization).substr(scheme.size()));
}

http_response fault(const api_error& e, const std::string& id) {
  http_response r{e.status, "application/json", to_json(e), {{"X-Request-Id", id}}};
  if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

json model_entry(const core& c) {
  return {{"id", c.model},
          {"object", "model"},
          {"created", c.created},
          {"owned_by", "troupe"},
          {"max_model_len", c.gen.facts().max_context},
          {"vocab_size", c.gen.facts().vocabulary}};
}

http_response plain(const core& c, const std::string& path) {
  if (path == "/live") return {200, "application/json", R"({"status":"live"})", {}};
  if (path == "/version") return {200, "application/json", json({{"version", TROUPE_VERSION}}).dump(), {}};
  if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", c.registry.exposition(), {}};
  // /health and /ready: may clients be sent here?
  bool draining = c.draining.load();
  bool ready = !draining && c.gen.ready();
  return {ready ? 200u : 503u,
          "application/json",
          fmt::format(R"({{"status":"{}"}})", ready      ? "ready"
                                              : draining ? "draining"
                                                         : "starting"),
          {}};
}

}  // namespace

std::string route_name(const std::string& path) {
  for (const route& r : routes) {
    if (path == r.path) return path;
  }
  return path.starts_with(one_model) ? "/v1/models/{id}" : "other";
}

std::shared_ptr<exchange_user> dispatch(const std::shared_ptr<core>& shared, const std::shared_ptr<exchange>& out,
                                        http_request request) {
  core& c = *shared;
  std::string id = request_id(c, request.request_id);
  const std::string& path = request.path;
  bool model_path = path.starts_with(one_model);
  auto known = std::find_if(std::begin(routes), std::end(routes), [&](const route& r) { return path == r.path; });
  auto answer = [&](const api_error& e) {
    out->respond(fault(e, id));
    return nullptr;
  };
  if (known == std::end(routes) && !model_path)
    return answer({404, "there is no such path", "invalid_request_error", "", "not_found", 0});
  const char* method = model_path ? "GET" : known->method;
  if (request.method != method) {
    http_response r = fault(
        {405, fmt::format("this path wants {}", method), "invalid_request_error", "", "method_not_allowed", 0}, id);
    r.headers.emplace_back("Allow", method);
    out->respond(std::move(r));
    return nullptr;
  }
  if (!path.starts_with("/v1/")) {
    http_response r = plain(c, path);
    r.headers.emplace_back("X-Request-Id", id);
    out->respond(std::move(r));
    return nullptr;
  }
  const client* who = authenticate(c, request.authorization);
  if (who == nullptr) {
    c.metrics.rejected("auth");
    return answer({401, "the API key is missing or unknown; send it as `Authorization: Bearer KEY`",
                   "authentication_error", "", "invalid_api_key", 0});
  }
  if (path == "/v1/models" || model_path) {
    if (model_path && percent_decoded(path.substr(one_model.size())) != c.model) {
      return answer({404, "there is no such model here", "invalid_request_error", "model", "model_not_found", 0});
    }
    json body = model_path ? model_entry(c) : json({{"object", "list"}, {"data", json::array({model_entry(c)})}});
    out->respond({200, "application/json", body.dump(), {{"X-Request-Id", id}}});
    return nullptr;
  }
  return completion::start(shared, out, std::move(request), *who, std::move(id), path == "/v1/chat/completions");
}

}  // namespace troupe::gateway
