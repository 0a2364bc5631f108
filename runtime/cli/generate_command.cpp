// troupe generate: prompts in, answers out, with the engine in this process.
#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/model/config.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"
#include "runtime/node/local_generator.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

struct generate_options : config_options {
  std::string model, prompt, prompts_file, log_level = "warning";
  std::vector<int32_t> ids;
  uint32_t max_tokens = 64, threads = 0, top_k = 0;
  double temperature = 0, top_p = 1;
  int64_t seed = -1;
  bool prompted = false, chat = false, as_json = false, ignore_eos = false, no_speculation = false;
};

struct answer {
  std::vector<int32_t> tokens;
  gateway::generate_event last;
  bool done = false;
};

// What all callbacks share; outlives them.
struct board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<answer> answers;
  size_t left = 0;
};

result<std::vector<std::string>> prompts_of(const generate_options& o) {
  if (o.prompts_file.empty()) return std::vector<std::string>{o.prompt};
  std::ifstream file;
  std::istream* in = &std::cin;
  if (o.prompts_file != "-") {
    file.open(o.prompts_file);
    if (!file) return fail(errc::invalid_argument, "{}: cannot be read", o.prompts_file);
    in = &file;
  }
  std::vector<std::string> out;
  for (std::string line; std::getline(*in, line);) {
    if (!line.empty()) out.push_back(std::move(line));
  }
  if (out.empty()) return fail(errc::invalid_argument, "{}: holds no prompt; one a line is expected", o.prompts_file);
  return out;
}

result<std::vector<std::vector<int32_t>>> encode(const generate_options& o, const recipe::recipe* r,
                                                 const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> out;
  if (!o.ids.empty()) {
    out.push_back(o.ids);
    return out;
  }
  for (const auto& t : texts) {
    auto ids = o.chat ? r->chat({{recipe::role::user, t, false}}, {}, "") : r->prompt(t, "");
    if (!ids) return fail(ids.error());
    out.push_back(std::move(*ids));
  }
  return out;
}

void print_answer(const generate_options& o, const recipe::recipe* r, size_t index, const std::vector<int32_t>& prompt,
                  const answer& a) {
  std::string text = r ? r->tokens().decode(a.tokens) : "";
  if (!o.as_json) {
    if (r)
      fmt::print("{}\n", text);
    else
      fmt::print("{}\n", json(a.tokens).dump());
    return;
  }
  json j{{"index", index}, {"prompt_tokens", prompt.size()}, {"tokens", a.tokens}};
  if (r) j["text"] = text;
  j["finish"] = a.last.finish == kernels::finish_reason::stop     ? "stop"
                : a.last.finish == kernels::finish_reason::length ? "length"
                                                                  : "error";
  j["drafted"] = a.last.usage.drafted;
  j["accepted"] = a.last.usage.accepted;
  if (a.last.failure != errc{}) j["error"] = a.last.failure_text;
  fmt::print("{}\n", j.dump(-1, ' ', false, json::error_handler_t::replace));
}

int run(const generate_options& o) {
  auto overrides = o.overrides;
  if (!o.model.empty()) overrides.push_back("model.path=" + o.model);
  if (o.threads > 0) overrides.push_back("decode.threads=" + std::to_string(o.threads));
  if (o.no_speculation) overrides.push_back("engine.speculation=false");
  // Without a model and a file: the model that comes with the program.
  const std::string file = o.file.empty() && o.model.empty() ? installed_file("configs/local.yaml") : o.file;
  config::loaded l = file.empty() ? config::read_text("", "defaults", ".", overrides) : config::read(file, overrides);
  for (const auto& p : l.problems) tell("{}\n", p.text());
  if (!l.problems.empty())
    return complain("generate", "give a checkpoint with --model, or a configuration with -c", usage);
  if (!o.prompted && o.ids.empty())
    return complain("generate", "nothing to do: give --prompt TEXT, --prompts FILE (- is stdin) or --ids 1,2,3", usage);
  std::error_code ec;
  if (!std::filesystem::is_directory(l.values.model.path, ec))
    return complain("generate", "there is no folder " + l.values.model.path + "; the checkpoint is looked for there",
                    usage);
  log::init("generate", o.log_level);
  std::unique_ptr<recipe::recipe> text;
  if (o.ids.empty()) {
    result<std::unique_ptr<recipe::recipe>> r = fail(errc::internal, "");
    if (l.values.model.tokenizer.empty())
      r = recipe::recipe::load(l.values.model.path);
    else if (auto t = recipe::tokenizer::load(l.values.model.tokenizer))
      r = recipe::recipe::make(std::move(*t));
    else
      r = fail(t.error());
    if (!r) return complain("generate", r.error().message, usage);
    text = std::move(*r);
  }
  if (!o.ids.empty()) {
    auto model = kernels::load_config(l.values.model.path);
    if (!model) return complain("generate", model.error().message, usage);
    for (const int32_t id : o.ids) {
      if (id < 0 || static_cast<uint32_t>(id) >= model->vocab_size)
        return complain("generate", fmt::format("--ids: {} is outside the vocabulary of {}", id, model->vocab_size),
                        usage);
    }
  }
  auto texts = prompts_of(o);
  if (!texts) return complain("generate", texts.error().message, usage);
  auto prompts = encode(o, text.get(), *texts);
  if (!prompts) return complain("generate", prompts.error().message, usage);
  auto generator = node::make_local_generator(l.values);
  if (!generator)
    return complain("generate", generator.error().message,
                    generator.error().code == errc::timeout ? unavailable : usage);
  uint64_t seed = o.seed >= 0 ? static_cast<uint64_t>(o.seed) : entropy_seed() >> 1;
  if (o.temperature > 0) tell("seed {}\n", seed);

  auto b = std::make_shared<board>();
  b->answers.resize(prompts->size());
  b->left = prompts->size();
  const nanoseconds begin = steady_clock().now();
  for (size_t i = 0; i < prompts->size(); ++i) {
    gateway::generate_request r;
    r.id = "generate-" + std::to_string(i);
    r.tenant = "local";
    r.prompt = (*prompts)[i];
    r.sampling.temperature = static_cast<float>(o.temperature);
    r.sampling.top_p = static_cast<float>(o.top_p);
    r.sampling.top_k = o.top_k;
    r.sampling.seed = seed + i;
    r.stop.max_tokens = o.max_tokens;
    r.stop.ignore_eos = o.ignore_eos;
    r.speculate = !o.no_speculation;
    (*generator)->submit(std::move(r), [b, i](gateway::generate_event e) {
      std::lock_guard lock(b->mutex);
      answer& a = b->answers[i];
      a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
      if (!e.done) return;
      a.last = std::move(e);
      a.done = true;
      --b->left;
      b->changed.notify_all();
    });
  }
  uint64_t tokens = 0, drafted = 0, accepted = 0;
  bool bad = false;
  std::unique_lock lock(b->mutex);
  for (size_t i = 0; i < prompts->size(); ++i) {
    b->changed.wait(lock, [&] { return b->answers[i].done; });
    const answer& a = b->answers[i];
    print_answer(o, text.get(), i, (*prompts)[i], a);
    if (a.last.failure != errc{})
      bad = true, complain("generate", fmt::format("prompt {}: {}", i, a.last.failure_text), failed);
    tokens += a.tokens.size();
    drafted += a.last.usage.drafted;
    accepted += a.last.usage.accepted;
  }
  double seconds = std::chrono::duration<double>(steady_clock().now() - begin).count();
  tell("{} prompts, {} tokens in {:.2f} s ({:.1f} tokens/s); drafts: {} of {} accepted\n", prompts->size(), tokens,
       seconds, double(tokens) / seconds, accepted, drafted);
  return bad ? failed : ok;
}

}  // namespace

void add_generate(CLI::App& app, context& ctx) {
  auto o = std::make_shared<generate_options>();
  o->file.clear();
  CLI::App* c = app.add_subcommand("generate", "Run prompts with an engine in this process");
  c->add_option("-c,--config", o->file,
                "Configuration file, for model and decode limits; configs/local.yaml without --model");
  c->add_option("--set", o->overrides, "Override one key, SECTION.KEY=VALUE")->take_all()->allow_extra_args(false);
  c->add_option("--model", o->model, "Checkpoint folder");
  auto* prompt = c->add_option("--prompt", o->prompt, "The prompt");
  auto* file = c->add_option("--prompts", o->prompts_file, "File with one prompt a line; - is stdin")->excludes(prompt);
  c->add_option("--ids", o->ids, "The prompt as token ids, separated by commas")
      ->delimiter(',')
      ->excludes(prompt)
      ->excludes(file);
  c->add_flag("--chat", o->chat, "Each prompt is the first user message of a chat");
  c->add_option("--max-tokens", o->max_tokens, "Longest answer")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  c->add_option("--temperature", o->temperature, "0 always takes the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 2.0));
  c->add_option("--top-p", o->top_p, "Sample from the likeliest tokens of this total probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--top-k", o->top_k, "Sample from that many likeliest tokens; 0: all")->capture_default_str();
  c->add_option("--seed", o->seed, "Seed of the first prompt; the others count on");
  c->add_flag("--ignore-eos", o->ignore_eos, "Go on after the end-of-sequence token");
  c->add_flag("--no-speculation", o->no_speculation, "Do not draft; the answers are the same");
  c->add_option("--threads", o->threads, "Compute threads; those of the configuration by default")
      ->check(CLI::Range(1, 256));
  c->add_flag("--json", o->as_json, "One JSON object a line: tokens, text, finish, drafts");
  c->add_option("--log-level", o->log_level, "debug, info, warning, error, off")->capture_default_str();
  c->footer(
      "Examples:\n  troupe generate --model tests/data/tiny-v41 --prompt 'once upon' --max-tokens 32\n"
      "  troupe generate --model DIR --prompts prompts.txt --json --temperature 0.8 --seed 7");
  c->callback([=, &ctx] {
    o->prompted = prompt->count() + file->count() > 0;
    ctx.result = run(*o);
  });
}

}  // namespace troupe::cli
