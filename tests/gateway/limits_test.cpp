// Clients that are wrong, slow, gone or too many; and the end of a server. After each the server still serves.
#include <sys/resource.h>

#include <fstream>
#include <thread>

#include "runtime/base/rng.hpp"
#include "runtime/gateway/keys.hpp"
#include "tests/gateway/server_fixture.hpp"

namespace troupe::gateway::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class limits : public server_fixture {
 protected:
  void still_serves() {
    http_client c(port());
    json body = completion("ok");
    reply r = c.post("/v1/completions", body);
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_TRUE(gen->wait([&] { return srv->running() == 0; }));
  }
  static script endless(const generate_request& r) {
    if (r.prompt.size() == 3) return echo(r);  // what still_serves sends
    script s;
    s.tokens = byte_tokens("abcdefgh");
    s.endless = true;
    return s;
  }
};

TEST_F(limits, malformed_json) {
  serve();
  http_client c(port());
  for (const char* body : {"", "{", "[1", "nonsense", "{\"model\": \"tiny-v41\", }", "[]", "7", "\xff\xfe",
                           "{\"prompt\":\"\xff\"}", "{\"a\":\"\\ud800\"}"}) {
    c.request("POST", "/v1/completions", body);
    reply r = c.read();
    EXPECT_EQ(r.status, 400) << body;
    json e = r.json()["error"];
    EXPECT_EQ(e["type"], "invalid_request_error");
    EXPECT_TRUE(e["message"].is_string() && e.contains("param") && e.contains("code"));
  }
  c.request("POST", "/v1/completions", std::string(1 << 20, '['));
  EXPECT_THAT(c.read().body, HasSubstr("nests deeper"));
  still_serves();
}

TEST_F(limits, bad_http) {
  serve();
  for (const char* text : {"\r\nrubbish\r\n\r\n", "GET\r\n\r\n", "POST /live HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                           "\x16\x03\x01\x02\x00\x01\x00"}) {
    http_client c(port());
    c.send(text);
    EXPECT_EQ(c.read().status, 400) << text;
    EXPECT_TRUE(c.closed());
  }
  http_client c(port());
  EXPECT_EQ(c.get("/v1/completions").status, 405);
  EXPECT_EQ(c.post("/live", {}).status, 405);
  EXPECT_EQ(c.get("/nowhere").status, 404);
  still_serves();
}

TEST_F(limits, unknown_model) {
  serve();
  http_client c(port());
  json body = completion("x");
  body["model"] = "gpt-4";
  reply r = c.post("/v1/completions", body);
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(r.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(r.json()["error"]["param"], "model");
  EXPECT_THAT(r.body, HasSubstr("tiny-v41"));
  still_serves();
}

TEST_F(limits, prompt_over_the_context) {
  serve();
  http_client c(port());
  json body = completion(std::string(600, 'x'));
  reply r = c.post("/v1/completions", body);
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(r.json()["error"]["param"], "prompt");
  EXPECT_THAT(r.body, HasSubstr("601"));
  body = chat("x");
  body["max_tokens"] = 508;
  r = c.post("/v1/chat/completions", body);
  EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(r.json()["error"]["param"], "messages");
  body["max_tokens"] = 507;
  EXPECT_EQ(c.post("/v1/chat/completions", body).status, 200);
  still_serves();
}

TEST_F(limits, body_over_the_limit) {
  opts.max_body_bytes = 10000;
  serve();
  for (bool chunked : {false, true}) {
    http_client c(port());
    std::string body(3 << 20, 'x');
    if (chunked) {
      c.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n300000\r\n");
      c.send(body);
    } else {
      c.request("POST", "/v1/completions", body);
    }
    reply r = c.read();
    EXPECT_EQ(r.status, 413);
    EXPECT_EQ(r.json()["error"]["code"], "body_too_large");
    EXPECT_TRUE(c.closed());
  }
  http_client c(port());
  EXPECT_EQ(c.get("/live", "X-Long: " + std::string(20000, 'x') + "\r\n").status, 431);
  still_serves();
}

TEST_F(limits, too_many_connections) {
  opts.max_connections = 4;
  serve();
  std::vector<std::unique_ptr<http_client>> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(std::make_unique<http_client>(port()));
    EXPECT_EQ(held.back()->get("/live").status, 200);
  }
  {
    http_client c(port());
    reply r = c.read();  // said without being asked
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.json()["error"]["code"], "too_many_connections");
    EXPECT_EQ(r.headers["retry-after"], "1");
    EXPECT_TRUE(c.closed());
  }
  EXPECT_EQ(held[0]->get("/live").status, 200) << "those inside are not disturbed";
  held.clear();
  EXPECT_TRUE(gen->wait([&] { return metric(R"(troupe_http_connections{model_name="tiny-v41"})") == 0; }));
  still_serves();
}

TEST_F(limits, too_many_requests) {
  opts.max_requests = 2;
  serve([](const generate_request& r) {
    script s = echo(r);
    s.gated = r.prompt.size() > 3;
    return s;
  });
  http_client a(port()), b(port()), c(port());
  a.request("POST", "/v1/completions", completion("first").dump());
  b.request("POST", "/v1/completions", completion("second").dump());
  ASSERT_TRUE(gen->wait([&] { return gen->active() == 2; }));
  reply r = c.post("/v1/completions", completion("third"));
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(r.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(r.headers["retry-after"], "1");
  EXPECT_EQ(c.get("/health").status, 200) << "being busy is not being ill";
  gen->allow(1000);
  EXPECT_EQ(a.read().status, 200);
  EXPECT_EQ(b.read().status, 200);
  still_serves();
}

TEST_F(limits, refusal_of_the_cluster_has_its_status) {
  std::map<errc, int> want = {{errc::exhausted, 429}, {errc::unavailable, 503}, {errc::peer_lost, 503},
                              {errc::timeout, 504},   {errc::internal, 500},    {errc::invalid_argument, 400}};
  errc now{};
  serve([&](const generate_request&) {
    script s;
    s.failure = now;
    s.failure_text = "the queue is full";
    return s;
  });
  http_client c(port());
  for (bool stream : {false, true}) {
    for (auto [code, status] : want) {
      now = code;
      json body = completion("x");
      body["stream"] = stream;
      reply r = c.post("/v1/completions", body);
      EXPECT_EQ(r.status, status);
      EXPECT_EQ(r.json()["error"]["message"], "the queue is full");
    }
  }
}

TEST_F(limits, failure_in_mid_stream_ends_with_an_error_and_no_done) {
  serve([](const generate_request&) {
    script s;
    s.tokens = byte_tokens("half an ans");
    s.failure = errc::peer_lost;
    s.failure_text = "rank 1 did not show up";
    return s;
  });
  http_client c(port());
  json body = chat("x");
  body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  reply r = c.post("/v1/chat/completions", body);
  EXPECT_EQ(r.status, 200);
  auto events = events_of(r.body);
  EXPECT_EQ(json::parse(events.back().data)["error"]["message"], "rank 1 did not show up");
  EXPECT_EQ(json::parse(events.back().data)["error"]["code"], "peer_lost");
  EXPECT_THAT(r.body, ::testing::Not(HasSubstr("[DONE]")));
  EXPECT_THAT(r.body, ::testing::Not(HasSubstr("\"finish_reason\":\"")));
  EXPECT_EQ(metric(R"(vllm:request_success_total{finished_reason="error",model_name="tiny-v41"})"), 1);
}

TEST_F(limits, client_gone_in_mid_stream_cancels_and_is_accounted) {
  serve([](const generate_request& r) {
    script s = endless(r);
    s.gated = r.prompt.size() != 3;
    s.cached = 2;
    return s;
  });
  int n = 0;
  for (bool stream : {true, false}) {
    for (bool hard : {true, false}) {
      http_client c(port());
      json body = completion("some prompt");
      body["stream"] = stream;
      c.request("POST", "/v1/completions", body.dump());
      ASSERT_TRUE(gen->wait([&] { return gen->active() == 1; }));
      gen->allow(3);
      if (stream) {
        ASSERT_TRUE(c.read_until("data: "));
      }
      ASSERT_TRUE(gen->wait([&] { return gen->tokens_given() == static_cast<uint64_t>(3 * (n + 1)); }));
      if (hard)
        c.leave();
      else
        c.finish_sending();
      ++n;
      EXPECT_TRUE(gen->wait([&] { return gen->cancelled() == static_cast<size_t>(n) && gen->active() == 0; }));
      EXPECT_TRUE(gen->wait([&] { return srv->running() == 0; }));
    }
  }
  EXPECT_EQ(metric(R"(troupe_client_gone_total{model_name="tiny-v41"})"), n);
  EXPECT_EQ(metric(R"(vllm:request_success_total{finished_reason="abort",model_name="tiny-v41"})"), n);
  EXPECT_EQ(metric(R"(vllm:generation_tokens_total{model_name="tiny-v41"})"), 3 * n);
  EXPECT_EQ(metric(R"(vllm:prompt_tokens_total{model_name="tiny-v41"})"), 12 * n);
  EXPECT_EQ(metric(R"(vllm:num_requests_running{model_name="tiny-v41"})"), 0);
  still_serves();
}

TEST_F(limits, slow_client_is_fed_in_large_pieces_then_dropped) {
  opts.output_buffer_bytes = 8 << 10;
  opts.slow_client_timeout = std::chrono::milliseconds(400);
  serve(endless, 8000000);
  json body = completion("slow");
  body.update({{"stream", true}, {"max_tokens", 100000}});
  {
    http_client c(port(), 4096);
    json more = body;  // than the sockets' buffers hold
    more["max_tokens"] = 5000000;
    c.request("POST", "/v1/completions", more.dump());
    ASSERT_TRUE(c.read_until("data: "));
    // It reads nothing more: the server gives up and cancels, or the answer was complete upstream already.
    EXPECT_TRUE(gen->wait([&] { return metric(R"(troupe_client_gone_total{model_name="tiny-v41"})") == 1; }));
    EXPECT_TRUE(gen->wait([&] { return gen->active() == 0 && srv->running() == 0; }));
  }
  still_serves();
  {
    // One that pauses but goes on reads everything, in fewer events than tokens.
    http_client c(port(), 4096);
    c.request("POST", "/v1/completions", body.dump());
    ASSERT_TRUE(gen->wait([&] { return gen->active() == 0 && gen->seen().size() == 3; }));
    reply r = c.read();
    std::string text;
    auto events = events_of(r.body);
    for (const auto& e : events) {
      if (e.data != "[DONE]") text += json::parse(e.data)["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text.size(), 100000u);
    EXPECT_EQ(text.substr(99992), "abcdefgh");
    EXPECT_LT(events.size(), 50000u);
    EXPECT_EQ(events.back().data, "[DONE]");
  }
}

TEST_F(limits, slow_requests_time_out) {
  opts.request_timeout = std::chrono::milliseconds(50);
  opts.idle_timeout = std::chrono::milliseconds(150);
  serve();
  http_client half(port()), idle(port());
  half.send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  reply r = half.read();
  EXPECT_EQ(r.status, 408);
  EXPECT_TRUE(half.closed());
  EXPECT_TRUE(idle.closed());
  still_serves();
}

TEST_F(limits, keys_decide_tenant_salt_and_class) {
  opts.key_file = ::testing::TempDir() + "keys-" + std::to_string(getpid()) + ".yaml";
  std::ofstream(opts.key_file) << "keys:\n  - {key: sk-aaaaaaaa, tenant: acme, traffic: agent}\n  - {key: sk-bbbbbbbb, "
                                  "tenant: zeta, salt: pepper}\n";
  opts.address = "0.0.0.0";
  serve();
  http_client c(port());
  EXPECT_EQ(c.get("/live").status, 200);
  EXPECT_EQ(c.get("/v1/models").status, 401);
  for (const char* bad : {"Authorization: Bearer sk-aaaaaaab\r\n", "Authorization: Bearer \r\n",
                          "Authorization: sk-aaaaaaaa\r\n", "Authorization: Basic sk-aaaaaaaa\r\n"}) {
    reply r = c.post("/v1/completions", completion("x"), bad);
    EXPECT_EQ(r.status, 401) << bad;
    EXPECT_EQ(r.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(r.headers["www-authenticate"], "Bearer");
  }
  json body = completion("x");
  body.update({{"cache_salt", "victim"}, {"tenant", "zeta"}, {"user", "zeta"}});  // of no effect
  EXPECT_EQ(c.post("/v1/completions", body, "Authorization: Bearer sk-aaaaaaaa\r\nX-Tenant-Id: zeta\r\n").status, 200);
  EXPECT_EQ(c.post("/v1/completions", body, "authorization: bearer sk-bbbbbbbb\r\n").status, 200);
  auto seen = gen->seen();
  EXPECT_EQ(seen[0].tenant, "acme");
  EXPECT_EQ(seen[0].salt, derived_salt("acme"));
  EXPECT_EQ(seen[0].traffic, traffic_class::agent);
  EXPECT_EQ(seen[1].salt, "pepper");
  EXPECT_EQ(seen[1].traffic, traffic_class::chatbot);
  EXPECT_NE(seen[0].id, seen[1].id);
}

TEST_F(limits, without_keys_only_loopback_is_bound) {
  auto r = recipe::recipe::load(TROUPE_TEST_DATA "/tiny-v41");
  ASSERT_TRUE(r);
  std::shared_ptr<const recipe::recipe> shared = std::move(*r);
  gen = std::make_unique<scripted_generator>(echo);
  auto error = [&](const char* address, const char* key_file) {
    options o;
    o.address = address;
    o.key_file = key_file;
    auto s = server::start(o, shared, *gen, metrics, steady_clock(), rng(1));
    return s ? std::string("started") : s.error().message;
  };
  EXPECT_THAT(error("0.0.0.0", ""), HasSubstr("no key file"));
  EXPECT_THAT(error("::", ""), HasSubstr("no key file"));
  EXPECT_THAT(error("localhost", ""), HasSubstr("is not an IPv4 or IPv6 address"));
  EXPECT_THAT(error("0.0.0.0", "/nowhere/keys"), HasSubstr("/nowhere/keys"));
  EXPECT_EQ(error("127.0.0.1", ""), "started");
}

TEST_F(limits, drain_finishes_what_runs_and_admits_nothing) {
  serve([](const generate_request& r) {
    script s = echo(r);
    s.gated = true;
    return s;
  });
  http_client running(port()), other(port());
  json body = completion("long");
  body["stream"] = true;
  running.request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(gen->wait([&] { return gen->active() == 1; }));
  srv->drain();
  EXPECT_EQ(srv->running(), 1u);
  reply r = other.get("/ready");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["status"], "draining");
  http_client third(port());
  EXPECT_EQ(third.get("/live").status, 200);
  http_client fourth(port());
  r = fourth.post("/v1/completions", completion("new"));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "draining");
  gen->allow(1000);
  EXPECT_TRUE(running.read_until("data: [DONE]\n\n"));
  EXPECT_TRUE(gen->wait([&] { return srv->running() == 0; }));
  EXPECT_EQ(gen->cancelled(), 0u);
}

// Answers larger than the sockets hold, to a client that reads only when the server stops already.
TEST_F(limits, answers_that_are_complete_leave_before_a_stop) {
  opts.output_buffer_bytes = 8 << 10;
  for (bool stream : {true, false}) {
    for (bool wait : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "stream " << stream << " wait " << wait);
      opts.stop_grace = wait ? std::chrono::seconds(0) : std::chrono::seconds(20);
      serve(endless, 8000000);
      http_client c(port(), 4096);
      json body = completion("a long one");
      body.update({{"stream", stream}, {"max_tokens", 40000}, {"logprobs", 0}});
      c.request("POST", "/v1/completions", body.dump());
      ASSERT_TRUE(gen->wait([&] { return gen->active() == 0 && gen->seen().size() == 1; }));
      ASSERT_TRUE(stream || gen->wait([&] { return srv->running() == 0; }));
      srv->drain();
      EXPECT_FALSE(srv->wait_answered(nanoseconds(0)));
      EXPECT_EQ(srv->unanswered(), 1u);
      reply r;
      std::thread late([&] {
        try {
          while (!wait) {  // until the stop has begun, which closes the listening socket
            http_client probe(port());
            std::this_thread::yield();
          }
        } catch (const std::exception&) {
        }
        try {
          r = c.read();
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
      });
      EXPECT_TRUE(!wait || srv->wait_answered(std::chrono::seconds(20)));
      srv->stop();
      late.join();
      EXPECT_EQ(r.status, 200);
      if (stream) {
        EXPECT_EQ(events_of(r.body).back().data, "[DONE]");
        EXPECT_THAT(r.body, HasSubstr("\"finish_reason\":\"length\""));
      } else {
        EXPECT_EQ(r.json()["usage"]["completion_tokens"], 40000);
      }
      EXPECT_TRUE(c.closed());
      EXPECT_EQ(srv->unanswered(), 0u);
      srv.reset();
    }
  }
}

TEST_F(limits, every_connection_over_the_limit_is_told_and_counted) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &files);
  opts.max_connections = 1;
  serve();
  auto held = std::make_unique<http_client>(port());
  EXPECT_EQ(held->get("/live").status, 200);
  constexpr int many = 700;  // more than are kept until they have read
  std::vector<std::unique_ptr<http_client>> refused;
  for (int i = 0; i < many; ++i) refused.push_back(std::make_unique<http_client>(port()));
  for (auto& c : refused) {
    reply r = c->read();
    ASSERT_EQ(r.status, 503);
    ASSERT_EQ(r.json()["error"]["code"], "too_many_connections");
    ASSERT_EQ(r.headers["retry-after"], "1");
  }
  EXPECT_EQ(metric(R"(troupe_rejected_total{model_name="tiny-v41",reason="connections"})"), many);
  // Refused ones that still linger take no place.
  held.reset();
  EXPECT_TRUE(gen->wait([&] { return http_client(port()).get("/live").status == 200; }));
}

TEST_F(limits, stop_with_requests_under_way_and_late_events) {
  serve([](const generate_request& r) {
    script s = endless(r);
    s.gated = true;
    return s;
  });
  http_client a(port()), b(port());
  json body = completion("long one");
  a.request("POST", "/v1/completions", body.dump());
  body["stream"] = true;
  b.request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(gen->wait([&] { return gen->active() == 2; }));
  gen->allow(1);
  ASSERT_TRUE(b.read_until("data: "));
  srv->stop();
  EXPECT_EQ(gen->cancelled(), 2u);
  EXPECT_EQ(a.read().status, 503);
  EXPECT_TRUE(b.read_until("data: {\"error\":")) << "a stream that was cut off says so";
  EXPECT_TRUE(a.closed());
  EXPECT_TRUE(b.closed());
  srv.reset();
  EXPECT_TRUE(gen->wait([&] { return gen->active() == 0; }));  // its last events come to a server that is gone
}

TEST_F(limits, many_streams_with_random_cancels_all_end) {
  opts.io_threads = 2;
  constexpr uint64_t test_seed = 20261129;
  SCOPED_TRACE(::testing::Message() << "seed " << test_seed);
  serve(endless, 4000);
  int total = getenv("TROUPE_LONG") != nullptr ? 4000 : 400;
  rng r(test_seed);
  int left = 0, whole = 0;
  for (int i = 0; i < total; ++i) {
    http_client c(port());
    json body = completion("some prompt");
    body.update({{"stream", true}, {"max_tokens", 1 + static_cast<int>(r.below(300))}});
    c.request("POST", "/v1/completions", body.dump());
    if (r.below(10) < 3) {
      if (r.below(2) == 0) c.read_until("data: ");
      c.leave();
      ++left;
    } else {
      EXPECT_TRUE(c.read_until("data: [DONE]\n\n"));
      ++whole;
    }
  }
  EXPECT_TRUE(gen->wait([&] { return gen->active() == 0 && srv->running() == 0; }));
  EXPECT_GT(left, total / 5);
  EXPECT_EQ(metric(R"(vllm:num_requests_running{model_name="tiny-v41"})"), 0);
  EXPECT_EQ(metric(R"(vllm:num_requests_waiting{model_name="tiny-v41"})"), 0);
  EXPECT_TRUE(gen->wait([&] { return metric(R"(troupe_http_connections{model_name="tiny-v41"})") == 0; }));
  EXPECT_GE(metric(R"(vllm:request_success_total{finished_reason="length",model_name="tiny-v41"})"), whole);
  still_serves();
}

}  // namespace
}  // namespace troupe::gateway::testing
