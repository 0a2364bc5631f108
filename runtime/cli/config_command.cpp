// troupe config: explain, check, print, and the reference page.
#include <fmt/format.h>

#include <memory>

#include "runtime/cli/command.hpp"
#include "runtime/config/config.hpp"
#include "runtime/node/preflight.hpp"

namespace troupe::cli {
namespace {

struct config_command_options : config_options {
  bool check = false, print = false, markdown = false, explain = false;
  std::string topic;
};

int run(const config_command_options& o) {
  if (o.explain || !o.topic.empty()) {
    auto text = config::explain(o.topic);
    if (!text) return complain("config", text.error().message, usage);
    fmt::print("{}", *text);
    return ok;
  }
  if (o.markdown) {
    fmt::print("{}", config::markdown());
    return ok;
  }
  config::loaded l = config::read(o.file, o.overrides);
  if (l.problems.empty() && !o.print) l.problems = node::check_files(l.values, o.file);
  for (const auto& p : l.problems) tell("{}\n", p.text());
  if (!l.problems.empty())
    return complain("config",
                    fmt::format("{} has {} mistake{}", o.file, l.problems.size(), l.problems.size() == 1 ? "" : "s"),
                    usage);
  if (o.print)
    fmt::print("{}", config::print(l.values));
  else {
    for (const auto& n : node::notes(l.values)) tell("note: {}\n", n);
    tell("{} is good\n", o.file);
  }
  return ok;
}

}  // namespace

void add_config(CLI::App& app, context& ctx) {
  auto o = std::make_shared<config_command_options>();
  CLI::App* c = app.add_subcommand("config", "Explain, check or print a configuration");
  o->add_to(*c);
  auto* explain = c->add_flag("--explain", o->explain, "Every key with type, default, bounds and meaning");
  c->add_option("TOPIC", o->topic, "Explain this SECTION or SECTION.KEY only");
  auto* check = c->add_flag(
      "--check", o->check,
      "Check the file, and the key file and config.json that it names, and name every mistake (what happens "
      "without an option)");
  auto* print = c->add_flag("--print", o->print, "Print the effective configuration with every key, as YAML");
  auto* markdown = c->add_flag("--markdown", o->markdown, "Print docs/config.md");
  print->excludes(check)->excludes(explain)->excludes(markdown);
  markdown->excludes(check)->excludes(explain);
  explain->excludes(check);
  c->footer(
      "Examples:\n  troupe config --explain front\n  troupe config --check -c configs/local.yaml\n  troupe config "
      "--print --set front.listen=127.0.0.1:0");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
