// troupe verify: the engine's forward pass against golden tensors.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.hpp"
#include "kernels/cpu/operators.hpp"
#include "kernels/model/verify.hpp"
#include "runtime/cli/command.hpp"

namespace troupe::cli {
namespace {

struct verify_options {
  std::string model, golden, isa = "auto";
  uint32_t threads = 1;
  bool json = false;
};

int run(const verify_options& o) {
  auto which = kernels::cpu::best_isa();
  if (o.isa != "auto") {
    auto named = kernels::cpu::isa_from_string(o.isa);
    if (!named) return complain("verify", "--isa " + o.isa + ": known are auto, portable, avx2, avx512", usage);
    if (!kernels::cpu::supported(*named))
      return complain("verify", "--isa " + o.isa + ": this CPU does not have it", usage);
    which = *named;
  }
  auto model = kernels::load_model(o.model);
  if (!model) return complain("verify", model.error().message, usage);
  auto ops = kernels::cpu::make_operators(o.threads, which);
  auto rows = kernels::verify_model(**model, *ops, o.golden, steady_clock());
  if (!rows) return complain("verify", rows.error().message, rows.error().code == errc::internal ? failed : usage);
  size_t missed = 0, width = 4;
  for (const auto& r : *rows) width = std::max(width, r.name.size());
  if (!o.json) fmt::print("{:<{}}  {:>10}  {:>10}  {}\n", "name", width, "max abs", "max rel", "verdict");
  for (const auto& r : *rows) {
    missed += r.pass ? 0 : 1;
    if (o.json) {
      nlohmann::ordered_json j{
          {"name", r.name}, {"max_abs", r.max_abs}, {"max_rel", r.max_rel}, {"pass", r.pass}, {"note", r.note}};
      fmt::print("{}\n", j.dump());
    } else {
      fmt::print("{:<{}}  {:>10.3e}  {:>10.3e}  {}{}\n", r.name, width, r.max_abs, r.max_rel, r.pass ? "ok" : "MISS",
                 r.note.empty() ? "" : "  " + r.note);
    }
  }
  std::fflush(stdout);
  if (rows->empty()) return complain("verify", o.golden + " holds no golden tensor", usage);
  tell("{} of {} golden tensors within their tolerance ({}, {} thread{})\n", rows->size() - missed, rows->size(),
       kernels::cpu::to_string(which), o.threads, o.threads == 1 ? "" : "s");
  return missed == 0 ? ok : failed;
}

}  // namespace

void add_verify(CLI::App& app, context& ctx) {
  auto o = std::make_shared<verify_options>();
  CLI::App* c = app.add_subcommand("verify", "The engine against golden tensors");
  c->add_option("--model", o->model, "Checkpoint folder")->required();
  c->add_option("--golden", o->golden,
                "Folder with golden.json and golden.safetensors; the checkpoint's folder by default");
  c->add_option("--isa", o->isa, "auto, portable, avx2, avx512")->capture_default_str();
  c->add_option("--threads", o->threads, "Compute threads")->capture_default_str()->check(CLI::Range(1, 256));
  c->add_flag("--json", o->json, "One JSON object a line");
  c->footer(
      "One line per golden tensor: largest absolute and relative difference, and the verdict. Exit code 1 on any "
      "miss.\n"
      "Example:\n  troupe verify --model tests/data/tiny-v41 --golden tests/data/tiny-v41");
  c->callback([o, &ctx] {
    if (o->golden.empty()) o->golden = o->model;
    ctx.result = run(*o);
  });
}

}  // namespace troupe::cli
