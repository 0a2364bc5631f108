// Text that comes in pieces: characters and stop strings cut anywhere give the same output.
#include <gtest/gtest.h>

#include "runtime/base/rng.hpp"
#include "runtime/recipe/stop_matcher.hpp"
#include "runtime/recipe/utf8.hpp"

namespace troupe::recipe {
namespace {

const std::string fffd = "\xEF\xBF\xBD";

TEST(utf8, never_emits_half_a_character) {
  std::string text = "a\u00e9\u673a\U0001F600z", out;
  utf8_stream s;
  for (char c : text) {
    s.push(std::string_view(&c, 1), out);
    EXPECT_TRUE(is_utf8(out));
    EXPECT_LE(s.waiting(), 3u);
  }
  s.finish(out);
  EXPECT_EQ(out, text);
}

TEST(utf8, replaces_maximal_ill_formed_parts) {
  EXPECT_EQ(to_utf8("\xE6\x9C"), fffd);  // open at the end: one
  EXPECT_EQ(to_utf8("\xE6\x9C"
                    "a"),
            fffd + "a");                                              // cut off by another character
  EXPECT_EQ(to_utf8("\x80\x80"), fffd + fffd);                        // stray continuations: one each
  EXPECT_EQ(to_utf8("\xC0\xAF"), fffd + fffd);                        // overlong
  EXPECT_EQ(to_utf8("\xED\xA0\x80"), fffd + fffd + fffd);             // surrogate
  EXPECT_EQ(to_utf8("\xF4\x90\x80\x80"), fffd + fffd + fffd + fffd);  // beyond U+10FFFF
  EXPECT_EQ(to_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), fffd + "\U0001F600");
  EXPECT_FALSE(is_utf8("\xE6\x9C"));
  EXPECT_TRUE(is_utf8(fffd));
}

TEST(utf8, does_not_depend_on_the_cuts) {
  constexpr uint64_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  rng r(seed);
  static const char alphabet[] = "a\xC3\xA9\xE6\x9C\xBA\xF0\x9F\x98\x80\xFF";
  for (int i = 0; i < 2000; ++i) {
    std::string bytes, out;
    for (uint64_t n = r.below(20); n > 0; --n) bytes += alphabet[r.below(sizeof alphabet - 1)];
    utf8_stream s;
    for (size_t at = 0; at < bytes.size();) {
      size_t n = 1 + r.below(4);
      s.push(std::string_view(bytes).substr(at, n), out);
      ASSERT_TRUE(is_utf8(out));
      at += n;
    }
    s.finish(out);
    ASSERT_EQ(out, to_utf8(bytes)) << testing::PrintToString(bytes);
  }
}

TEST(stop, holds_back_a_possible_beginning) {
  stop_matcher m({"STOP", "\n\n"});
  std::string out;
  EXPECT_FALSE(m.push("one ST", out));
  EXPECT_EQ(out, "one ");
  EXPECT_FALSE(m.push("AR\n", out));
  EXPECT_EQ(out, "one STAR");
  EXPECT_FALSE(m.push("x", out));
  EXPECT_EQ(out, "one STAR\nx");
  EXPECT_FALSE(m.push("S", out));
  EXPECT_TRUE(m.push("TOP and more", out));
  EXPECT_EQ(out, "one STAR\nx");
  EXPECT_EQ(*m.found(), "STOP");
  EXPECT_TRUE(m.push("never", out));
  m.finish(out);
  EXPECT_EQ(out, "one STAR\nx");
}

TEST(stop, gives_out_what_was_held_when_the_text_ends) {
  stop_matcher m({"STOP"});
  std::string out;
  m.push("a STO", out);
  EXPECT_EQ(out, "a ");
  m.finish(out);
  EXPECT_EQ(out, "a STO");
  EXPECT_FALSE(m.stopped());
}

TEST(stop, of_two_that_end_together_the_longer_counts) {
  stop_matcher m({"b", "ab"});
  std::string out;
  EXPECT_TRUE(m.push("xab", out));
  EXPECT_EQ(out, "x");
}

TEST(stop, does_not_depend_on_the_cuts) {
  constexpr uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  rng r(seed);
  auto word = [&](uint64_t most) {
    std::string s;
    for (uint64_t n = 1 + r.below(most); n > 0; --n) s += static_cast<char>('a' + r.below(2));
    return s;
  };
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> stops{word(5), word(5), word(3)};
    std::string text = word(30), whole, pieces;
    stop_matcher a(stops), b(stops);
    a.push(text, whole);
    a.finish(whole);
    for (size_t at = 0; at < text.size() && !b.stopped();) {
      size_t n = 1 + r.below(3);
      b.push(std::string_view(text).substr(at, n), pieces);
      at += n;
    }
    b.finish(pieces);
    ASSERT_EQ(whole, pieces) << text;
    // Independently: the first end of any stop string; of two that end there the longer.
    std::string want = text;
    for (size_t end = 1; end <= text.size(); ++end) {
      size_t cut = 0;
      for (const auto& s : stops) {
        if (std::string_view(text).substr(0, end).ends_with(s)) cut = std::max(cut, s.size());
      }
      if (cut > 0) {
        want = text.substr(0, end - cut);
        break;
      }
    }
    ASSERT_EQ(whole, want) << text;
  }
}

}  // namespace
}  // namespace troupe::recipe
