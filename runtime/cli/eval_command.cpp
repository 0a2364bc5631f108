// troupe eval: what a model is worth in this engine, on a held-out text.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "runtime/base/processor_clock.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/default_model.hpp"
#include "runtime/cli/eval/run.hpp"

namespace troupe::cli {
namespace {

const std::set<std::string> everything{"loss", "load", "acceptance", "replay", "speed", "samples"};

struct eval_options : eval_request {
  std::vector<std::string> parts{"all"};
  bool json = false, cpu_time = false;
};

int run(eval_options o) {
  if (o.model.empty()) {
    auto model = default_model();
    if (!model) return complain("eval", model.error().message, usage);
    o.model = *model;
  }
  std::error_code ec;
  if (o.text.empty()) {
    o.text = o.model + "/heldout.jsonl";
    if (!std::filesystem::exists(o.text, ec))
      return complain("eval", "give a text with --text FILE; there is no " + o.text, usage);
  }
  for (const std::string& p : o.parts) {
    if (p == "all") {
      o.what.insert(everything.begin(), everything.end());
      o.acceptance_if_any = true;
    } else {
      o.what.insert(p);
    }
  }
  if (!o.dump.empty() || !o.compare.empty()) o.what.insert("loss");
  auto report =
      evaluate(o, o.cpu_time ? process_clock() : steady_clock(), [](const std::string& line) { tell("{}\n", line); });
  if (!report) {
    const errc code = report.error().code;
    return complain("eval", report.error().message,
                    code == errc::internal || code == errc::timeout || code == errc::exhausted ? failed : usage);
  }
  if (o.json)
    fmt::print("{}\n", to_json(*report).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    fmt::print("{}", to_text(*report));
  return ok;
}

}  // namespace

void add_eval(CLI::App& app, context& ctx) {
  auto o = std::make_shared<eval_options>();
  o->threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App* c =
      app.add_subcommand("eval", "What a model is worth: loss, acceptance, expert load and balance, replay, speed");
  c->add_option("--model", o->model, "Checkpoint folder; by default the model of configs/local.yaml");
  c->add_option("--text", o->text, "Held-out text, .jsonl or .txt; by default heldout.jsonl in the checkpoint folder");
  std::vector<std::string> names(everything.begin(), everything.end());
  names.push_back("balance");  // a group of ranks as threads: only when asked for
  names.push_back("all");
  c->add_option("--what", o->parts, "What to measure: " + fmt::format("{}", fmt::join(names, ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  c->add_option("--limit-bytes", o->limit_bytes, "Text read for loss and load")->capture_default_str();
  c->add_option("--context", o->context, "Longest sequence")->capture_default_str()->check(CLI::Range(16u, 1u << 20));
  c->add_option("--threads", o->threads, "Compute threads")->capture_default_str()->check(CLI::Range(1, 256));
  c->add_option("--prompts", o->prompts, "Prompts for acceptance and speed")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  c->add_option("--max-tokens", o->max_tokens, "Longest answer to a prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  c->add_option("--temperatures", o->temperatures, "Temperatures of acceptance")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 2.0));
  c->add_option("--cases", o->cases, "Conversations for replay")->capture_default_str()->check(CLI::Range(1, 100000));
  c->add_option("--concurrent", o->concurrent, "Requests at once for speed")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  c->add_option("--repeats", o->repeats, "Runs of every speed row, in turns")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  c->add_option("--ranks", o->balance.ranks, "Ranks of the group for balance")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  c->add_option("--redundant", o->balance.redundant, "Further expert slots per rank and layer for balance")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  c->add_option("--interval", o->balance.interval, "Steps of a window for balance")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  c->add_option("--windows", o->balance.windows, "Windows for balance")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  c->add_option("--split-window", o->balance.split_window, "Steps whose counts split rows among copies, 0: evenly")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  c->add_option("--slots", o->balance.slots, "Requests at once per rank for balance")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  c->add_flag("--cpu-time", o->cpu_time, "Speed by this process's processor time; with one thread, on a busy machine");
  c->add_option("--seed", o->seed, "Seed of the first prompt; the others count on")->capture_default_str();
  c->add_option("--dump-argmax", o->dump, "Write the likeliest next tokens to this file");
  c->add_option("--compare-argmax", o->compare, "Compare them with a file that another program wrote");
  c->add_flag("--json", o->json, "One JSON object");
  c->footer(
      "Progress goes to stderr. docs/model.md has the formats of the texts and of the next tokens, and what each "
      "figure\n"
      "means.\n"
      "Examples:\n  troupe eval --what loss,load --text held-out.jsonl\n"
      "  troupe eval --model DIR --text held-out.txt --json\n"
      "  troupe eval --what loss --compare-argmax pytorch.jsonl");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
