// troupe doctor: what this machine can do, and why not.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/cli/command.hpp"
#include "runtime/cli/doctor.hpp"
#include "runtime/config/config.hpp"

namespace troupe::cli {
namespace {

struct doctor_options : config_options {
  std::string model;
  bool json = false;
};

int run(const doctor_options& o, bool with_config) {
  doctor_request request;
  request.model = o.model;
  if (with_config) {
    auto s = config::load(o.file, o.overrides);
    if (!s) return complain("doctor", s.error().message, usage);
    std::vector<config::address> listens{s->director.listen};
    for (uint32_t i = 0; i < s->front.count; ++i) listens.push_back(s->front.listen_of(i));
    for (const auto& a : listens) {
      if (a.port != 0) request.listens.push_back(a);
    }
    if (request.model.empty()) request.model = s->model.path;
  }
  auto findings = examine(request);
  bool bad = std::any_of(findings.begin(), findings.end(), [](const finding& f) { return f.level == verdict::bad; });
  if (o.json) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& f : findings)
      list.push_back({{"name", f.name}, {"verdict", to_string(f.level)}, {"value", f.value}, {"advice", f.advice}});
    fmt::print("{}\n", list.dump(2));
  } else {
    for (const auto& f : findings) {
      fmt::print("{:<26} {:<9} {}\n", f.name, to_string(f.level), f.value);
      if (f.level != verdict::good && !f.advice.empty()) fmt::print("{:<36} -> {}\n", "", f.advice);
    }
  }
  return bad ? complain("doctor", "this machine cannot run Troupe as it is; see the lines marked bad", failed) : ok;
}

}  // namespace

void add_doctor(CLI::App& app, context& ctx) {
  auto o = std::make_shared<doctor_options>();
  o->file.clear();
  CLI::App* c = app.add_subcommand("doctor", "What this machine can do, and why not");
  auto* config = c->add_option("-c,--config", o->file, "Also check what this configuration needs: ports, model");
  c->add_option("--set", o->overrides, "Override one key, SECTION.KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false)
      ->needs(config);
  c->add_option("--model", o->model, "Also check the checkpoint in this folder");
  c->add_flag("--json", o->json, "As JSON");
  c->footer(
      "Exit code 1 if something that Troupe needs is bad; missing optional parts are no failure.\nExamples:\n  troupe "
      "doctor\n  troupe doctor -c configs/local.yaml --model tests/data/tiny-v41");
  c->callback([o, &ctx] { ctx.result = run(*o, !o->file.empty()); });
}

}  // namespace troupe::cli
