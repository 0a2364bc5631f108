// troupe eval: texts in, figures out; the parts that read and compare files on their own, then the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/cli/eval/documents.hpp"
#include "runtime/cli/eval/next_tokens.hpp"
#include "runtime/cli/eval/run.hpp"
#include "runtime/cli/installation.hpp"
#include "tests/cli/run_program.hpp"

namespace troupe::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using tests::read_file;
using tests::temporary_folder;
using tests::troupe;
using tests::write_file;

const std::string tiny = std::string(TROUPE_TEST_DATA) + "/tiny-v41";

const recipe::recipe& text() {
  static const auto r = recipe::recipe::load(tiny);
  return **r;
}

std::string conversation(const std::string& question, const std::string& answer) {
  return json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

TEST(eval_documents, a_conversation_is_what_the_recipe_renders_up_to_its_last_end) {
  temporary_folder f;
  const std::string path = f.path + "/a.jsonl";
  const json second{{"messages",
                     {{{"role", "system"}, {"content", "Be kind."}},
                      {{"role", "user"}, {"content", "a"}},
                      {{"role", "assistant"}, {"content", "b"}},
                      {{"role", "user"}, {"content", "c"}},
                      {{"role", "assistant"}, {"content", "de"}}}}};
  write_file(path, conversation("Hi", "Hello!") + "\n" + second.dump());
  auto docs = read_documents(path, text(), 10);
  ASSERT_TRUE(docs) << docs.error().message;
  ASSERT_EQ(docs->size(), 2u);
  const auto& d = (*docs)[0];
  auto question = text().chat({{recipe::role::user, "Hi", false}}, {}, "");
  ASSERT_TRUE(question);
  std::vector<int32_t> want = *question;
  for (char c : std::string("Hello!")) {
    auto one = text().tokens().encode(std::string(1, c));
    want.insert(want.end(), one->begin(), one->end());
  }
  want.push_back(*text().tokens().added(recipe::spelling(recipe::chat_token::eos)));
  EXPECT_EQ(d.tokens, want);
  EXPECT_EQ(d.answers, std::vector<uint32_t>{static_cast<uint32_t>(question->size())});
  EXPECT_EQ(d.ends, std::vector<uint32_t>{static_cast<uint32_t>(want.size())});
  EXPECT_EQ(d.bytes, 8u);
  const auto& e = (*docs)[1];
  EXPECT_EQ(e.number, 1u);
  EXPECT_EQ(e.bytes, 8u + 1 + 1 + 1 + 2);
  ASSERT_EQ(e.answers.size(), 2u);
  EXPECT_EQ(e.ends[0], e.answers[0] + 2);
  EXPECT_EQ(e.ends[1], e.tokens.size());
  auto requests = requests_of(*docs, 0.8, 5, 9);
  EXPECT_EQ(requests[0].tokens, *question);
  EXPECT_EQ(requests[1].sampling.seed, 7u);
}

TEST(eval_documents, plain_text_is_cut_at_line_ends) {
  temporary_folder f;
  std::string line(1000, 'x'), all;
  for (int i = 0; i < 20; ++i) all += line + "\n";
  write_file(f.path + "/a.txt", all);
  auto docs = read_documents(f.path + "/a.txt", text(), 100);
  ASSERT_TRUE(docs);
  ASSERT_EQ(docs->size(), 3u);
  uint64_t bytes = 0;
  for (const auto& d : *docs) {
    bytes += d.bytes;
    EXPECT_EQ(d.bytes % 1001, 0u);
    EXPECT_LE(d.bytes, document_reader::text_document);
    EXPECT_TRUE(d.answers.empty());
  }
  EXPECT_EQ(bytes, all.size());
  EXPECT_EQ(requests_of(*docs, 0, 0, 5)[0].tokens.size(), 64u);
}

TEST(eval_documents, broken_lines_are_named) {
  temporary_folder f;
  const std::string path = f.path + "/a.jsonl";
  for (const char* bad : {"nonsense", "[1]", "{}", R"({"messages": []})", R"({"messages": [{"role": "user"}]})",
                          R"({"messages": [{"role": "owl", "content": "x"}]})", R"({"text": 3})", "\xff\xfe{"}) {
    write_file(path, conversation("a", "b") + bad + "\n");
    auto docs = read_documents(path, text(), 10);
    ASSERT_FALSE(docs) << bad;
    EXPECT_THAT(docs.error().message, HasSubstr(path + ":2: ")) << bad;
  }
  write_file(path, std::string(document_reader::longest_line + 1, 'x'));
  EXPECT_THAT(read_documents(path, text(), 10).error().message, HasSubstr("longer than"));
  write_file(path, "");
  EXPECT_THAT(read_documents(path, text(), 10).error().message, HasSubstr("is empty"));
  EXPECT_THAT(read_documents(f.path + "/none", text(), 10).error().message, HasSubstr("/none"));
}

TEST(eval_next_tokens, agreement_counts_documents_with_equal_tokens) {
  temporary_folder f;
  const std::string path = f.path + "/n.jsonl";
  const next_tokens a{0, {1, 2, 3}, {2, 3, 4}, 1.5, 10}, b{2, {5, 6}, {6, 7}, 2, 20}, c{5, {8}, {9}, 0, 5};
  write_file(path,
             next_tokens_header("pytorch", "mini") + "\n" + to_line(a) + "\n" + to_line(b) + "\n" + to_line(c) + "\n");
  auto cmp = next_comparison::open(path);
  ASSERT_TRUE(cmp) << cmp.error().message;
  EXPECT_EQ(cmp->by(), "pytorch");
  next_tokens mine = a;
  mine.next[2] = 9;
  mine.nats = 1.25;
  ASSERT_TRUE(cmp->add(mine));
  ASSERT_TRUE(cmp->add({1, {1}, {1}, 1, 1}));  // the file does not have it
  mine = b;
  mine.tokens[1] = 7;
  ASSERT_TRUE(cmp->add(mine));
  ASSERT_TRUE(cmp->add({3, {1}, {1}, 1, 1}));
  ASSERT_TRUE(cmp->add(c));
  ASSERT_TRUE(cmp->add({9, {1}, {1}, 1, 1}));
  EXPECT_EQ(cmp->total().documents, 2u);
  EXPECT_EQ(cmp->total().different, 1u);
  EXPECT_EQ(cmp->total().positions, 4u);
  EXPECT_EQ(cmp->total().same, 3u);
  EXPECT_EQ(cmp->total().our_nats, 1.25);
  EXPECT_EQ(cmp->total().their_nats, 1.5);

  EXPECT_FALSE(next_comparison::open(f.path + "/none"));
  write_file(path, "{}\n");
  EXPECT_FALSE(next_comparison::open(path));
  for (const char* bad : {"x", "{}", R"({"document": 0, "tokens": [1], "next": [], "nats": 1})",
                          R"({"document": 0, "tokens": ["a"], "next": [1], "nats": 1})"}) {
    write_file(path, next_tokens_header("x", "y") + "\n" + bad + "\n");
    auto broken = next_comparison::open(path);
    ASSERT_TRUE(broken);
    auto r = broken->add(a);
    ASSERT_FALSE(r) << bad;
    EXPECT_THAT(r.error().message, HasSubstr(path + ":2: "));
  }
}

TEST(eval_installation, files_are_found_above_the_program) {
  temporary_folder f;
  std::filesystem::create_directories(f.path + "/build/quick");
  std::filesystem::create_directories(f.path + "/configs");
  write_file(f.path + "/configs/local.yaml", "x");
  // A path below the working directory is shown relative to it.
  auto found = [&] {
    return std::filesystem::absolute(installed_file_above(f.path + "/build/quick", "configs/local.yaml"));
  };
  EXPECT_EQ(found(), f.path + "/configs/local.yaml");
  std::filesystem::create_directories(f.path + "/build/share/troupe/configs");
  write_file(f.path + "/build/share/troupe/configs/local.yaml", "x");
  EXPECT_EQ(found(), f.path + "/build/share/troupe/configs/local.yaml");
  EXPECT_EQ(installed_file_above(f.path, "configs/none.yaml"), "configs/none.yaml");
}

// The text that the program is run on: twelve short conversations.
std::string texts() {
  std::string out;
  for (int i = 0; i < 12; ++i)
    out += conversation("Tell me about number " + std::to_string(i) + ".", "It is a number, and a fine one.");
  return out;
}

TEST(eval_program, measures_everything_and_agrees_with_itself) {
  temporary_folder f;
  write_file(f.path + "/t.jsonl", texts());
  const std::vector<std::string> common{"eval", "--model", tiny, "--text", f.path + "/t.jsonl", "--threads", "2"};
  auto with = [&](std::vector<std::string> more) {
    auto args = common;
    args.insert(args.end(), more.begin(), more.end());
    return troupe(args, "", 110);
  };
  auto p = with({"--json", "--prompts", "4", "--max-tokens", "12", "--concurrent", "1,3", "--dump-argmax",
                 f.path + "/next.jsonl"});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_THAT(p.err, HasSubstr("loss: "));
  const json j = json::parse(p.out);
  EXPECT_EQ(j["model"], "tiny-v41");
  EXPECT_EQ(j["loss"]["documents"], 12);
  // A random model knows nothing: more than the logarithm of the vocabulary, as its logits spread.
  EXPECT_GT(j["loss"]["nats_per_token"], std::log(512.0));
  EXPECT_LT(j["loss"]["nats_per_token"], 2 * std::log(512.0));
  EXPECT_NEAR(j["loss"]["nats_per_byte"].get<double>() * j["loss"]["bytes"].get<double>(),
              j["loss"]["nats_per_token"].get<double>() * j["loss"]["tokens"].get<double>(), 1e-6);
  EXPECT_EQ(j["load"].size(), 8u);
  ASSERT_EQ(j["acceptance"].size(), 2u);
  EXPECT_EQ(j["acceptance"][1]["temperature"], 0.8);
  EXPECT_EQ(j["acceptance"][0]["slots"].size(), 5u);
  EXPECT_GT(j["acceptance"][0]["blocks"], 0);
  EXPECT_GT(j["replay"]["cases"], 0);
  EXPECT_GT(j["replay"]["agreement"], 0.3);
  ASSERT_EQ(j["speed"]["decode"].size(), 6u) << "none, fixed and adaptive drafts, at 1 and at 3 requests";
  EXPECT_EQ(j["speed"]["decode"][5]["concurrent"], 3);
  EXPECT_EQ(j["speed"]["decode"][5]["tokens"], 192);  // 16 requests of 12
  EXPECT_GT(j["speed"]["prefill_tokens_per_second"], 0);
  ASSERT_EQ(j["samples"].size(), 4u);
  EXPECT_EQ(j["samples"][3]["question"], "Tell me about number 3.");
  EXPECT_EQ(j["samples"][3]["ended"], false);

  p = with({"--json", "--what", "loss", "--compare-argmax", f.path + "/next.jsonl"});
  ASSERT_EQ(p.code, 0) << p.err;
  const json again = json::parse(p.out);
  EXPECT_EQ(again["agreement"]["rate"], 1.0);
  EXPECT_EQ(again["agreement"]["with"], "troupe");
  EXPECT_EQ(again["agreement"]["documents"], 12);
  EXPECT_EQ(again["loss"], j["loss"]);
  EXPECT_FALSE(again.contains("speed"));

  p = with({"--json", "--what", "balance", "--ranks", "2", "--interval", "10", "--windows", "2", "--slots", "2",
            "--max-tokens", "12"});
  ASSERT_EQ(p.code, 0) << p.err;
  const json b = json::parse(p.out)["balance"];
  ASSERT_EQ(b["windows"].size(), 2u);
  EXPECT_GE(b["windows"][0]["steps"], 10);
  EXPECT_GE(b["windows"][0]["lb"], 1.0);
  EXPECT_LE(b["windows"][0]["plan_after"], b["windows"][0]["plan_before"]);
  EXPECT_EQ(b["windows"][1]["placement"], b["windows"][0]["experts_loaded"] > 0 ? 2 : 1);

  p = with({"--what", "loss,load", "--limit-bytes", "100"});
  ASSERT_EQ(p.code, 0) << p.err;
  EXPECT_THAT(p.out, HasSubstr("nats/byte"));
  EXPECT_THAT(p.out, HasSubstr("max/mean"));
  EXPECT_THAT(p.out, HasSubstr("2 documents"));
}

TEST(eval_program, mistakes_are_exit_2_and_say_what_is_wrong) {
  temporary_folder f;
  write_file(f.path + "/t.jsonl", texts());
  write_file(f.path + "/bad.jsonl", "nonsense\n");
  const struct {
    std::vector<std::string> args;
    std::string want;
  } rows[] = {
      {{"--model", tiny}, "--text FILE"},
      {{"--model", tiny, "--text", "/nonexistent.txt"}, "/nonexistent.txt"},
      {{"--model", "/nonexistent", "--text", f.path + "/t.jsonl"}, "/nonexistent"},
      {{"--model", tiny, "--text", f.path + "/bad.jsonl"}, "bad.jsonl:1: not a JSON object"},
      {{"--model", tiny, "--text", f.path + "/t.jsonl", "--what", "taste"}, "taste"},
      {{"--model", tiny, "--text", f.path + "/t.jsonl", "--threads", "0"}, "--threads"},
      {{"--model", tiny, "--text", f.path + "/t.jsonl", "--compare-argmax", f.path + "/t.jsonl"}, "troupe-next-1"},
      {{"--model", tiny, "--text", f.path + "/t.jsonl", "--what", "loss", "--dump-argmax", "/nonexistent/x"},
       "/nonexistent/x: cannot be written"},
  };
  for (const auto& r : rows) {
    std::vector<std::string> args{"eval"};
    args.insert(args.end(), r.args.begin(), r.args.end());
    auto p = troupe(args);
    EXPECT_EQ(p.code, 2) << r.want << "\n" << p.err;
    EXPECT_THAT(p.err, HasSubstr(r.want));
    EXPECT_EQ(p.out, "");
  }
}

}  // namespace
}  // namespace troupe::cli
