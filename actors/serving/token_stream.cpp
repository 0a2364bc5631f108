#include "actors/serving/token_stream.hpp"

#include <algorithm>

namespace troupe::actors {

// Drops the tokens before next_.
void token_stream::cut(stream_item& item) const {
  const size_t have = next_ > item.first_position ? next_ - item.first_position : 0;
  const auto n = static_cast<ptrdiff_t>(std::min(have, item.tokens.size()));
  auto drop = [n](auto& v) {
    v.erase(v.begin(), v.begin() + std::min<ptrdiff_t>(n, static_cast<ptrdiff_t>(v.size())));
  };
  drop(item.tokens);
  drop(item.logprobs);
  drop(item.top);
  item.first_position += static_cast<uint32_t>(n);
}

token_stream::outcome token_stream::push(stream_item item) {
  outcome out;
  if (item.first_position > next_) {
    if (early_.size() >= max_early) {
      out.overflow = true;
      return out;
    }
    early_.emplace(item.first_position, std::move(item));
    return out;
  }
  auto take = [&](stream_item i) {
    cut(i);
    if (i.tokens.empty() && !i.last()) return;
    next_ += static_cast<uint32_t>(i.tokens.size());
    out.ready.push_back(std::move(i));
  };
  take(std::move(item));
  while (!early_.empty() && early_.begin()->first <= next_) take(std::move(early_.extract(early_.begin()).mapped()));
  // An end that overtook its last tokens goes behind them; after it nothing more counts.
  auto last = std::find_if(out.ready.begin(), out.ready.end(), [](const stream_item& i) { return i.last(); });
  if (last != out.ready.end()) {
    out.ready.erase(last + 1, out.ready.end());
    early_.clear();
  }
  return out;
}

}  // namespace troupe::actors
