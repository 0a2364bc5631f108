// One streaming completion among many on one thread.
#pragma once

#include <boost/asio/io_context.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {

/// What to ask for, and how the client behaves.
struct call_request {
  config::address server;               // an IP address
  std::string body, api_key;            // body: JSON for /v1/completions, with "stream": true
  nanoseconds silence{0};               // longest wait for the connection, the answer, or its next byte
  uint32_t prompt_tokens = 0;           // as the body has it
  uint32_t answer_tokens = UINT32_MAX;  // the most that the body asks for
  std::optional<uint32_t> leaves_at;    // closes the connection when it has so many tokens of the answer
  bool slow = false;                    // reads 256 bytes every 20 ms, with as small a receive buffer as there is
};

/// How a call ended.
enum class call_end : uint8_t {
  finished,     // the stream came to its end, with a finish and [DONE]
  left,         // by leaves_at
  interrupted,  // by abort()
  failed        // see `failure`
};

/// What came of it. Times are of the clock that was given; 0 where it did not come to that.
struct call_result {
  call_end end = call_end::failed;
  std::string failure;  // its kind in a few words: "http 429", "timeout", "connection refused", "cut short", ...
  nanoseconds sent{0}, first_token{0}, last_token{0}, ended{0};
  uint32_t tokens = 0;  // of the answer, received: by the ids of its events, or one per event with text
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // by its usage
};

/// The call. It keeps itself alive until it has ended; all functions on the thread of its io_context.
class call {
 public:
  using on_end = std::function<void(const call_result&)>;
  /// `count` tokens came at once, `gap` after those before them (not called for the first ones).
  using on_tokens = std::function<void(nanoseconds gap, uint32_t count)>;
  virtual ~call() = default;
  /// Ends it soon as `interrupted`, unless it has ended.
  virtual void abort() = 0;

  /// Begins at once; `end` is called exactly once, later.
  static std::shared_ptr<call> start(boost::asio::io_context& context, const clock_source& clock, call_request request,
                                     on_end end, on_tokens tokens);
};

}  // namespace troupe::cli
