#include "runtime/gateway/api_request.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace troupe::gateway {

namespace {

using nlohmann::json;
using std::string;

template <class... Args>
tl::unexpected<api_error> bad(const string& param, fmt::format_string<Args...> f, Args&&... args) {
  return bad_field(param, fmt::format(f, std::forward<Args>(args)...));
}

/// Reads fields one by one and keeps the first error.
class fields {
 public:
  explicit fields(const json& body) : body_(body) {}

  /// The field, nullptr when it is absent or null (which OpenAI takes as absent).
  const json* get(const char* key) const {
    auto it = body_.find(key);
    return it == body_.end() || it->is_null() ? nullptr : &*it;
  }

  void boolean(const char* key, bool& out) {
    const json* v = get(key);
    if (v == nullptr) return;
    if (v->is_boolean())
      out = v->get<bool>();
    else
      wrong(key, "a boolean", *v);
  }

  std::optional<int64_t> integer(const char* key, int64_t low, int64_t high) {
    const json* v = get(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_number_integer()) {
      if (v->is_number())
        error(bad(key, "{} must be an integer from {} to {}, not {}", key, low, high, v->dump()));
      else
        wrong(key, "an integer", *v);
      return std::nullopt;
    }
    bool above =
        v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (above || v->get<int64_t>() < low || v->get<int64_t>() > high) {
      error(bad(key, "{} must be an integer from {} to {}, not {}", key, low, high, v->dump()));
      return std::nullopt;
    }
    return v->get<int64_t>();
  }

  void number(const char* key, double low, bool low_open, double high, float& out) {
    const json* v = get(key);
    if (v == nullptr) return;
    if (!v->is_number()) return wrong(key, "a number", *v);
    auto x = v->get<double>();
    if (!(low_open ? x > low : x >= low) || !(x <= high)) {
      return error(bad(key, "{} must be in {}{}, {}], not {}", key, low_open ? "(" : "[", low, high, v->dump()));
    }
    out = static_cast<float>(x);
  }

  void wrong(const string& param, const char* want, const json& have) {
    error(bad(param, "{} must be {}, not {}", param, want, have.type_name()));
  }
  void error(tl::unexpected<api_error> e) {
    if (!error_) error_ = std::move(e.value());
  }
  std::optional<api_error> first_error() { return std::move(error_); }

 private:
  const json& body_;
  std::optional<api_error> error_;
};

/// Nesting of brackets outside strings; a body that nests deeper than a request can is refused before it costs memory.
bool deeper_than(std::string_view text, size_t limit) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

/// Text of `content`: a string, or a list of {"type": "text", "text": ...} parts.
void read_content(fields& f, const json& content, const string& where, string& out) {
  if (content.is_string()) {
    out = content.get<string>();
    return;
  }
  if (!content.is_array()) return f.wrong(where, "a string or a list of parts", content);
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    string at = fmt::format("{}[{}]", where, i);
    if (!part.is_object()) return f.wrong(at, "an object", part);
    auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return f.error(bad(at + ".type", "{}.type must be a string", at));
    if (*type != "text")
      return f.error(bad(at + ".type", "{}.type: only text parts are supported, not {}", at, type->dump()));
    auto text = part.find("text");
    if (text == part.end() || !text->is_string()) return f.error(bad(at + ".text", "{}.text must be a string", at));
    out += text->get<string>();
  }
}

void read_message(fields& f, const json& m, const string& where, recipe::message& out) {
  if (!m.is_object()) return f.wrong(where, "an object", m);
  auto role = m.find("role");
  if (role == m.end() || !role->is_string()) return f.error(bad(where + ".role", "{}.role must be a string", where));
  if (*role == "system" || *role == "developer")
    out.from = recipe::role::system;
  else if (*role == "user")
    out.from = recipe::role::user;
  else if (*role == "assistant")
    out.from = recipe::role::assistant;
  else
    return f.error(
        bad(where + ".role", "{}.role: {} is not supported (system, developer, user, assistant)", where, role->dump()));
  if (auto calls = m.find("tool_calls");
      calls != m.end() && !calls->is_null() && !(calls->is_array() && calls->empty())) {
    return f.error(bad(where + ".tool_calls", "{}.tool_calls: tools are not supported", where));
  }
  auto content = m.find("content");
  if (content != m.end() && content->is_null() && out.from == recipe::role::assistant) return;  // as OpenAI: empty
  if (content == m.end()) return f.error(bad(where + ".content", "{}.content is missing", where));
  read_content(f, *content, where + ".content", out.content);
  if (auto prefix = m.find("prefix"); prefix != m.end() && !prefix->is_null()) {
    if (!prefix->is_boolean()) return f.wrong(where + ".prefix", "a boolean", *prefix);
    out.prefix = prefix->get<bool>();
  }
}

void read_messages(fields& f, api_request& r) {
  const json* list = f.get("messages");
  if (list == nullptr) return f.error(bad("messages", "messages is missing"));
  if (!list->is_array()) return f.wrong("messages", "a list", *list);
  if (list->empty()) return f.error(bad("messages", "messages is empty; at least one message is needed"));
  r.messages.resize(list->size());
  for (size_t i = 0; i < list->size(); ++i) read_message(f, (*list)[i], fmt::format("messages[{}]", i), r.messages[i]);
}

void read_ids(fields& f, const json& list, uint32_t vocabulary, api_request& r) {
  r.ids.emplace();
  r.ids->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const json& v = list[i];
    if (!v.is_number_integer())
      return f.error(bad("prompt", "prompt[{}] must be a token id, not {}", i, v.type_name()));
    auto id = v.is_number_unsigned() && v.get<uint64_t>() > INT32_MAX ? int64_t{-1} : v.get<int64_t>();
    if (id < 0 || id >= vocabulary) {
      return f.error(bad("prompt", "prompt[{}]: token id {} is outside the vocabulary of {}", i, v.dump(), vocabulary));
    }
    r.ids->push_back(static_cast<kernels::token_id>(id));
  }
}

void read_prompt(fields& f, uint32_t vocabulary, api_request& r) {
  const json* p = f.get("prompt");
  if (p == nullptr) return f.error(bad("prompt", "prompt is missing"));
  if (p->is_array() && !p->empty() && !(*p)[0].is_number()) {  // a list of prompts: one is fine
    for (size_t i = 0; i < p->size(); ++i) {
      const json& v = (*p)[i];
      if (!v.is_string() && !v.is_array())
        return f.error(bad("prompt", "prompt[{}] must be a string or a list of token ids, not {}", i, v.type_name()));
    }
    if (p->size() > 1)
      return f.error(bad("prompt", "prompt: one prompt per request is supported, not a list of {}", p->size()));
    p = &(*p)[0];
  }
  if (p->is_string())
    r.prompt_text = p->get<string>();
  else if (p->is_array())
    read_ids(f, *p, vocabulary, r);
  else
    return f.wrong("prompt", "a string or a list of token ids", *p);
  if (r.ids ? r.ids->empty() : r.prompt_text.empty())
    f.error(bad("prompt", "prompt is empty; at least one token is needed"));
}

void read_stop(fields& f, api_request& r) {
  const json* s = f.get("stop");
  if (s == nullptr) return;
  auto add = [&](const json& v, const string& where) {
    if (!v.is_string()) return f.wrong(where, "a string", v);
    const auto& text = v.get_ref<const string&>();
    if (text.empty() || text.size() > api_limits::stop_bytes) {
      return f.error(bad("stop", "{} must have 1 to {} bytes", where, api_limits::stop_bytes));
    }
    r.stop.push_back(text);
  };
  if (s->is_string()) return add(*s, "stop");
  if (!s->is_array()) return f.wrong("stop", "a string or a list of strings", *s);
  if (s->size() > api_limits::stops) return f.error(bad("stop", "stop: at most {} strings", api_limits::stops));
  for (size_t i = 0; i < s->size(); ++i) add((*s)[i], fmt::format("stop[{}]", i));
}

void read_logprobs(fields& f, api_request& r) {
  if (!r.chat) {
    if (auto n = f.integer("logprobs", 0, 20)) r.logprobs = static_cast<int32_t>(*n);
    return;
  }
  bool on = false;
  f.boolean("logprobs", on);
  if (on) r.logprobs = 0;
  if (auto n = f.integer("top_logprobs", 0, 20)) {
    if (!on && *n > 0) return f.error(bad("top_logprobs", "top_logprobs needs logprobs: true"));
    if (on) r.logprobs = static_cast<int32_t>(*n);
  }
}

void read_stream(fields& f, api_request& r) {
  f.boolean("stream", r.stream);
  const json* o = f.get("stream_options");
  if (o == nullptr) return;
  if (!o->is_object()) return f.wrong("stream_options", "an object", *o);
  if (!r.stream) return f.error(bad("stream_options", "stream_options needs stream: true"));
  fields options(*o);
  options.boolean("include_usage", r.include_usage);
  if (auto e = options.first_error()) {
    e->param = "stream_options." + e->param;
    e->message = "stream_options." + e->message;
    f.error(tl::unexpected<api_error>(std::move(*e)));
  }
}

/// Sampling fields of other servers: their neutral value is fine, any other would change the answer.
void refuse_other_samplers(fields& f) {
  constexpr std::pair<const char*, double> neutral[] = {{"min_p", 0},
                                                        {"top_a", 0},
                                                        {"epsilon_cutoff", 0},
                                                        {"eta_cutoff", 0},
                                                        {"typical_p", 1},
                                                        {"tfs", 1},
                                                        {"repetition_penalty", 1},
                                                        {"smoothing_factor", 0},
                                                        {"mirostat", 0},
                                                        {"no_repeat_ngram_size", 0},
                                                        {"dry_multiplier", 0}};
  for (auto [key, value] : neutral) {
    const json* v = f.get(key);
    if (v == nullptr) continue;
    if (!v->is_number())
      f.wrong(key, "a number", *v);
    else if (v->get<double>() != value)
      f.error(bad(key, "{}: only {} is supported, not {}", key, value, v->dump()));
  }
  bool beam = false;
  f.boolean("use_beam_search", beam);
  if (beam) f.error(bad("use_beam_search", "use_beam_search: true is not supported"));
  for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                          "logits_processors", "bad_words", "stop_token_ids", "allowed_token_ids"}) {
    if (const json* v = f.get(key); v != nullptr && !v->empty()) f.error(bad(key, "{} is not supported", key));
  }
}

/// Fields that would change the answer and that this server does not know how to honour.
void refuse_unsupported(fields& f) {
  auto one = [&](const char* key) {
    if (auto n = f.integer(key, 1, 128); n && *n != 1) f.error(bad(key, "{}: only 1 is supported, not {}", key, *n));
  };
  one("n");
  one("best_of");
  bool echo = false;
  f.boolean("echo", echo);
  if (echo) f.error(bad("echo", "echo: true is not supported"));
  for (const char* key : {"tools", "functions", "logit_bias"}) {
    if (const json* v = f.get(key); v != nullptr && !v->empty()) f.error(bad(key, "{} is not supported", key));
  }
  for (const char* key : {"frequency_penalty", "presence_penalty"}) {
    float x = 0;
    f.number(key, -2, false, 2, x);
    if (x != 0) f.error(bad(key, "{}: only 0 is supported", key));
  }
  refuse_other_samplers(f);
  if (const json* v = f.get("suffix"); v != nullptr && *v != "") f.error(bad("suffix", "suffix is not supported"));
  if (const json* v = f.get("response_format")) {
    if (!v->is_object())
      f.wrong("response_format", "an object", *v);
    else if (v->value("type", json()) != "text")
      f.error(bad("response_format", "response_format: only type text is supported"));
  }
  if (const json* v = f.get("thinking")) {
    if (!v->is_object())
      f.wrong("thinking", "an object", *v);
    else if (v->value("type", json()) != "disabled")
      f.error(bad("thinking", "thinking: only type disabled is supported"));
  }
}

}  // namespace

api_result<api_request> parse_request(std::string_view body, bool chat, uint32_t vocabulary,
                                      const sampling_defaults& defaults) {
  if (deeper_than(body, api_limits::json_depth))
    return bad("", "the body nests deeper than {} levels", api_limits::json_depth);
  json doc;
  try {
    doc = json::parse(body);
  } catch (const json::exception& e) {
    std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    if (size_t end = what.find("] "); what.starts_with("[json.") && end != what.npos) what.remove_prefix(end + 2);
    return bad("", "the body is not valid JSON: {}", what);
  }
  if (!doc.is_object()) return bad("", "the body must be a JSON object, not {}", doc.type_name());

  api_request r;
  r.chat = chat;
  r.temperature = defaults.temperature;
  r.top_p = defaults.top_p;
  r.top_k = defaults.top_k;
  fields f(doc);
  const json* model = f.get("model");
  if (model == nullptr) return bad("model", "model is missing");
  if (!model->is_string())
    f.wrong("model", "a string", *model);
  else
    r.model = model->get<string>();
  constexpr int64_t many = 1 << 30;
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {  // the newer name wins
    if (auto n = f.integer(key, 1, many)) r.max_tokens = static_cast<uint32_t>(*n);
  }
  if (auto n = f.integer("min_tokens", 0, many)) r.min_tokens = static_cast<uint32_t>(*n);
  if (r.max_tokens && r.min_tokens > *r.max_tokens) f.error(bad("min_tokens", "min_tokens is larger than max_tokens"));
  f.boolean("ignore_eos", r.ignore_eos);
  if (auto n = f.integer("priority", 0, 9)) r.priority = static_cast<uint8_t>(*n);
  f.number("temperature", 0, false, 2, r.temperature);
  f.number("top_p", 0, true, 1, r.top_p);
  if (auto n = f.integer("top_k", -1, many)) r.top_k = *n < 0 ? 0 : static_cast<uint32_t>(*n);
  // Up to 2^53 - 1: the answer says the seed, and JSON clients read larger numbers inexactly.
  if (auto seed = f.integer("seed", 0, (int64_t{1} << 53) - 1)) r.seed = static_cast<uint64_t>(*seed);
  read_logprobs(f, r);
  read_stop(f, r);
  read_stream(f, r);
  if (chat)
    read_messages(f, r);
  else
    read_prompt(f, vocabulary, r);
  refuse_unsupported(f);
  if (auto e = f.first_error()) return tl::unexpected<api_error>(std::move(*e));
  return r;
}

}  // namespace troupe::gateway
