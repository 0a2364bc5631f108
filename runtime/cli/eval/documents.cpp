#include "runtime/cli/eval/documents.hpp"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace troupe::cli {

using kernels::measure::document;

document_reader::document_reader(std::string path, std::ifstream in, const recipe::recipe& text)
    : path_(std::move(path)), in_(std::move(in)), text_(&text), json_(path_.ends_with(".jsonl")) {}

result<document_reader> document_reader::open(const std::string& path, const recipe::recipe& text) {
  std::ifstream in(path, std::ios::binary);
  if (!in || in.peek() == std::ifstream::traits_type::eof())
    return fail(errc::io, "{}: {}", path, in ? "is empty" : std::strerror(errno));
  return document_reader(path, std::move(in), text);
}

result<bool> document_reader::read_line(std::string& line) {
  line.clear();
  std::streambuf& from = *in_.rdbuf();
  for (int c; (c = from.sbumpc()) != std::char_traits<char>::eof();) {
    if (c == '\n') return ++line_, true;
    if (line.size() >= longest_line)
      return fail(errc::invalid_argument, "{}:{}: the line is longer than {} bytes", path_, line_ + 1, longest_line);
    line += static_cast<char>(c);
  }
  if (line.empty()) return false;
  return ++line_, true;
}

result<std::optional<document>> document_reader::next() {
  std::string line;
  if (json_) {
    for (;;) {
      TROUPE_TRY(const bool more, read_line(line));
      if (!more) return std::optional<document>();
      if (line.find_first_not_of(" \t\r") != std::string::npos) break;
    }
    TROUPE_TRY(document d, from_json(line));
    return std::optional<document>(std::move(d));
  }
  std::string text = std::exchange(kept_, {});
  for (;;) {
    TROUPE_TRY(const bool more, read_line(line));
    if (!more) break;
    line += '\n';
    if (!text.empty() && text.size() + line.size() > text_document) {
      kept_ = std::move(line);
      break;
    }
    text += line;
  }
  if (text.empty()) return std::optional<document>();
  TROUPE_TRY(document d, from_text(text));
  return std::optional<document>(std::move(d));
}

result<document> document_reader::from_text(const std::string& text) {
  document d;
  d.number = documents_++;
  d.bytes = text.size();
  const auto& tokens = text_->tokens();
  if (auto bos = tokens.added(recipe::spelling(recipe::chat_token::bos))) d.tokens.push_back(*bos);
  TROUPE_TRY(auto ids, tokens.encode(text, recipe::added_tokens::plain));
  d.tokens.insert(d.tokens.end(), ids.begin(), ids.end());
  if (auto eos = tokens.added(recipe::spelling(recipe::chat_token::eos))) d.tokens.push_back(*eos);
  return d;
}

result<document> document_reader::from_json(const std::string& line) {
  auto bad = [&](const std::string& what) {
    return fail(
        errc::invalid_argument,
        "{}:{}: {}; a line is {{\"messages\": [{{\"role\": ..., \"content\": ...}}, ...]}} or {{\"text\": ...}}", path_,
        line_, what);
  };
  const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
  if (!j.is_object()) return bad("not a JSON object");
  if (j.contains("text")) {
    if (!j["text"].is_string()) return bad("text is not a string");
    return from_text(j["text"].get<std::string>());
  }
  if (!j.contains("messages") || !j["messages"].is_array() || j["messages"].empty())
    return bad("it has neither a text nor messages");
  std::vector<recipe::message> messages;
  document d;
  for (const nlohmann::json& m : j["messages"]) {
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string() || !m.contains("content") ||
        !m["content"].is_string())
      return bad("a message lacks role or content");
    const std::string role = m["role"];
    recipe::message& out = messages.emplace_back();
    if (role == "system")
      out.from = recipe::role::system;
    else if (role == "user")
      out.from = recipe::role::user;
    else if (role == "assistant")
      out.from = recipe::role::assistant;
    else
      return bad("role '" + role + "' is not system, user or assistant");
    out.content = m["content"];
    d.bytes += out.content.size();
  }
  const bool answered = messages.back().from == recipe::role::assistant;
  TROUPE_TRY(d.tokens, text_->chat(messages, {}, ""));
  // The rendering is ready for the next answer; a conversation that ends with one stops behind it.
  if (answered) d.tokens.resize(d.tokens.size() - 2);
  d.number = documents_++;
  const auto& tokens = text_->tokens();
  const auto assistant = tokens.added(recipe::spelling(recipe::chat_token::assistant));
  const auto eos = tokens.added(recipe::spelling(recipe::chat_token::eos));
  // Texts of users and answers are encoded without special tokens, so that these are the turns.
  for (uint32_t i = 0; i + 2 < d.tokens.size(); ++i)
    if (d.tokens[i] == *assistant) d.answers.push_back(i + 2);
  for (uint32_t a : d.answers) {
    uint32_t end = a;
    while (end < d.tokens.size() && d.tokens[end] != *eos) ++end;
    d.ends.push_back(std::min<uint32_t>(end + 1, static_cast<uint32_t>(d.tokens.size())));
  }
  return d;
}

result<std::vector<document>> read_documents(const std::string& path, const recipe::recipe& text, size_t most) {
  TROUPE_TRY(document_reader reader, document_reader::open(path, text));
  std::vector<document> out;
  while (out.size() < most) {
    TROUPE_TRY(auto d, reader.next());
    if (!d) break;
    out.push_back(std::move(*d));
  }
  return out;
}

}  // namespace troupe::cli
