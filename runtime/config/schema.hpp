// The pieces that section tables are made of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/config/config.hpp"

namespace troupe::config {

/// One key of a section: how people see it, and how it is set and shown. `S` is the section's struct.
template <class S>
struct field {
  std::string name, type, default_text, bounds, meaning;
  bool is_path = false;                                     // relative values are made absolute by the loader
  std::function<result<void>(S&, const std::string&)> set;  // parses and checks bounds; the error has no position
  std::function<std::string(const S&)> show;                // text that `set` accepts
};

/// A section: its keys in the order in which they are explained.
template <class S>
struct section {
  std::string name, meaning;
  std::vector<field<S>> fields;

  void apply_defaults(S& s) const {
    for (const auto& f : fields) {
      auto ok = f.set(s, f.default_text);
      TROUPE_CHECK(ok, "{}.{}: the default is refused: {}", name, f.name, ok.error().message);
    }
  }
};

/// A whole number within [lowest, highest].
template <class S, class Base>
field<S> count(std::string name, uint32_t Base::*member, uint32_t value, uint32_t lowest, uint32_t highest,
               std::string unit, std::string meaning) {
  return {name,
          unit.empty() ? "number" : "number of " + unit,
          std::to_string(value),
          std::to_string(lowest) + " to " + std::to_string(highest),
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(uint64_t v, parse_count(text));
            if (v < lowest || v > highest)
              return fail(errc::invalid_argument, "{} is out of range; it must be {} to {}", v, lowest, highest);
            s.*member = static_cast<uint32_t>(v);
            return {};
          },
          [=](const S& s) { return std::to_string(s.*member); }};
}

/// A size with a unit, within [lowest, highest].
template <class S>
field<S> size(std::string name, uint64_t S::*member, uint64_t value, uint64_t lowest, uint64_t highest,
              std::string meaning) {
  return {name,
          "size",
          format_bytes(value),
          format_bytes(lowest) + " to " + format_bytes(highest),
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(uint64_t v, parse_bytes(text));
            if (v < lowest || v > highest) {
              return fail(errc::invalid_argument, "{} is out of range; it must be {} to {}", text, format_bytes(lowest),
                          format_bytes(highest));
            }
            s.*member = v;
            return {};
          },
          [=](const S& s) { return format_bytes(s.*member); }};
}

/// A duration with a unit, within [lowest, highest].
template <class S, class Owner = S>
field<S> duration(std::string name, std::chrono::nanoseconds Owner::*member, std::chrono::nanoseconds value,
                  std::chrono::nanoseconds lowest, std::chrono::nanoseconds highest, std::string meaning) {
  return {name,
          "duration",
          format_duration(value),
          format_duration(lowest) + " to " + format_duration(highest),
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            TROUPE_TRY(auto v, parse_duration(text));
            if (v < lowest || v > highest) {
              return fail(errc::invalid_argument, "{} is out of range; it must be {} to {}", text,
                          format_duration(lowest), format_duration(highest));
            }
            s.*member = v;
            return {};
          },
          [=](const S& s) { return format_duration(s.*member); }};
}

/// true or false.
template <class S>
field<S> flag(std::string name, bool S::*member, bool value, std::string meaning) {
  return {name,
          "boolean",
          value ? "true" : "false",
          "true, false",
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            if (text != "true" && text != "false")
              return fail(errc::invalid_argument, "'{}' is not a boolean; write true or false", text);
            s.*member = text == "true";
            return {};
          },
          [=](const S& s) { return std::string(s.*member ? "true" : "false"); }};
}

/// One of a few words.
template <class S>
field<S> choice(std::string name, std::string S::*member, std::string value, std::vector<std::string> words,
                std::string meaning) {
  std::string list;
  for (const auto& w : words) list += (list.empty() ? "" : ", ") + w;
  return {name,
          "choice",
          value,
          list,
          std::move(meaning),
          false,
          [=](S& s, const std::string& text) -> result<void> {
            for (const auto& w : words) {
              if (w == text) return s.*member = text, result<void>{};
            }
            std::string near = nearest(text, words);
            return fail(errc::invalid_argument, "'{}' is not one of {}{}", text, list,
                        near.empty() ? "" : "; did you mean " + near + "?");
          },
          [=](const S& s) { return s.*member; }};
}

/// Text of at most 200 printable characters.
template <class S>
field<S> text(std::string name, std::string S::*member, std::string value, std::string meaning) {
  return {name,
          "text",
          value,
          "at most 200 printable characters",
          std::move(meaning),
          false,
          [=](S& s, const std::string& t) -> result<void> {
            if (t.size() > 200)
              return fail(errc::invalid_argument, "has {} characters, at most 200 are allowed", t.size());
            for (unsigned char c : t) {
              if (c < 0x20 || c == 0x7f) return fail(errc::invalid_argument, "holds a control character");
            }
            s.*member = t;
            return {};
          },
          [=](const S& s) { return s.*member; }};
}

/// A word that may be part of a path: 1 to 64 letters, digits, '.', '_' and '-', no '.' in front.
template <class S>
field<S> identifier(std::string name, std::string S::*member, std::string value, std::string meaning) {
  return {name,
          "name",
          value,
          "1 to 64 of letters, digits, `.`, `_`, `-`; not starting with `.`",
          std::move(meaning),
          false,
          [=](S& s, const std::string& t) -> result<void> {
            bool good = !t.empty() && t.size() <= 64 && t[0] != '.';
            for (char c : t)
              good &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                      c == '_' || c == '-';
            if (!good) {
              return fail(errc::invalid_argument,
                          "is not a name: 1 to 64 letters, digits, '.', '_' or '-' are allowed, not starting with '.'");
            }
            s.*member = t;
            return {};
          },
          [=](const S& s) { return s.*member; }};
}

/// A file or folder; existence is checked by whoever opens it.
template <class S>
field<S> path(std::string name, std::string S::*member, std::string meaning) {
  auto f = text<S>(std::move(name), member, "", std::move(meaning));
  f.type = "path";
  f.bounds = "relative paths start at the configuration file";
  f.is_path = true;
  return f;
}

/// HOST:PORT.
template <class S>
field<S> listen_address(std::string name, address S::*member, std::string value, std::string meaning) {
  return {name,
          "address",
          value,
          "IP:PORT; port 0 takes a free one",
          std::move(meaning),
          false,
          [=](S& s, const std::string& t) -> result<void> {
            TROUPE_TRY(s.*member, parse_address(t));
            return {};
          },
          [=](const S& s) { return (s.*member).text(); }};
}

/// The tables, one per section.
const section<cluster_section>& cluster_table();
const section<model_section>& model_table();
const section<director_section>& director_table();
const section<front_section>& front_table();
const section<prefill_section>& prefill_table();
const section<decode_section>& decode_table();
const section<engine_section>& engine_table();
const section<eplb_section>& eplb_table();
const section<transport_section>& transport_table();
const section<storage_section>& storage_table();
const section<cache_section>& cache_table();
const section<sim_section>& sim_table();
const section<log_section>& log_table();

/// Calls f(table, section struct) for every section of `s`, in the order in which they are explained.
template <class Settings, class F>
void for_each_section(Settings& s, F&& f) {
  f(cluster_table(), s.cluster);
  f(model_table(), s.model);
  f(director_table(), s.director);
  f(front_table(), s.front);
  f(prefill_table(), s.prefill);
  f(decode_table(), s.decode);
  f(engine_table(), s.engine);
  f(eplb_table(), s.eplb);
  f(transport_table(), s.transport);
  f(storage_table(), s.storage);
  f(cache_table(), s.cache);
  f(sim_table(), s.sim);
  f(log_table(), s.log);
}

}  // namespace troupe::config
