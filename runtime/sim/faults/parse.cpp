// Fault plans from and to YAML.
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "runtime/config/units.hpp"
#include "runtime/sim/faults/kinds.hpp"

namespace troupe::sim {
namespace {

using trigger = fault_trigger::what;

// Walks a document; every error has file, line, column and the key's path.
class plan_reader {
 public:
  explicit plan_reader(const std::string& file) : file_(file) {}

  tl::unexpected<error> bad(const YAML::Node& at, const std::string& key, const std::string& what) const {
    const auto mark = at.Mark();
    return fail(errc::invalid_argument, "{}:{}:{}: {}{}{}", file_, mark.line + 1, mark.column + 1, key,
                key.empty() ? "" : ": ", what);
  }

  // Scalars. `set` is called with the text; its error gets the place.
  template <class F>
  result<void> scalar(const YAML::Node& value, const std::string& key, F set) const {
    if (!value.IsScalar()) return bad(value, key, "one value expected");
    if (auto ok = set(value.Scalar()); !ok) return bad(value, key, ok.error().message);
    return {};
  }
  result<void> duration(const YAML::Node& value, const std::string& key, nanoseconds& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      TROUPE_TRY(out, config::parse_duration(t));
      return {};
    });
  }
  result<void> number(const YAML::Node& value, const std::string& key, uint64_t most, uint64_t& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      TROUPE_TRY(out, config::parse_count(t));
      if (out > most) return fail(errc::invalid_argument, "{}: at most {} expected", t, most);
      return {};
    });
  }
  result<void> small(const YAML::Node& value, const std::string& key, uint32_t& out) const {
    uint64_t v = 0;
    if (auto ok = number(value, key, UINT32_MAX, v); !ok) return ok;
    out = static_cast<uint32_t>(v);
    return {};
  }
  result<void> flag(const YAML::Node& value, const std::string& key, bool& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      if (t != "true" && t != "false") return fail(errc::invalid_argument, "'{}': true or false expected", t);
      out = t == "true";
      return {};
    });
  }
  result<void> text(const YAML::Node& value, const std::string& key, size_t most, std::string& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      if (t.empty() || t.size() > most) return fail(errc::invalid_argument, "1 to {} characters expected", most);
      out = t;
      return {};
    });
  }
  result<void> target(const YAML::Node& value, const std::string& key, fault_target& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      TROUPE_TRY(out, parse_target(t));
      return {};
    });
  }

  // Calls `each(key, value, path)` for the members of a map, each key once.
  template <class F>
  result<void> map(const YAML::Node& node, const std::string& path, F each) const {
    if (!node.IsMap()) return bad(node, path, "keys with values expected");
    std::set<std::string> seen;
    for (const auto& m : node) {
      if (!m.first.IsScalar()) return bad(m.first, path, "a key expected");
      const std::string key = m.first.Scalar();
      if (!seen.insert(key).second) return bad(m.first, path + key, "is given twice");
      if (m.second.IsNull()) return bad(m.first, path + key, "has no value");
      if (auto ok = each(key, m.second, m.first); !ok) return ok;
    }
    return {};
  }

  result<void> unknown(const YAML::Node& at, const std::string& path, const std::string& key,
                       const std::vector<std::string>& known) const {
    std::string list;
    for (const auto& k : known) list += (list.empty() ? "" : ", ") + k;
    const auto near = config::nearest(key, known);
    return bad(at, path + key,
               near.empty() ? "unknown key; there are: " + list : "unknown key; did you mean " + near + "?");
  }

  result<void> when(const YAML::Node& node, const std::string& path, fault_trigger& out) const {
    bool chosen = false;
    const auto choose = [&](trigger what, const YAML::Node& at) -> result<void> {
      if (chosen) return bad(at, path, "one condition expected, these are two");
      chosen = true, out.on = what;
      return {};
    };
    if (auto ok =
            map(node, path + ".",
                [&](const std::string& key, const YAML::Node& v, const YAML::Node& at) -> result<void> {
                  const std::string full = path + "." + key;
                  if (key == "submitted" || key == "finished") {
                    if (auto ok = choose(key == "submitted" ? trigger::submitted : trigger::finished, at); !ok)
                      return ok;
                    return number(v, full, UINT64_MAX, out.count);
                  }
                  if (key == "began" || key == "ended") {
                    if (auto ok = choose(key == "began" ? trigger::fault_began : trigger::fault_ended, at); !ok)
                      return ok;
                    return text(v, full, 64, out.name);
                  }
                  if (key == "busy") {
                    if (auto ok = choose(trigger::busy, at); !ok) return ok;
                    return scalar(v, full, [&](const std::string& t) -> result<void> {
                      TROUPE_TRY(out.role, parse_node_role(t));
                      if (out.count == 0) out.count = 1;
                      return {};
                    });
                  }
                  if (key == "requests") return number(v, full, UINT64_MAX, out.count);
                  return unknown(at, path + ".", key, {"submitted", "finished", "busy", "requests", "began", "ended"});
                });
        !ok)
      return ok;
    if (!chosen) return bad(node, path, "a condition expected: submitted, finished, busy, began or ended");
    if (node["requests"] && out.on != trigger::busy)
      return bad(node["requests"], path + ".requests", "belongs to busy only");
    return {};
  }

  result<void> one(const YAML::Node& node, const std::string& path, fault& f) const {
    if (!node.IsMap())
      return bad(node, path, "a fault is a map of keys, e.g. {kind: kill, target: storage/0, at: 10s}");
    const YAML::Node kind = node["kind"];
    if (!kind) return bad(node, path, "has no `kind`");
    if (auto ok = scalar(kind, path + ".kind",
                         [&](const std::string& t) -> result<void> {
                           TROUPE_TRY(f.kind, parse_fault_kind(t));
                           return {};
                         });
        !ok)
      return ok;
    const auto& row = row_of(f.kind);
    bool at_given = false, when_given = false, after_given = false;
    if (auto ok = map(node, path + ".",
                      [&](const std::string& key, const YAML::Node& v, const YAML::Node& at) -> result<void> {
                        const std::string full = path + "." + key;
                        if (key == "kind") return {};
                        if (key == "name") return text(v, full, 64, f.name);
                        if (key == "at") return at_given = true, duration(v, full, f.when.at);
                        if (key == "after") return after_given = true, duration(v, full, f.when.at);
                        if (key == "when") return when_given = true, when(v, full, f.when);
                        if (has_word(row.keys, key)) {
                          if (key == "target") return target(v, full, f.target);
                          if (key == "peer") return target(v, full, f.peer);
                          if (key == "one_way") return flag(v, full, f.one_way);
                          if (key == "silent") return flag(v, full, f.silent);
                          if (key == "lasts") return duration(v, full, f.lasts);
                          if (key == "period") return duration(v, full, f.period);
                          if (key == "factor") return small(v, full, f.factor);
                          if (key == "permille") return small(v, full, f.permille);
                          return jump(v, full, f.jump_ns);
                        }
                        std::vector<std::string> known{"name", "kind", "at", "when", "after"};
                        for (const char* k :
                             {"target", "peer", "one_way", "silent", "lasts", "period", "factor", "permille", "jump"}) {
                          if (has_word(row.keys, k))
                            known.emplace_back(k);
                          else if (key == k)
                            return bad(at, full, std::string(row.name) + " has no such key");
                        }
                        return unknown(at, path + ".", key, known);
                      });
        !ok)
      return ok;
    if (at_given == when_given) return bad(node, path, "either `at` (a time) or `when` (a condition) expected");
    if (after_given && !when_given) return bad(node["after"], path + ".after", "belongs to `when`; write `at`");
    return {};
  }

  result<void> jump(const YAML::Node& value, const std::string& key, int64_t& out) const {
    return scalar(value, key, [&](const std::string& t) -> result<void> {
      const bool back = !t.empty() && t[0] == '-';
      TROUPE_TRY(const auto d, config::parse_duration(back ? std::string_view(t).substr(1) : std::string_view(t)));
      out = back ? -d.count() : d.count();
      return {};
    });
  }

  result<fault_plan> plan(const YAML::Node& root) const {
    fault_plan out;
    std::vector<std::string> names;
    if (auto ok = map(root, "",
                      [&](const std::string& key, const YAML::Node& v, const YAML::Node& at) -> result<void> {
                        if (key == "name") return text(v, key, 64, out.name);
                        if (key == "why") return text(v, key, 4'000, out.why);
                        if (key == "seed") return number(v, key, UINT64_MAX, out.seed);
                        if (key == "recover_within") return duration(v, key, out.recover_within);
                        if (key != "faults")
                          return unknown(at, "", key, {"name", "why", "seed", "recover_within", "faults"});
                        if (!v.IsSequence()) return bad(v, key, "a list of faults expected");
                        for (size_t i = 0; i < v.size(); ++i) {
                          fault f;
                          const std::string path = "faults[" + std::to_string(i) + "]";
                          if (auto ok = one(v[i], path, f); !ok) return ok;
                          if (f.name.empty()) f.name = std::string(to_string(f.kind)) + "-" + std::to_string(i);
                          for (const auto& other : out.faults)
                            if (other.name == f.name)
                              return bad(v[i], path + ".name", "another fault is called " + f.name);
                          out.faults.push_back(std::move(f));
                        }
                        return {};
                      });
        !ok)
      return fail(ok.error());
    return out;
  }

 private:
  std::string file_;
};

void print_when(YAML::Emitter& out, const fault_trigger& w) {
  if (w.on == trigger::time) {
    out << YAML::Key << "at" << YAML::Value << config::format_duration(w.at);
    return;
  }
  out << YAML::Key << "when" << YAML::Value << YAML::Flow << YAML::BeginMap;
  switch (w.on) {
    case trigger::submitted:
      out << YAML::Key << "submitted" << YAML::Value << w.count;
      break;
    case trigger::finished:
      out << YAML::Key << "finished" << YAML::Value << w.count;
      break;
    case trigger::busy:
      out << YAML::Key << "busy" << YAML::Value << to_string(w.role) << YAML::Key << "requests" << YAML::Value
          << w.count;
      break;
    case trigger::fault_began:
      out << YAML::Key << "began" << YAML::Value << w.name;
      break;
    default:
      out << YAML::Key << "ended" << YAML::Value << w.name;
      break;
  }
  out << YAML::EndMap;
  if (w.at > nanoseconds(0)) out << YAML::Key << "after" << YAML::Value << config::format_duration(w.at);
}

}  // namespace

result<fault_plan> parse_fault_plan(const std::string& text, const std::string& file) {
  if (text.size() > 16u << 20) return fail(errc::invalid_argument, "{}: more than 16 MiB", file);
  try {
    const auto root = YAML::Load(text);
    if (root.IsNull()) return fail(errc::invalid_argument, "{}:1:1: the file is empty; `faults:` expected", file);
    return plan_reader(file).plan(root);
  } catch (const YAML::Exception& e) {  // not YAML
    return fail(errc::invalid_argument, "{}:{}:{}: {}", file, e.mark.line + 1, e.mark.column + 1, e.msg);
  }
}

result<fault_plan> load_fault_plan(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(errc::io, "{}: cannot be read", file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return fail(errc::io, "{}: cannot be read to its end", file);
  return parse_fault_plan(text, file);
}

std::string print_fault_plan(const fault_plan& plan) {
  const fault_plan usual_plan;
  const fault usual;
  YAML::Emitter out;
  out << YAML::BeginMap;
  if (!plan.name.empty()) out << YAML::Key << "name" << YAML::Value << plan.name;
  if (!plan.why.empty()) out << YAML::Key << "why" << YAML::Value << plan.why;
  if (plan.seed != usual_plan.seed) out << YAML::Key << "seed" << YAML::Value << plan.seed;
  if (plan.recover_within != usual_plan.recover_within)
    out << YAML::Key << "recover_within" << YAML::Value << config::format_duration(plan.recover_within);
  out << YAML::Key << "faults" << YAML::Value << YAML::BeginSeq;
  for (const auto& f : plan.faults) {
    const auto time = [&](const char* key, nanoseconds d, nanoseconds left_out) {
      if (d != left_out) out << YAML::Key << key << YAML::Value << config::format_duration(d);
    };
    const auto number = [&](const char* key, uint32_t v, uint32_t left_out) {
      if (v != left_out) out << YAML::Key << key << YAML::Value << v;
    };
    out << YAML::BeginMap << YAML::Key << "name" << YAML::Value << f.name;
    out << YAML::Key << "kind" << YAML::Value << to_string(f.kind);
    print_when(out, f.when);
    if (!(f.target == usual.target)) out << YAML::Key << "target" << YAML::Value << format_target(f.target);
    if (!(f.peer == usual.peer)) out << YAML::Key << "peer" << YAML::Value << format_target(f.peer);
    if (f.one_way) out << YAML::Key << "one_way" << YAML::Value << true;
    if (f.silent) out << YAML::Key << "silent" << YAML::Value << true;
    time("lasts", f.lasts, usual.lasts);
    time("period", f.period, usual.period);
    number("factor", f.factor, usual.factor);
    number("permille", f.permille, usual.permille);
    if (f.jump_ns != 0)
      out << YAML::Key << "jump" << YAML::Value
          << (f.jump_ns < 0 ? "-" : "") + config::format_duration(nanoseconds(std::abs(f.jump_ns)));
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace troupe::sim
