#include "runtime/recipe/chat.hpp"

namespace troupe::recipe {

const char* spelling(chat_token token) {
  switch (token) {
    case chat_token::bos:
      return "<｜begin▁of▁sentence｜>";
    case chat_token::eos:
      return "<｜end▁of▁sentence｜>";
    case chat_token::system:
      return "<｜System｜>";
    case chat_token::user:
      return "<｜User｜>";
    case chat_token::assistant:
      return "<｜Assistant｜>";
    case chat_token::think:
      return "<think>";
    case chat_token::end_think:
      return "</think>";
  }
  return "";
}

namespace {

std::string effort_line(effort e) {
  int level = e == effort::low ? 50 : e == effort::high ? 75 : 100;
  return fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                     level);
}

struct writer {
  std::vector<segment> out;
  void token(chat_token t) { out.push_back({true, t, {}}); }
  void text(const std::string& t) {
    if (t.empty()) return;
    if (!out.empty() && !out.back().is_token)
      out.back().text += t;
    else
      out.push_back({false, chat_token::bos, t});
  }
};

}  // namespace

result<std::vector<segment>> render(const std::vector<message>& messages, const chat_options& options) {
  if (messages.empty()) return fail(errc::invalid_argument, "messages: at least one message is needed");
  writer w;
  w.token(chat_token::bos);
  if (options.thinking && messages[0].from != role::system) {
    w.token(chat_token::system);
    w.text(effort_line(options.reasoning));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const message& m = messages[i];
    bool last = i + 1 == messages.size();
    if (m.prefix && (!last || m.from != role::assistant)) {
      return fail(errc::invalid_argument, "messages[{}].prefix: only a last message of the assistant can be continued",
                  i);
    }
    switch (m.from) {
      case role::system:
        w.token(chat_token::system);
        if (i == 0 && options.thinking) w.text(effort_line(options.reasoning));
        w.text(m.content);
        break;
      case role::user:
        if (i > 0 && messages[i - 1].from == role::user)
          w.text("\n\n");
        else
          w.token(chat_token::user);
        w.text(m.content);
        break;
      case role::assistant:
        w.token(chat_token::assistant);
        if (m.prefix && options.thinking) w.token(chat_token::think);
        // An empty answer to continue, in thinking mode: the model has not thought yet.
        if (!m.prefix || !options.thinking || !m.content.empty()) w.token(chat_token::end_think);
        w.text(m.content);
        if (m.prefix) return std::move(w.out);
        w.token(chat_token::eos);
        break;
    }
  }
  w.token(chat_token::assistant);
  w.token(options.thinking ? chat_token::think : chat_token::end_think);
  return std::move(w.out);
}

std::string to_text(const std::vector<segment>& segments) {
  std::string text;
  for (const segment& s : segments) {
    if (s.is_token)
      text += spelling(s.token);
    else
      text += s.text;
  }
  return text;
}

}  // namespace troupe::recipe
