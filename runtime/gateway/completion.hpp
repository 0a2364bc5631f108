// A request for tokens from admission to its last event.
//
//   admitted -> preparing (encoding pool: JSON, prompt) -> running (generator) -> ended
//
// The client may go at any time: before `running` nothing more happens, after it the generator is told to cancel and
// its last event still accounts the usage. When the client is slow, events wait as token ids until there is room.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "runtime/gateway/answer.hpp"
#include "runtime/gateway/api_request.hpp"
#include "runtime/gateway/core.hpp"
#include "runtime/gateway/exchange.hpp"

namespace troupe::gateway {

/// Lives on its connection's thread; only the hand-over to the pool and the generator's callback come from elsewhere,
/// and they post.
class completion final : public exchange_user, public std::enable_shared_from_this<completion> {
 public:
  /// Admits and starts a request, or answers with 429 or 503 and returns nullptr. `request_id` is valid already.
  static std::shared_ptr<completion> start(std::shared_ptr<core> shared, std::shared_ptr<exchange> out,
                                           http_request request, const client& who, std::string request_id, bool chat);
  completion(std::shared_ptr<core> shared, std::shared_ptr<exchange> out, const client& who, std::string request_id,
             nanoseconds arrived);
  ~completion() override;

  void on_room() override;
  void on_silence() override;
  void on_client_gone() override;
  void on_stop() override;

 private:
  struct prepared {
    api_request request;
    std::vector<kernels::token_id> prompt;
    std::vector<kv::block_hash> chain;
    uint32_t max_tokens = 0;
  };
  static api_result<prepared> prepare(core& shared, const std::string& body, bool chat, const client& who);
  void on_prepared(api_result<prepared> p);
  void on_event(generate_event event);
  void measure(const generate_event& event);
  void take(generate_event& event);
  void drop_delivered();
  void emit();
  void open_stream();
  void event_line(const std::string& json);
  void finish(const generate_event& last);
  void fail_answer(const api_error& e);
  void account(const generate_event& last);
  void refuse(const api_error& e);
  void release();
  http_headers headers() const;

  const std::shared_ptr<core> core_;
  std::shared_ptr<exchange> out_;
  const client who_;
  const std::string request_id_;
  std::string id_;  // towards the generator: unique in this process
  const nanoseconds arrived_;

  // From on_prepared on.
  api_request request_;
  uint32_t prompt_tokens_ = 0;
  uint64_t seed_ = 0;
  std::optional<api_writer> writer_;
  std::optional<answer> answer_;

  bool counted_ = true;  // in core::running
  bool submitted_ = false;
  bool gone_ = false;        // the client
  bool ended_ = false;       // the last event was accounted
  bool streaming_ = false;   // the headers are out
  bool first_sent_ = false;  // the chunk with the role is out
  uint32_t position_ = 0;    // of the last token taken, at the end one more; the `id:` of stream events
  int64_t delivered_ = -1;   // up to this position the client has everything, from an earlier answer
  bool got_token_ = false;
  nanoseconds last_token_{0};
  std::deque<generate_event> held_;  // waiting for room; bounded by the request's max_tokens
  std::string text_;                 // of an answer that is not streamed
  std::vector<token_record> records_;
};

}  // namespace troupe::gateway
