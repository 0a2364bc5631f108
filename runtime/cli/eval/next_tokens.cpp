#include "runtime/cli/eval/next_tokens.hpp"

#include <nlohmann/json.hpp>

namespace troupe::cli {

using json = nlohmann::ordered_json;

std::string to_line(const next_tokens& n) {
  return json{{"document", n.document}, {"tokens", n.tokens}, {"next", n.next}, {"nats", n.nats}, {"bytes", n.bytes}}
      .dump();
}

std::string next_tokens_header(const std::string& by, const std::string& model) {
  return json{{"format", "troupe-next-1"}, {"by", by}, {"model", model}}.dump();
}

result<next_comparison> next_comparison::open(const std::string& path) {
  next_comparison c(path);
  if (!c.in_) return fail(errc::io, "{}: cannot be read", path);
  std::string line;
  std::getline(c.in_, line);
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("format") || j["format"] != "troupe-next-1")
    return fail(errc::invalid_argument, "{}: the first line is not {{\"format\": \"troupe-next-1\", ...}}", path);
  if (j.contains("by") && j["by"].is_string()) c.by_ = j["by"];
  return c;
}

result<bool> next_comparison::read() {
  std::string line;
  if (!std::getline(in_, line) || line.empty()) return false;
  ++line_;
  auto bad = [&](const char* what) { return fail(errc::invalid_argument, "{}:{}: {}", path_, line_, what); };
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object()) return bad("not a JSON object");
  auto ids = [&](const char* name, std::vector<kernels::token_id>& to) {
    if (!j.contains(name) || !j[name].is_array()) return false;
    to.clear();
    for (const json& x : j[name]) {
      if (!x.is_number_integer()) return false;
      to.push_back(x.get<kernels::token_id>());
    }
    return true;
  };
  next_tokens n;
  if (!j.contains("document") || !j["document"].is_number_unsigned()) return bad("no document number");
  if (!ids("tokens", n.tokens) || !ids("next", n.next) || n.tokens.size() != n.next.size())
    return bad("tokens and next are not equally long lists of ids");
  if (!j.contains("nats") || !j["nats"].is_number()) return bad("no nats");
  n.document = j["document"];
  n.nats = j["nats"];
  n.bytes = j.contains("bytes") && j["bytes"].is_number_unsigned() ? j["bytes"].get<uint64_t>() : 0;
  if (line_ > 2 && n.document <= theirs_.document) return bad("document numbers do not ascend");
  theirs_ = std::move(n);
  return true;
}

result<void> next_comparison::add(const next_tokens& ours) {
  while (!have_ || theirs_.document < ours.document) {
    TROUPE_TRY(have_, read());
    if (!have_) return {};
  }
  if (theirs_.document > ours.document) return {};
  if (theirs_.tokens != ours.tokens) {
    ++total_.different;
    return {};
  }
  ++total_.documents;
  total_.positions += ours.next.size();
  for (size_t i = 0; i < ours.next.size(); ++i) total_.same += ours.next[i] == theirs_.next[i];
  total_.our_nats += ours.nats;
  total_.their_nats += theirs_.nats;
  total_.bytes += ours.bytes;
  return {};
}

}  // namespace troupe::cli
