// HTTP/1.1 and SSE in front of a generator: the OpenAI-compatible API. docs: GET /v1/models, POST /v1/completions, POST
// /v1/chat/completions (API key if there is a key file); GET /health /live /ready /version /metrics (open).
//
// Choices that clients can see:
// - A failure in the middle of a stream is sent as `data: {"error": ...}`, and no `[DONE]` follows: an answer that is
// not
//   complete does not look complete. Before the first token it is an HTTP status.
// - `usage` comes once: in the body, or with stream_options.include_usage in the last chunk before `[DONE]`.
// - `id:` of a stream event is the position (prompt included) of the last token that its text takes into account.
// - A client that closes its sending side while an answer is under way counts as gone; its request is cancelled.
// - While draining, /ready and /health say 503 and /live says 200.
//
// Threads: each io thread owns its connections; encoding of prompts runs on a small pool beside them, so that a long
// prompt does not delay other streams or the health answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/gateway/generator.hpp"
#include "runtime/gateway/sampling_defaults.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::gateway {

/// Settings of a server; each field states its default and what happens at the bound.
struct options {
  std::string address = "127.0.0.1";  // IPv4 or IPv6 literal; anything but loopback needs `key_file`
  uint16_t port = 0;                  // 0 = any free port; `server::port()` tells which
  std::string model_name;             // name served and accepted in `model`; empty = the generator's model name
  std::string key_file;               // API keys (keys.hpp has the form); empty = no keys, loopback only
  uint32_t io_threads = 1;
  uint32_t encode_threads = 1;
  uint32_t max_connections = 4096;      // further ones get 503 with Retry-After and are closed: 512 at a time once the
                                        // client has read it (at most 2 s), those beyond at once; all are counted
  uint32_t max_requests = 1024;         // generations at once; further ones get 429 with Retry-After
  uint64_t max_body_bytes = 32u << 20;  // beyond: 413
  sampling_defaults sampling;           // of requests that say nothing
  uint32_t max_header_bytes = 16u << 10;                   // beyond: 431
  nanoseconds request_timeout = std::chrono::seconds(30);  // from a request's first byte to its last; beyond: 408
  nanoseconds idle_timeout = std::chrono::seconds(75);     // a connection without a request is closed
  nanoseconds keep_alive = std::chrono::seconds(10);       // silence in a stream before a comment line is sent
  uint64_t output_buffer_bytes =
      256u << 10;  // per connection, unsent; when full, tokens wait undecoded (4 bytes each, at
                   // most max_tokens of them) and are sent in larger chunks once there is room
  nanoseconds slow_client_timeout =
      std::chrono::seconds(30);  // no byte taken for so long: the request is cancelled and the connection closed
  nanoseconds stop_grace = std::chrono::seconds(2);  // that `stop` gives answers to leave before it closes
  uint32_t default_max_tokens =
      0;  // of a chat without max_tokens; 0 = what the context leaves (completions: 16, as OpenAI)
};

/// A running server. Every function may be called from any thread.
class server {
 public:
  /// Binds and starts serving. `generator` and `metrics` must outlive the server, `recipe` is shared. Draws seeds for
  /// requests that name none from `random` and reports them. Fails if the address cannot be bound, is not loopback
  /// while there is no key file, or the key file is wrong (naming the line).
  static result<std::unique_ptr<server>> start(const options& opts, std::shared_ptr<const recipe::recipe> recipe,
                                               generator& gen, observe::metrics& metrics, const clock_source& clock,
                                               rng random);
  ~server();

  /// Address as "127.0.0.1:8000" or "[::1]:8000", with the real port.
  std::string address() const;
  uint16_t port() const;

  /// /ready says 503 from now on, new requests for tokens get 503, running ones finish. Returns at once.
  void drain();
  /// Generations under way. Their answers may still have to leave when it is 0: a drain is over at `unanswered` 0.
  uint32_t running() const;
  /// Requests taken whose answer has not been handed to the kernel in full.
  uint32_t unanswered() const;
  /// Waits until `unanswered` is 0, at most `limit`; false when it is not.
  bool wait_answered(nanoseconds limit);
  /// Cancels what runs and ends it with an error (503, or an error event in a stream), gives this and every complete
  /// answer `stop_grace` to leave, closes every connection and joins the threads. Events of the generator that come
  /// later are dropped. Idempotent; also done by the destructor.
  void stop();

 private:
  struct impl;
  explicit server(std::unique_ptr<impl> i);
  std::unique_ptr<impl> impl_;
};

}  // namespace troupe::gateway
