// Bodies: every wrong type is refused with the field's name, one row each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/gateway/api_request.hpp"

namespace troupe::gateway {
namespace {

using nlohmann::json;

struct row {
  const char* patch;  // merged into a good body
  const char* param;
};

json good(bool chat) {
  if (chat) return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  return {{"model", "m"}, {"prompt", "hi"}};
}

void expect_refused(bool chat, const row& r) {
  json body = good(chat);
  body.update(json::parse(r.patch));
  auto parsed = parse_request(body.dump(), chat, 512);
  ASSERT_FALSE(parsed) << r.patch;
  EXPECT_EQ(parsed.error().status, 400u) << r.patch;
  EXPECT_EQ(parsed.error().param, r.param) << r.patch << ": " << parsed.error().message;
  EXPECT_THAT(parsed.error().message,
              ::testing::HasSubstr(std::string(r.param).substr(0, std::string(r.param).find('['))));
}

TEST(request, wrong_fields_of_both) {
  const row rows[] = {
      {R"({"model": 7})", "model"},
      {R"({"model": null})", "model"},
      {R"({"max_tokens": "10"})", "max_tokens"},
      {R"({"max_tokens": 0})", "max_tokens"},
      {R"({"max_tokens": -1})", "max_tokens"},
      {R"({"max_tokens": 1.5})", "max_tokens"},
      {R"({"max_tokens": 18446744073709551615})", "max_tokens"},
      {R"({"max_completion_tokens": true})", "max_completion_tokens"},
      {R"({"min_tokens": -1})", "min_tokens"},
      {R"({"min_tokens": 9, "max_tokens": 8})", "min_tokens"},
      {R"({"temperature": "hot"})", "temperature"},
      {R"({"temperature": -0.1})", "temperature"},
      {R"({"temperature": 2.1})", "temperature"},
      {R"({"top_p": 0})", "top_p"},
      {R"({"top_p": 1.01})", "top_p"},
      {R"({"top_p": []})", "top_p"},
      {R"({"top_k": 1.5})", "top_k"},
      {R"({"top_k": -2})", "top_k"},
      {R"({"seed": "x"})", "seed"},
      {R"({"seed": 1.5})", "seed"},
      {R"({"seed": -1})", "seed"},
      {R"({"seed": 9007199254740992})", "seed"},
      {R"({"min_p": 0.1})", "min_p"},
      {R"({"min_p": "0"})", "min_p"},
      {R"({"typical_p": 0.9})", "typical_p"},
      {R"({"repetition_penalty": 1.1})", "repetition_penalty"},
      {R"({"no_repeat_ngram_size": 3})", "no_repeat_ngram_size"},
      {R"({"use_beam_search": true})", "use_beam_search"},
      {R"({"guided_json": {"type": "object"}})", "guided_json"},
      {R"({"guided_regex": "a+"})", "guided_regex"},
      {R"({"guided_choice": ["a", "b"]})", "guided_choice"},
      {R"({"stop_token_ids": [7]})", "stop_token_ids"},
      {R"({"stop": 7})", "stop"},
      {R"({"stop": ["a", 7]})", "stop[1]"},
      {R"({"stop": ""})", "stop"},
      {R"({"stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})", "stop"},
      {R"({"stream": "yes"})", "stream"},
      {R"({"stream_options": {"include_usage": true}})", "stream_options"},
      {R"({"stream": true, "stream_options": 7})", "stream_options"},
      {R"({"stream": true, "stream_options": {"include_usage": 7}})", "stream_options.include_usage"},
      {R"({"ignore_eos": 1})", "ignore_eos"},
      {R"({"n": 2})", "n"},
      {R"({"n": "1"})", "n"},
      {R"({"best_of": 3})", "best_of"},
      {R"({"echo": true})", "echo"},
      {R"({"suffix": "x"})", "suffix"},
      {R"({"tools": [{}]})", "tools"},
      {R"({"logit_bias": {"1": 2}})", "logit_bias"},
      {R"({"frequency_penalty": 1})", "frequency_penalty"},
      {R"({"presence_penalty": "x"})", "presence_penalty"},
      {R"({"response_format": {"type": "json_object"}})", "response_format"},
      {R"({"thinking": {"type": "enabled"}})", "thinking"},
  };
  for (const row& r : rows) {
    expect_refused(true, r);
    expect_refused(false, r);
  }
}

TEST(request, wrong_fields_of_chat) {
  const row rows[] = {
      {R"({"messages": []})", "messages"},
      {R"({"messages": null})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": 7, "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "tool", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": null}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 7}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [7]}]})",
       "messages[1].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]})", "messages[0].content[0].text"},
      {R"({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "content": "x", "prefix": 7}]})", "messages[0].prefix"},
      {R"({"logprobs": 3})", "logprobs"},
      {R"({"top_logprobs": 3})", "top_logprobs"},
      {R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs"},
  };
  for (const row& r : rows) expect_refused(true, r);
}

TEST(request, wrong_fields_of_completions) {
  const row rows[] = {
      {R"({"prompt": null})", "prompt"},       {R"({"prompt": ""})", "prompt"},
      {R"({"prompt": []})", "prompt"},         {R"({"prompt": 7})", "prompt"},
      {R"({"prompt": ["a", "b"]})", "prompt"}, {R"({"prompt": [1, "b"]})", "prompt"},
      {R"({"prompt": [1, 2.5]})", "prompt"},   {R"({"prompt": [1, 512]})", "prompt"},
      {R"({"prompt": [-1]})", "prompt"},       {R"({"prompt": [18446744073709551615]})", "prompt"},
      {R"({"prompt": ["a", 1]})", "prompt"},   {R"({"prompt": [[1], "b"]})", "prompt"},
      {R"({"prompt": [{}]})", "prompt"},       {R"({"prompt": [[]]})", "prompt"},
      {R"({"logprobs": true})", "logprobs"},   {R"({"logprobs": 21})", "logprobs"},
  };
  for (const row& r : rows) expect_refused(false, r);
}

TEST(request, null_and_unknown_fields_are_absent) {
  json body = good(true);
  for (const char* key : {"max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "stream",
                          "stream_options", "n", "tools", "ignore_eos"}) {
    body[key] = nullptr;
  }
  body["whatever"] = {{"deep", {1, 2, 3}}};
  auto r = parse_request(body.dump(), true, 512);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_FALSE(r->max_tokens || r->seed || r->stream);
  EXPECT_EQ(r->temperature, 1.0f);
  EXPECT_EQ(r->logprobs, -1);
}

TEST(request, messages_say_what_is_wrong) {
  auto message = [](const char* body, bool chat = false) {
    auto r = parse_request(body, chat, 512);
    return r ? std::string("accepted") : r.error().message;
  };
  EXPECT_EQ(message(R"({"model": "m", "prompt": "x", "max_tokens": 1e30})"),
            "max_tokens must be an integer from 1 to 1073741824, not 1e+30");
  EXPECT_EQ(message(R"({"model": "m", "prompt": ["a", 1]})"),
            "prompt[1] must be a string or a list of token ids, not number");
  EXPECT_EQ(message("{\"a\": }").find("the body is not valid JSON: parse error at line 1"), 0u);
  EXPECT_EQ(message(R"({"model": "m", "messages": [{"role": "assistant", "content": null}, {"role": "user",
                        "content": "x"}]})",
                    true),
            "accepted");
}

TEST(request, forms_that_are_fine) {
  json body = good(true);
  body["messages"] =
      json::parse(R"([{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"user","content":"q","name":"me"},{"role":"assistant","content":"an","prefix":true,"tool_calls":[]}])");
  body.update({{"stop", "x"},
               {"seed", (int64_t{1} << 53) - 1},
               {"min_p", 0},
               {"typical_p", 1.0},
               {"repetition_penalty", 1},
               {"use_beam_search", false},
               {"guided_choice", json::array()},
               {"top_k", -1},
               {"logprobs", true},
               {"n", 1},
               {"frequency_penalty", 0},
               {"thinking", {{"type", "disabled"}}}});
  auto r = parse_request(body.dump(), true, 512);
  ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(r->messages[0], (recipe::message{recipe::role::system, "ab", false}));
  EXPECT_EQ(r->messages[2], (recipe::message{recipe::role::assistant, "an", true}));
  EXPECT_EQ(r->seed, (uint64_t{1} << 53) - 1);
  EXPECT_EQ(r->top_k, 0u);
  EXPECT_EQ(r->logprobs, 0);
}

TEST(request, what_it_leaves_out_is_what_the_model_wants) {
  const std::string folder = ::testing::TempDir() + "troupe-generation-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/generation_config.json";
  auto with = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_sampling_defaults(folder);
  };
  EXPECT_EQ(*read_sampling_defaults(folder + "/none"), sampling_defaults{});
  auto d = with(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 40, "eos_token_id": 1, "do_sample": true})");
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ(*d, (sampling_defaults{0.6f, 0.95f, 40}));
  for (bool chat : {false, true}) {
    auto r = parse_request(good(chat).dump(), chat, 512, *d);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->temperature, 0.6f);
    EXPECT_EQ(r->top_p, 0.95f);
    EXPECT_EQ(r->top_k, 40u);
    json body = good(chat);
    body.update(json{{"temperature", 1.5}, {"top_p", 1}, {"top_k", -1}});
    r = parse_request(body.dump(), chat, 512, *d);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->temperature, 1.5f);
    EXPECT_EQ(r->top_p, 1);
    EXPECT_EQ(r->top_k, 0u);
  }
  EXPECT_EQ(with(R"({"do_sample": false, "temperature": 0.6})")->temperature, 0);
  EXPECT_EQ(*with(R"({"temperature": null})"), sampling_defaults{});
  for (const char* bad :
       {"", "[]", R"({"temperature": 3})", R"({"temperature": "x"})", R"({"top_p": 0})", R"({"top_k": -5})"}) {
    auto broken = with(bad);
    ASSERT_FALSE(broken) << bad;
    EXPECT_THAT(broken.error().message, ::testing::HasSubstr(path)) << bad;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace troupe::gateway
