#include "runtime/config/config.hpp"

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "runtime/config/schema.hpp"

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

const char* kind_name(const YAML::Node& n) {
  switch (n.Type()) {
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Null:
      return "nothing";
    default:
      return "a value";
  }
}

struct reader {
  loaded& out;
  std::string file, folder;

  void report(YAML::Mark mark, std::string key, std::string message) {
    bool known = mark.line >= 0;
    out.problems.push_back(
        {file, known ? mark.line + 1 : 0, known ? mark.column + 1 : 0, std::move(key), std::move(message)});
  }

  // Sets one key; `where` is the position of its value.
  template <class S>
  void set(const section<S>& table, S& values, const std::string& key, const YAML::Node& value, YAML::Mark key_mark) {
    std::string full = table.name + "." + key;
    std::vector<std::string> names;
    for (const auto& f : table.fields) {
      names.push_back(f.name);
      if (f.name != key) continue;
      YAML::Mark mark = value.Mark().is_null() ? key_mark : value.Mark();
      if (value.IsNull() && f.type != "text" && f.type != "path") {
        return report(key_mark, full, "has no value; expected " + f.type + ", e.g. " + f.default_text);
      }
      if (!value.IsScalar() && !value.IsNull()) {
        return report(mark, full,
                      std::string("is ") + kind_name(value) + "; expected " + f.type +
                          (f.default_text.empty() ? "" : ", e.g. " + f.default_text));
      }
      std::string text = value.IsNull() ? "" : value.Scalar();
      if (f.is_path && !text.empty()) text = (fs::path(folder) / text).lexically_normal().string();
      if (auto ok = f.set(values, text); !ok) report(mark, full, ok.error().message);
      return;
    }
    std::string near = nearest(key, names);
    std::string list;
    for (const auto& n : names) list += (list.empty() ? "" : ", ") + n;
    report(key_mark, full,
           near.empty() ? "unknown key; section " + table.name + " has: " + list
                        : "unknown key; did you mean " + near + "?");
  }

  void set_in(const std::string& section_name, const std::string& key, const YAML::Node& value, YAML::Mark mark) {
    bool found = false;
    for_each_section(out.values, [&](const auto& table, auto& values) {
      if (table.name == section_name) found = true, set(table, values, key, value, mark);
    });
    if (!found) unknown_section(section_name, mark);
  }

  void unknown_section(const std::string& name, YAML::Mark mark) {
    std::vector<std::string> names;
    std::string list;
    for_each_section(out.values, [&](const auto& table, auto&) {
      names.push_back(table.name);
      list += (list.empty() ? "" : ", ") + table.name;
    });
    std::string near = nearest(name, names);
    report(mark, name,
           near.empty() ? "unknown section; there are: " + list : "unknown section; did you mean " + near + "?");
  }

  void document(const YAML::Node& root) {
    if (root.IsNull()) return;
    if (!root.IsMap())
      return report(root.Mark(), "",
                    std::string("the file holds ") + kind_name(root) + "; expected sections, e.g. `model:`");
    std::set<std::string> seen;
    for (const auto& s : root) {
      std::string name = s.first.IsScalar() ? s.first.Scalar() : "?";
      if (!seen.insert(name).second) {
        report(s.first.Mark(), name, "the section appears twice");
        continue;
      }
      bool known = false;
      for_each_section(out.values, [&](const auto& table, auto&) { known |= table.name == name; });
      if (!known) {
        unknown_section(name, s.first.Mark());
      } else if (s.second.IsMap()) {
        std::set<std::string> keys;
        for (const auto& k : s.second) {
          std::string key = k.first.IsScalar() ? k.first.Scalar() : "?";
          if (!keys.insert(key).second)
            report(k.first.Mark(), name + "." + key, "the key appears twice");
          else
            set_in(name, key, k.second, k.first.Mark());
        }
      } else if (!s.second.IsNull()) {
        report(s.second.Mark(), name,
               std::string("is ") + kind_name(s.second) + "; expected keys, one a line, indented");
      }
    }
  }

  void override_with(const std::string& text) {
    size_t equals = text.find('='), dot = text.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
      return report(YAML::Mark::null_mark(), "",
                    "'" + text + "' is not an override; write SECTION.KEY=VALUE, e.g. front.listen=127.0.0.1:0");
    }
    set_in(text.substr(0, dot), text.substr(dot + 1, equals - dot - 1), YAML::Node(text.substr(equals + 1)),
           YAML::Mark::null_mark());
  }

  // Rules between keys.
  void cross_check() {
    const settings& s = out.values;
    auto rule = [&](bool ok, const char* key, std::string message) {
      if (!ok) report(YAML::Mark::null_mark(), key, std::move(message));
    };
    rule(!s.model.path.empty(), "model.path", "is required: the folder of the checkpoint");
    rule(s.director.listen.loopback(), "director.listen",
         "'" + s.director.listen.text() +
             "' is not a loopback address: the actor network is neither encrypted nor authenticated in this version");
    rule(
        s.front.listen.loopback() || !s.front.api_keys.empty(), "front.listen",
        "'" + s.front.listen.text() + "' is reachable from other machines; set front.api_keys, or listen on 127.0.0.1");
    rule(s.front.listen.port + s.front.count - 1 <= 65535, "front.count", "front.listen leaves too few ports above it");
    rule(s.cluster.connection_timeout >= 3 * s.cluster.heartbeat, "cluster.connection_timeout",
         "must be at least three times cluster.heartbeat");
    rule(s.cluster.lost_after >= 3 * s.cluster.heartbeat, "cluster.lost_after",
         "must be at least three times cluster.heartbeat");
    auto ranks = [&](const ranks_section& r, const std::string& name) {
      rule(r.ranks % r.ep == 0, (name + ".ep").c_str(),
           fmt::format("{} does not divide {}.ranks, which is {}", r.ep, name, r.ranks));
      rule(r.max_chunk <= r.max_context, (name + ".max_chunk").c_str(),
           fmt::format("is larger than {}.max_context", name));
    };
    ranks(s.prefill, "prefill");
    ranks(s.decode, "decode");
    if (s.cluster.role_changes) {
      rule(s.prefill.ep == 1, "prefill.ep", "must be 1 with cluster.role_changes");
      rule(s.prefill.ranks > 0, "prefill.ranks", "must not be 0 with cluster.role_changes");
      rule(s.decode.ep == 1 || s.decode.ep == s.decode.ranks, "decode.ep",
           "must be 1 or decode.ranks with cluster.role_changes");
    }
    rule(s.engine.kind != "cost" || !s.engine.cost_model.empty(), "engine.cost_model",
         "is needed where engine.kind is cost, e.g. sim/cost/v41-flash.yaml");
    rule(s.storage.low_mark <= s.storage.high_mark, "storage.low_mark", "is above storage.high_mark");
    rule(s.storage.nodes == 0 || s.storage.nodes * s.storage.disks >= s.storage.data + s.storage.parity,
         "storage.nodes", "times storage.disks is less than storage.data + storage.parity");
    rule(s.storage.nodes == 0 || !s.storage.path.empty(), "storage.path", "is needed where storage.nodes is not 0");
    rule(s.cache.read_at_least <= s.cache.read_at_most, "cache.read_at_least", "is above cache.read_at_most");
    rule(s.storage.chunk % 4096 == 0, "storage.chunk", "is not a multiple of 4KiB");
    rule(s.storage.chunk <= s.storage.capacity, "storage.chunk", "is larger than storage.capacity");
  }
};

std::string yaml_scalar(const std::string& type, const std::string& text) {
  if (type != "text" && type != "name" && type != "path" && type != "address") return text;
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

template <class S>
std::string explain_field(const section<S>& table, const field<S>& f) {
  return fmt::format("{}.{}\n    {}\n    type {}, default {}, allowed: {}\n", table.name, f.name, f.meaning, f.type,
                     f.default_text.empty() ? "empty" : f.default_text, f.bounds);
}

}  // namespace

std::string problem::text() const {
  std::string where = file;
  if (line > 0) where += fmt::format(":{}:{}", line, column);
  return where + ": " + (key.empty() ? "" : key + ": ") + message;
}

loaded read_text(const std::string& text, const std::string& name, const std::string& folder,
                 const std::vector<std::string>& overrides) {
  loaded out;
  reader r{out, name, folder};
  try {
    r.document(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    r.report(e.mark, "", "not valid YAML: " + e.msg);
    return out;
  }
  r.file = "--set";
  r.folder = "";
  for (const auto& o : overrides) {
    r.folder = fs::current_path().string();
    r.override_with(o);
  }
  r.file = name;
  if (out.problems.empty()) r.cross_check();
  return out;
}

loaded read(const std::string& file, const std::vector<std::string>& overrides) {
  std::ifstream in(file, std::ios::binary);
  std::error_code ec;
  if (!in || fs::is_directory(file, ec)) {
    loaded out;
    out.problems.push_back(
        {file, 0, 0, "", "cannot be read; is it the path of a configuration file, such as configs/local.yaml?"});
    return out;
  }
  std::string text{std::istreambuf_iterator<char>(in), {}};
  return read_text(text, file, fs::absolute(file).parent_path().string(), overrides);
}

result<settings> load(const std::string& file, const std::vector<std::string>& overrides) {
  loaded l = read(file, overrides);
  if (l.problems.empty()) return std::move(l.values);
  std::string all;
  for (const auto& p : l.problems) all += (all.empty() ? "" : "\n") + p.text();
  return fail(error{errc::invalid_argument, all});
}

std::string print(const settings& s) {
  std::string out;
  for_each_section(s, [&](const auto& table, const auto& values) {
    out += table.name + ":\n";
    for (const auto& f : table.fields) out += "  " + f.name + ": " + yaml_scalar(f.type, f.show(values)) + "\n";
  });
  return out;
}

result<std::string> explain(std::string_view topic) {
  std::string out;
  std::vector<std::string> names;
  settings s;
  for_each_section(s, [&](const auto& table, auto&) {
    names.push_back(table.name);
    bool whole = topic.empty() || topic == table.name;
    if (whole) out += fmt::format("{}{}: {}\n\n", out.empty() ? "" : "\n", table.name, table.meaning);
    for (const auto& f : table.fields) {
      std::string full = table.name + "." + f.name;
      names.push_back(full);
      if (whole || topic == full) out += explain_field(table, f);
    }
  });
  if (!out.empty()) return out;
  if (topic.ends_with(".yaml") || topic.ends_with(".yml"))
    return fail(errc::not_found, "'{}' looks like a file: give it with -c", topic);
  std::string near = nearest(topic, names);
  return fail(errc::not_found, "there is no section or key '{}'{}", topic,
              near.empty() ? "; `troupe config --explain` lists all" : "; did you mean " + near + "?");
}

std::string markdown() {
  std::string out =
      "# Configuration\n\nGenerated by `troupe config --markdown`; a test fails when it is out of date. Unknown keys, "
      "wrong types, values without a\n"
      "unit and values out of range are errors that name file, line, column and key. Any key can be overridden on the "
      "command\nline: "
      "`--set SECTION.KEY=VALUE`.\n";
  settings s;
  for_each_section(s, [&](const auto& table, auto&) {
    out += fmt::format("\n## {}\n\n{}\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n",
                       table.name, table.meaning);
    for (const auto& f : table.fields) {
      out += fmt::format("| `{}` | {} | {} | {} | {} |\n", f.name, f.type,
                         f.default_text.empty() ? "empty" : "`" + f.default_text + "`", f.bounds, f.meaning);
    }
  });
  return out;
}

}  // namespace troupe::config
