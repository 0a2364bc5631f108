#include "runtime/gateway/answer.hpp"

#include <algorithm>
#include <iterator>

namespace troupe::gateway {

namespace {
uint32_t characters(std::string_view text) {
  return static_cast<uint32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}
}  // namespace

answer::answer(const recipe::tokenizer& tokens, std::vector<std::string> stops, uint32_t min_tokens, bool records)
    : tokens_(tokens), stop_(std::move(stops)), min_tokens_(min_tokens), want_records_(records) {}

bool answer::add(token_record token) {
  if (stopped()) return false;
  ++count_;
  std::string_view bytes = tokens_.special(token.token) ? std::string_view{} : tokens_.bytes(token.token);
  if (want_records_) {
    token.offset = decoded_;
    records_.push_back(std::move(token));
  }
  scratch_.clear();
  utf8_.push(bytes, scratch_);
  decoded_ += characters(scratch_);
  size_t before = out_.size();
  if (count_ <= min_tokens_)
    out_ += scratch_;
  else
    stop_.push(scratch_, out_);
  given_ += characters(std::string_view(out_).substr(before));
  return !stopped();
}

void answer::finish() {
  if (finished_) return;
  finished_ = true;
  if (stopped()) return;
  scratch_.clear();
  utf8_.finish(scratch_);
  size_t before = out_.size();
  if (count_ <= min_tokens_)
    out_ += scratch_;
  else
    stop_.push(scratch_, out_);
  stop_.finish(out_);
  given_ += characters(std::string_view(out_).substr(before));
}

std::string answer::take_text() {
  std::string text;
  text.swap(out_);
  return text;
}

std::vector<token_record> answer::take_records() {
  auto end = records_.end();
  if (!finished_ || stopped()) {
    end = std::find_if(records_.begin(), records_.end(), [&](const token_record& r) { return r.offset >= given_; });
  }
  std::vector<token_record> out(std::make_move_iterator(records_.begin()), std::make_move_iterator(end));
  records_.erase(records_.begin(), end);
  return out;
}

}  // namespace troupe::gateway
