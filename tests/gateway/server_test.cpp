// What a well-behaved client sees.
#include "tests/gateway/server_fixture.hpp"

namespace troupe::gateway::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

using served = server_fixture;

TEST_F(served, open_paths) {
  serve();
  http_client c(port());
  EXPECT_EQ(c.get("/live").status, 200);
  EXPECT_EQ(c.get("/health").status, 200);
  EXPECT_EQ(c.get("/ready").json()["status"], "ready");
  EXPECT_TRUE(c.get("/version").json()["version"].is_string());
  json models = c.get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "tiny-v41");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(c.get("/v1/models/tiny-v41").json()["object"], "model");
  EXPECT_EQ(c.get("/v1/models/tiny%2dv%341").json()["object"], "model") << "percent-encoded";
  EXPECT_EQ(c.get("/v1/models/tiny-v41%").status, 404);
  EXPECT_EQ(c.get("/v1/models/tiny-v41%zz").status, 404);
  EXPECT_EQ(c.get("/v1/models/other").status, 404);
  gen->set_ready(false);
  EXPECT_EQ(c.get("/ready").status, 503);
  EXPECT_EQ(c.get("/live").status, 200);
  reply r = c.post("/v1/completions", completion("x"));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "not_ready");
}

TEST_F(served, chat_answer) {
  serve();
  http_client c(port());
  json body = chat("h\u00e9llo \U0001F600");
  body["max_tokens"] = 100;
  reply r = c.post("/v1/chat/completions", body, "X-Request-Id: abc-1\r\n");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.headers["x-request-id"], "abc-1");
  json j = r.json();
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["choices"][0]["message"]["content"], "You said: h\u00e9llo \U0001F600");
  EXPECT_EQ(j["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(j["id"], "chatcmpl-abc-1");
  json u = j["usage"];
  int prompt = 4 + 11;  // bos, user, 11 bytes, assistant, closed thinking
  EXPECT_EQ(u["prompt_tokens"], prompt);
  EXPECT_EQ(u["completion_tokens"], 10 + 11 + 1);
  EXPECT_EQ(u["total_tokens"], prompt + 22);
  EXPECT_EQ(u["prompt_tokens_details"]["cached_tokens"], prompt / 2);
  EXPECT_EQ(u["prompt_cache_hit_tokens"].get<int>() + u["prompt_cache_miss_tokens"].get<int>(), prompt);
  ASSERT_EQ(gen->seen().size(), 1u);
  EXPECT_EQ(gen->seen()[0].tenant, "local");
  EXPECT_EQ(gen->seen()[0].stop.max_tokens, 100u);
}

TEST_F(served, chat_stream) {
  serve();
  http_client c(port());
  json body = chat("\u00e9");
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  reply r = c.post("/v1/chat/completions", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(r.headers["content-type"], HasSubstr("text/event-stream"));
  auto events = events_of(r.body);
  ASSERT_GT(events.size(), 4u);
  EXPECT_EQ(events.back().data, "[DONE]");
  std::string text;
  int usages = 0, finishes = 0;
  uint32_t prompt = 4 + 2, last = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    json j = json::parse(events[i].data);
    EXPECT_EQ(j["object"], "chat.completion.chunk");
    if (!j["usage"].is_null()) {
      ++usages;
      EXPECT_EQ(i + 2, events.size()) << "the usage chunk is the last one";
      EXPECT_EQ(j["choices"], json::array());
      EXPECT_EQ(j["usage"]["completion_tokens"], 13);
      continue;
    }
    if (i == 0) {
      EXPECT_EQ(j["choices"][0]["delta"]["role"], "assistant");
      EXPECT_EQ(events[i].id, "") << "no token yet";
      continue;
    }
    text += j["choices"][0]["delta"].value("content", "");
    finishes += j["choices"][0]["finish_reason"].is_string();
    auto position = static_cast<uint32_t>(std::stoul(events[i].id));
    EXPECT_GE(position, std::max(prompt, last));
    last = position;
  }
  EXPECT_EQ(text, "You said: \u00e9");
  EXPECT_EQ(usages, 1);
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(last, prompt + 13) << "the end comes behind the last token";
}

TEST_F(served, stream_without_usage_has_none) {
  serve();
  http_client c(port());
  json body = completion("x");
  body["stream"] = true;
  reply r = c.post("/v1/completions", body);
  EXPECT_THAT(r.body, ::testing::Not(HasSubstr("usage")));
  std::string text;
  for (const auto& e : events_of(r.body)) {
    if (e.data != "[DONE]") text += json::parse(e.data)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "You said: x");
}

TEST_F(served, completion_from_token_ids_and_logprobs) {
  serve();
  http_client c(port());
  json body = {{"model", "tiny-v41"}, {"prompt", {0, 3 + 'h', 3 + 'i'}}, {"max_tokens", 12}, {"logprobs", 2}};
  json j = c.post("/v1/completions", body).json();
  EXPECT_EQ(gen->seen()[0].prompt, (std::vector<kernels::token_id>{0, 3 + 'h', 3 + 'i'}));
  json choice = j["choices"][0];
  EXPECT_EQ(choice["text"], "You said: hi");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 12u);
  EXPECT_EQ(choice["logprobs"]["tokens"][0], "Y");
  EXPECT_EQ(choice["logprobs"]["text_offset"][11], 11);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 2u);
  EXPECT_FLOAT_EQ(choice["logprobs"]["token_logprobs"][3], -0.25f);
  EXPECT_EQ(j["usage"]["completion_tokens"], 12);
  body["prompt"] = json::array({json::array({0, 100})});
  EXPECT_EQ(c.post("/v1/completions", body).status, 200);
  body["prompt"] = json::array({"one"});
  EXPECT_EQ(c.post("/v1/completions", body).status, 200);
}

TEST_F(served, chat_logprobs_follow_the_text_in_streams) {
  serve();
  http_client c(port());
  json body = chat("\u00e9");
  body.update({{"logprobs", true}, {"top_logprobs", 1}, {"stream", true}});
  std::string text;
  std::vector<uint8_t> bytes;
  for (const auto& e : events_of(c.post("/v1/chat/completions", body).body)) {
    if (e.data == "[DONE]") continue;
    json choice = json::parse(e.data)["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice["logprobs"].is_null()) continue;
    for (const json& t : choice["logprobs"]["content"]) {
      EXPECT_EQ(t["top_logprobs"].size(), 1u);
      for (uint8_t b : t["bytes"]) bytes.push_back(b);
    }
  }
  EXPECT_EQ(text, "You said: \u00e9");
  EXPECT_THAT(std::string(bytes.begin(), bytes.end()), ::testing::StartsWith(text));
}

TEST_F(served, sampling_fields_reach_the_generator) {
  serve();
  http_client c(port());
  json body = completion("x");
  body.update({{"temperature", 0.5},
               {"top_p", 0.9},
               {"top_k", 7},
               {"seed", 1234567890123},
               {"ignore_eos", true},
               {"min_tokens", 3},
               {"an_unknown_field", {1, 2}},
               {"user", "me"},
               {"n", 1}});
  reply r = c.post("/v1/completions", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["seed"], 1234567890123);
  auto g = gen->seen()[0];
  EXPECT_EQ(g.sampling, (kernels::sampling_params{0.5f, 0.9f, 7, 1234567890123, -1}));
  EXPECT_TRUE(g.stop.ignore_eos);
  EXPECT_EQ(g.stop.min_tokens, 3u);
  body.erase("seed");
  json first = c.post("/v1/completions", body).json(), second = c.post("/v1/completions", body).json();
  EXPECT_NE(first["seed"], second["seed"]);
  EXPECT_EQ(gen->seen()[1].sampling.seed, first["seed"].get<uint64_t>());
  // It follows from tenant and request id, at any front.
  json again = c.post("/v1/completions", body, "X-Request-Id: a-1\r\n").json();
  EXPECT_EQ(again["seed"], c.post("/v1/completions", body, "X-Request-Id: a-1\r\n").json()["seed"]);
  EXPECT_NE(again["seed"], c.post("/v1/completions", body, "X-Request-Id: a-2\r\n").json()["seed"]);
  EXPECT_LT(again["seed"].get<uint64_t>(), uint64_t{1} << 53);
}

// After every event of a stream: a client that has lost its connection there gets exactly the rest.
TEST_F(served, a_client_that_comes_back_gets_the_rest_of_the_stream) {
  serve();
  http_client c(port());
  for (bool with_logprobs : {false, true}) {
    json body = chat("caf\u00e9 \u4f60\u597d");
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (with_logprobs) body["logprobs"] = true;
    const std::string id = "X-Request-Id: back-again\r\n";
    const auto whole = events_of(c.post("/v1/chat/completions", body, id).body);
    ASSERT_GT(whole.size(), 6u);
    const auto told = [](const std::vector<sse_event>& events, size_t from, size_t to) {
      std::string text;
      json logprobs = json::array(), last;
      for (size_t i = from; i < to; ++i) {
        if (events[i].data == "[DONE]") continue;
        last = json::parse(events[i].data);
        if (last["choices"].empty()) continue;
        text += last["choices"][0]["delta"].value("content", "");
        if (const auto& l = last["choices"][0]["logprobs"]; l.is_object())
          for (const auto& t : l["content"]) logprobs.push_back(t);
      }
      return json{{"text", text}, {"logprobs", logprobs}, {"usage", last.value("usage", json())}};
    };
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      if (whole[cut - 1].id.empty()) continue;
      const auto r = c.post("/v1/chat/completions", body, id + "Last-Event-ID: " + whole[cut - 1].id + "\r\n");
      ASSERT_EQ(r.status, 200) << r.body;
      const auto rest = events_of(r.body);
      EXPECT_EQ(told(rest, 0, rest.size()), told(whole, cut, whole.size())) << "after event " << cut - 1;
      EXPECT_EQ(rest.back().data, "[DONE]");
    }
    EXPECT_EQ(c.post("/v1/chat/completions", body, "Last-Event-ID: 7\r\n").status, 400) << "of which answer?";
    EXPECT_EQ(c.post("/v1/chat/completions", body, id + "Last-Event-ID: x\r\n").status, 400);
  }
}

TEST_F(served, default_max_tokens) {
  serve();
  http_client c(port());
  json body = completion("x");
  body.erase("max_tokens");
  c.post("/v1/completions", body);
  c.post("/v1/chat/completions", chat("x"));
  body = chat("x");
  body["max_tokens"] = 5;
  body["max_completion_tokens"] = 6;
  c.post("/v1/chat/completions", body);
  EXPECT_EQ(gen->seen()[0].stop.max_tokens, 16u);
  EXPECT_EQ(gen->seen()[1].stop.max_tokens, 512u - 5);
  EXPECT_EQ(gen->seen()[2].stop.max_tokens, 6u);
}

TEST_F(served, stop_string_across_tokens_cancels_upstream) {
  serve([](const generate_request&) {
    script s;
    s.tokens = byte_tokens("one STAR two STOP three ");
    s.endless = true;
    s.gated = true;  // so that the cancel meets a running request
    return s;
  });
  http_client c(port());
  for (bool stream : {false, true}) {
    json body = completion("x");
    body.update({{"stop", {"STOP", "never"}}, {"stream", stream}, {"max_tokens", 400}, {"logprobs", 0}});
    if (stream) body["stream_options"] = {{"include_usage", true}};
    c.request("POST", "/v1/completions", body.dump());
    ASSERT_TRUE(gen->wait([&] { return gen->active() == 1; }));
    gen->allow(20);
    reply r = c.read();
    ASSERT_EQ(r.status, 200) << r.body;
    std::string text;
    json usage, finish;
    size_t records = 0;
    auto take = [&](const json& j) {
      if (j.contains("usage") && !j["usage"].is_null()) usage = j["usage"];
      if (j["choices"].empty()) return;
      text += j["choices"][0]["text"].get<std::string>();
      if (!j["choices"][0]["finish_reason"].is_null()) finish = j["choices"][0]["finish_reason"];
      if (!j["choices"][0]["logprobs"].is_null()) records += j["choices"][0]["logprobs"]["tokens"].size();
    };
    if (!stream)
      take(r.json());
    else {
      for (const auto& e : events_of(r.body)) {
        if (e.data != "[DONE]") take(json::parse(e.data));
      }
    }
    EXPECT_EQ(text, "one STAR two ");
    EXPECT_EQ(finish, "stop");
    EXPECT_EQ(usage["completion_tokens"], 17);
    EXPECT_EQ(records, text.size()) << "no record of a token of the stop string";
  }
  EXPECT_EQ(gen->cancelled(), 2u);
}

TEST_F(served, stop_strings_wait_for_min_tokens) {
  serve([](const generate_request&) {
    script s;
    s.tokens = byte_tokens("a.b.c.d.");
    s.endless = true;
    return s;
  });
  http_client c(port());
  json body = completion("x");
  body.update({{"stop", "."}, {"min_tokens", 4}});
  EXPECT_EQ(c.post("/v1/completions", body).json()["choices"][0]["text"], "a.b.c");
}

TEST_F(served, characters_cut_by_tokens_stay_whole) {
  serve([](const generate_request&) {
    script s;
    s.tokens = byte_tokens("\U0001F600\u673a\xE6\x9C");  // the last one stays open
    return s;
  });
  http_client c(port());
  json body = completion("x");
  body["stream"] = true;
  std::string text;
  for (const auto& e : events_of(c.post("/v1/completions", body).body)) {
    if (e.data != "[DONE]")
      text += json::parse(e.data)["choices"][0]["text"].get<std::string>();  // parse refuses half characters
  }
  EXPECT_EQ(text, "\U0001F600\u673a\uFFFD");
}

TEST_F(served, pipelined_requests_are_answered_in_order) {
  serve();
  http_client c(port());
  std::string all;
  for (const char* word : {"one", "two", "three"}) {
    std::string body = completion(word).dump();
    all += "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
    all += "GET /live HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  ASSERT_TRUE(c.send(all));
  for (const char* word : {"one", "two", "three"}) {
    EXPECT_EQ(c.read().json()["choices"][0]["text"], std::string("You said: ") + word);
    EXPECT_EQ(c.read().json()["status"], "live");
  }
}

TEST_F(served, http_forms) {
  serve();
  {
    http_client c(port());  // byte by byte
    for (char b : std::string("GET /live?x=1 HTTP/1.1\r\nHost: x\r\n\r\n"))
      ASSERT_TRUE(c.send(std::string_view(&b, 1)));
    EXPECT_EQ(c.read().status, 200);
  }
  {
    http_client c(port());  // a body in chunks, with a wait for 100
    std::string body = completion("x").dump();
    c.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
    EXPECT_TRUE(c.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
    char size[16];
    snprintf(size, sizeof size, "%zx\r\n", body.size());
    c.send(size + body + "\r\n0\r\n\r\n");
    EXPECT_EQ(c.read().status, 200);
  }
  {
    http_client c(port());  // Connection: close, and HTTP/1.0
    c.send("GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(c.read().headers["connection"], "close");
    EXPECT_TRUE(c.closed());
  }
  {
    http_client c(port());
    json body = completion("x");
    body["stream"] = true;
    std::string text = body.dump();
    c.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
    EXPECT_THAT(c.read().body, HasSubstr("[DONE]"));
  }
}

TEST_F(served, ipv6_and_address) {
  opts.address = "::1";
  serve();
  EXPECT_EQ(srv->address(), "[::1]:" + std::to_string(port()));
  http_client c(port(), 0, true);
  EXPECT_EQ(c.get("/live").status, 200);
}

TEST_F(served, silence_is_filled_with_comments) {
  opts.keep_alive = std::chrono::milliseconds(20);
  serve([](const generate_request& r) {
    script s = echo(r);
    s.gated = true;
    return s;
  });
  http_client c(port());
  json body = completion("x");
  body["stream"] = true;
  c.request("POST", "/v1/completions", body.dump());
  EXPECT_TRUE(c.read_until(": keep-alive\n\n"));
  EXPECT_TRUE(c.read_until(": keep-alive\n\n"));
  gen->allow(1000);
  EXPECT_TRUE(c.read_until("data: [DONE]\n\n"));
}

TEST_F(served, metrics_have_vllm_names_and_add_up) {
  serve();
  http_client c(port());
  json body = completion("hello");
  body["max_tokens"] = 4;
  c.post("/v1/completions", body);
  c.post("/v1/completions", completion("hello"));
  c.get("/no/such/path/1");
  c.get("/no/such/path/2");
  reply r = c.get("/metrics");
  EXPECT_THAT(r.headers["content-type"], HasSubstr("text/plain; version=0.0.4"));
  for (const char* name : {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_bucket",
                           "vllm:time_per_output_token_seconds_count", "vllm:e2e_request_latency_seconds_sum",
                           "vllm:spec_decode_num_draft_tokens_total", "troupe_http_requests_total"}) {
    EXPECT_THAT(r.body, HasSubstr(name));
  }
  EXPECT_EQ(metric(R"(vllm:prompt_tokens_total{model_name="tiny-v41"})"), 12);
  EXPECT_EQ(metric(R"(vllm:generation_tokens_total{model_name="tiny-v41"})"), 4 + 16);
  EXPECT_EQ(metric(R"(vllm:request_success_total{finished_reason="length",model_name="tiny-v41"})"), 1);
  EXPECT_EQ(metric(R"(vllm:request_success_total{finished_reason="stop",model_name="tiny-v41"})"), 1);
  EXPECT_EQ(metric(R"(vllm:num_requests_running{model_name="tiny-v41"})"), 0);
  EXPECT_EQ(metric(R"(troupe_http_requests_total{code="404",model_name="tiny-v41",route="other"})"), 2);
  EXPECT_EQ(metric(R"(vllm:time_to_first_token_seconds_count{model_name="tiny-v41"})"), 2);
}

}  // namespace
}  // namespace troupe::gateway::testing
