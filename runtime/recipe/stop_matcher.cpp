#include "runtime/recipe/stop_matcher.hpp"

#include <algorithm>
#include <utility>

namespace troupe::recipe {

stop_matcher::stop_matcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
  std::sort(stops_.begin(), stops_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

bool stop_matcher::push(std::string_view text, std::string& out) {
  if (stopped_ != nullptr) return true;
  if (stops_.empty()) {
    out += text;
    return false;
  }
  for (char c : text) {
    held_ += c;
    for (const std::string& s : stops_) {  // longest first
      if (held_.ends_with(s)) {
        out.append(held_, 0, held_.size() - s.size());
        held_.clear();
        stopped_ = &s;
        return true;
      }
    }
    // Keep the longest tail that begins a stop string; what stands before it is safe.
    size_t keep = 0;
    for (const std::string& s : stops_) {
      for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n) {
        if (std::string_view(held_).substr(held_.size() - n) == std::string_view(s).substr(0, n)) {
          keep = n;
          break;
        }
      }
    }
    out.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }
  return false;
}

void stop_matcher::finish(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace troupe::recipe
