// troupe policy: any decision from the shell, the very function that the actors call.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "policies/registry.hpp"
#include "runtime/cli/command.hpp"

namespace troupe::cli {
namespace {

struct policy_options {
  std::string name, schema;
  bool list = false;
};

constexpr size_t max_input = size_t{256} << 20;

int unknown(const std::string& name) {
  return complain("policy", fmt::format("no decision called {}; see troupe policy --list", name), usage);
}

int run(const policy_options& o) {
  using nlohmann::json;
  if (o.list) {
    for (const auto& e : policies::registry()) fmt::print("{:<16} {}\n", e.name, e.help);
    return ok;
  }
  if (!o.schema.empty()) {
    const auto* e = policies::find_policy(o.schema);
    if (!e) return unknown(o.schema);
    fmt::print("{}\n",
               json{{"name", e->name}, {"help", e->help}, {"input", e->input()}, {"output", e->output()}}.dump(2));
    return ok;
  }
  if (o.name.empty()) return complain("policy", "name a decision, or --list, or --schema NAME", usage);
  const auto* e = policies::find_policy(o.name);
  if (!e) return unknown(o.name);
  std::string text;
  char buffer[65536];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > max_input) return complain("policy", "stdin: more than 256 MiB", usage);
  }
  const json in = json::parse(text, nullptr, false);
  if (in.is_discarded()) return complain("policy", "stdin: not JSON", usage);
  auto out = e->run(in);
  if (!out) return complain("policy", fmt::format("{}: {}", o.name, out.error().message), failed);
  fmt::print("{}\n", out->dump(2));
  return ok;
}

}  // namespace

void add_policy(CLI::App& app, context& ctx) {
  auto o = std::make_shared<policy_options>();
  CLI::App* c = app.add_subcommand("policy", "Take one decision: JSON from stdin, plan with its reason to stdout");
  auto* name = c->add_option("NAME", o->name, "The decision");
  auto* list = c->add_flag("--list", o->list, "All decisions, one a line");
  auto* schema = c->add_option("--schema", o->schema, "JSON Schema of input and output of one decision");
  list->excludes(name)->excludes(schema);
  schema->excludes(name);
  c->footer(
      "Exit codes: 0 a plan, 1 the input makes no sense to the decision, 2 no such decision or no JSON.\n"
      "Example:\n  echo '{\"usable\": [true, true], \"last\": 0}' | troupe policy round_robin");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
