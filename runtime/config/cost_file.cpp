#include "runtime/config/cost_file.hpp"

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "runtime/config/cost_sheet.hpp"
#include "runtime/config/schema.hpp"

namespace troupe::config {
namespace {

constexpr const char* format_name = "troupe-cost-1";

struct reader {
  loaded_cost& out;
  std::string file;

  void report(YAML::Mark mark, std::string key, std::string message) {
    const bool known = mark.line >= 0;
    out.problems.push_back(
        {file, known ? mark.line + 1 : 0, known ? mark.column + 1 : 0, std::move(key), std::move(message)});
  }

  // A value that must be a scalar; empty text where it is not, reported.
  std::string scalar(const YAML::Node& n, const std::string& key, const std::string& want) {
    if (n.IsScalar()) return n.Scalar();
    report(n.Mark(), key, "is not a value; expected " + want);
    return "";
  }

  // All keys of a map by the table of its section.
  template <class S>
  void map(const YAML::Node& n, const section<S>& table, S& values, const std::string& path) {
    if (!n.IsMap()) return report(n.Mark(), path, "expected keys, one a line, indented");
    std::set<std::string> seen;
    for (const auto& entry : n) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?", full = path + "." + key;
      if (!seen.insert(key).second) {
        report(entry.first.Mark(), full, "the key appears twice");
        continue;
      }
      std::vector<std::string> names;
      bool found = false;
      for (const auto& f : table.fields) {
        names.push_back(f.name);
        if (f.name != key) continue;
        found = true;
        if (!entry.second.IsScalar()) {
          report(entry.second.Mark(), full, "is not a value; expected " + f.type);
        } else if (auto ok = f.set(values, entry.second.Scalar()); !ok) {
          report(entry.second.Mark(), full, ok.error().message);
        }
      }
      if (!found) unknown(entry.first.Mark(), full, key, names);
    }
  }

  void unknown(YAML::Mark mark, const std::string& full, const std::string& key,
               const std::vector<std::string>& names) {
    const std::string near = config::nearest(key, names);
    std::string list;
    for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
    report(mark, full, near.empty() ? "unknown key; there are: " + list : "unknown key; did you mean " + near + "?");
  }

  template <class S>
  void list(const YAML::Node& n, const section<S>& table, std::vector<S>& values, const std::string& path) {
    if (!n.IsSequence()) return report(n.Mark(), path, "expected a list of maps");
    for (size_t i = 0; i < n.size(); ++i) {
      S value;
      table.apply_defaults(value);
      map(n[i], table, value, fmt::format("{}[{}]", path, i));
      values.push_back(std::move(value));
    }
  }

  template <class T, class Parse>
  void scalars(const YAML::Node& n, const std::string& path, const char* want, std::vector<T>& values, Parse parse) {
    if (!n.IsSequence()) return report(n.Mark(), path, fmt::format("expected a list of {}", want));
    for (size_t i = 0; i < n.size(); ++i) {
      const std::string key = fmt::format("{}[{}]", path, i);
      const std::string text = scalar(n[i], key, want);
      if (!n[i].IsScalar()) continue;
      if (auto v = parse(text); v)
        values.push_back(static_cast<T>(*v));
      else
        report(n[i].Mark(), key, v.error().message);
    }
  }

  void measured(const YAML::Node& n, policies::measured_table& t, const std::string& path) {
    if (!n.IsMap()) return report(n.Mark(), path, "expected rows, context and time");
    for (const auto& entry : n) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?", full = path + "." + key;
      if (key == "rows") {
        scalars(entry.second, full, "numbers of rows", t.rows, parse_rows);
      } else if (key == "context") {
        scalars(entry.second, full, "numbers of tokens", t.context,
                [](const auto& s) { return config::parse_count(s); });
      } else if (key == "time") {
        if (!entry.second.IsSequence()) {
          report(entry.second.Mark(), full, "expected one list of durations per context");
          continue;
        }
        for (size_t i = 0; i < entry.second.size(); ++i)
          scalars(entry.second[i], fmt::format("{}[{}]", full, i), "durations", t.ns,
                  [](const auto& s) -> result<uint64_t> {
                    TROUPE_TRY(auto d, config::parse_duration(s));
                    return static_cast<uint64_t>(d.count());
                  });
      } else {
        unknown(entry.first.Mark(), full, key, {"rows", "context", "time"});
      }
    }
    if (t.context.empty()) t.context.push_back(0);
  }

  static result<uint32_t> parse_rows(const std::string& s) {
    TROUPE_TRY(uint64_t v, config::parse_count(s));
    if (v == 0 || v > 1u << 30)
      return fail(errc::invalid_argument, "{} is out of range; it must be 1 to {}", v, 1u << 30);
    return static_cast<uint32_t>(v);
  }

  void document(const YAML::Node& root) {
    if (!root.IsMap()) return report(root.Mark(), "", "expected keys, e.g. `format: troupe-cost-1`");
    cost_sheet sheet;
    bool versioned = false;
    std::set<std::string> seen;
    policies::cost_model& m = out.model;
    for (const auto& entry : root) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?";
      const YAML::Node& value = entry.second;
      if (!seen.insert(key).second) {
        report(entry.first.Mark(), key, "the key appears twice");
      } else if (key == "format") {
        versioned = true;
        if (scalar(value, key, format_name) != format_name && value.IsScalar())
          report(value.Mark(), key,
                 fmt::format("'{}' is not a format of this version; it reads {}", value.Scalar(), format_name));
      } else if (key == "name") {
        m.name = scalar(value, key, "a name");
      } else if (key == "source") {
        m.source = scalar(value, key, "text");
      } else if (key == "hardware") {
        map(value, hardware_table(), sheet.hardware, key);
      } else if (key == "efficiency") {
        map(value, efficiency_table(), sheet.efficiency, key);
      } else if (key == "fixed") {
        map(value, fixed_table(), sheet.fixed, key);
      } else if (key == "model") {
        map(value, cost_model_table(), sheet.model, key);
      } else if (key == "kv") {
        map(value, kv_table(), m.kv, key);
      } else if (key == "skew") {
        map(value, skew_table(), m.skew, key);
      } else if (key == "tokens") {
        map(value, tokens_table(), m, key);
      } else if (key == "acceptance") {
        acceptance(value, key);
      } else if (key == "fabrics") {
        list(value, fabric_table(), m.fabrics, key);
      } else if (key == "points") {
        list(value, point_table(), m.points, key);
      } else if (key == "measured") {
        if (!value.IsMap()) {
          report(value.Mark(), key, "expected chunk, decode, draft");
          continue;
        }
        for (const auto& t : value) {
          const std::string name = t.first.IsScalar() ? t.first.Scalar() : "?";
          if (name == "chunk")
            measured(t.second, m.rates.chunk, "measured.chunk");
          else if (name == "decode")
            measured(t.second, m.rates.decode, "measured.decode");
          else if (name == "draft")
            measured(t.second, m.rates.draft, "measured.draft");
          else
            unknown(t.first.Mark(), "measured." + name, name, {"chunk", "decode", "draft"});
        }
      } else {
        unknown(entry.first.Mark(), key, key,
                {"format", "name", "source", "hardware", "efficiency", "fixed", "model", "kv", "skew", "tokens",
                 "acceptance", "fabrics", "points", "measured"});
      }
    }
    if (!versioned) report(root.Mark(), "format", fmt::format("is missing; write format: {}", format_name));
    if (m.name.empty()) report(root.Mark(), "name", "is missing");
    if (m.acceptance.chance_permille.empty()) m.acceptance.chance_permille = {0};
    if (m.fabrics.empty()) m.fabrics.push_back({"alone", 1, 1'000'000'000, 1'000'000'000});
    if (!out.problems.empty()) return;
    fill_rates(sheet, m.rates);
    if (auto ok = policies::check_model(m); !ok) report(YAML::Mark::null_mark(), "", ok.error().message);
  }

  void acceptance(const YAML::Node& n, const std::string& path) {
    policies::acceptance_model& a = out.model.acceptance;
    if (!n.IsMap()) return report(n.Mark(), path, "expected block and chance");
    for (const auto& entry : n) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "?", full = path + "." + key;
      if (key == "block") {
        const std::string text = scalar(entry.second, full, "number of drafts");
        if (auto v = config::parse_count(text); v && *v <= 16)
          a.block = static_cast<uint32_t>(*v);
        else
          report(entry.second.Mark(), full, v ? "is out of range; it must be 0 to 16" : v.error().message);
      } else if (key == "chance") {
        scalars(entry.second, full, "fractions", a.chance_permille, [](const std::string& s) -> result<uint32_t> {
          TROUPE_TRY(const uint32_t v, parse_fraction(s));
          return v / 1000;
        });
      } else {
        unknown(entry.first.Mark(), full, key, {"block", "chance"});
      }
    }
  }
};

}  // namespace

loaded_cost read_cost_text(const std::string& text, const std::string& name) {
  loaded_cost out;
  reader r{out, name};
  try {
    r.document(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    r.report(e.mark, "", "not valid YAML: " + e.msg);
  }
  return out;
}

loaded_cost read_cost(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::error_code ec;
  if (!in || std::filesystem::is_directory(file, ec)) {
    loaded_cost out;
    out.problems.push_back(
        {file, 0, 0, "", "cannot be read; is it the path of a cost model, such as configs/sim/cost/v41-flash.yaml?"});
    return out;
  }
  return read_cost_text({std::istreambuf_iterator<char>(in), {}}, file);
}

result<std::shared_ptr<const policies::cost_model>> load_cost_model(const std::string& file) {
  loaded_cost l = read_cost(file);
  if (l.problems.empty()) return std::make_shared<const policies::cost_model>(std::move(l.model));
  std::string all;
  for (const auto& p : l.problems) all += (all.empty() ? "" : "\n") + p.text();
  return fail(error{errc::invalid_argument, all});
}

result<cost_check> check_cost_file(const std::string& file) {
  TROUPE_TRY(const auto model, load_cost_model(file));
  cost_check out;
  out.model = *model;
  for (const policies::cost_point& p : model->points) {
    auto r = policies::check_point(*model, p);
    if (!r) return fail(r.error().code, "{}: {}", file, r.error().message);
    out.within = out.within && r->within;
    out.points.emplace_back(p, *r);
  }
  return out;
}

}  // namespace troupe::config
