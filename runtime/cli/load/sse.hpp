// Events of a text/event-stream as they come in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::cli {

/// One event: its data, lines joined by '\n', and the number in its `id:` line where there is one.
struct sse_event {
  std::string data;
  std::optional<uint64_t> id;
};

/// Takes a stream in pieces of any size and hands out its events; comments and other fields are skipped. One thread.
class sse_reader {
 public:
  /// Longest event, in bytes.
  static constexpr size_t limit = 1 << 20;
  /// Calls `on_event` for each event that is complete now. False: an event is longer than `limit`; the reader is of no
  /// further use.
  bool feed(std::string_view piece, const std::function<void(const sse_event&)>& on_event);

 private:
  std::string line_;
  sse_event event_;
  bool any_ = false;  // the event has data
};

}  // namespace troupe::cli
