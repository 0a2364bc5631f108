#include "runtime/cli/load/sse.hpp"

#include <charconv>

namespace troupe::cli {

bool sse_reader::feed(std::string_view piece, const std::function<void(const sse_event&)>& on_event) {
  for (size_t end; (end = piece.find('\n')) != piece.npos; piece.remove_prefix(end + 1)) {
    line_ += piece.substr(0, end);
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t colon = line.find(':');
    const std::string_view field = line.substr(0, colon);
    std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (line.empty()) {
      if (any_) on_event(event_);
      event_ = {};
      any_ = false;
    } else if (field == "data") {
      if (any_) event_.data += '\n';
      event_.data += value;
      any_ = true;
    } else if (field == "id") {
      uint64_t id = 0;
      const auto [stop, ec] = std::from_chars(value.data(), value.data() + value.size(), id);
      if (ec == std::errc{} && stop == value.data() + value.size()) event_.id = id;
    }
    line_.clear();
    if (event_.data.size() > limit) return false;
  }
  line_ += piece;
  return line_.size() <= limit;
}

}  // namespace troupe::cli
