// Reads the texts that `troupe eval` measures on (docs/model.md) one document at a time, as token ids.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/document.hpp"
#include "runtime/base/result.hpp"
#include "runtime/recipe/recipe.hpp"

namespace troupe::cli {

/// One file of documents. Holds one line at a time. One thread.
class document_reader {
 public:
  static constexpr size_t longest_line = 4u << 20;   // bytes; a longer one is an error
  static constexpr size_t text_document = 8u << 10;  // plain text is cut at the last line end within so many bytes

  /// `text` outlives the reader. A name that ends in .jsonl is one JSON object a line, any other is plain text. io if
  /// the file cannot be read.
  static result<document_reader> open(const std::string& path, const recipe::recipe& text);

  /// The next document, or nothing at the end. invalid_argument names the line and what is wrong with it.
  result<std::optional<kernels::measure::document>> next();

 private:
  document_reader(std::string path, std::ifstream in, const recipe::recipe& text);
  result<bool> read_line(std::string& line);
  result<kernels::measure::document> from_json(const std::string& line);
  result<kernels::measure::document> from_text(const std::string& text);

  std::string path_;
  std::ifstream in_;
  const recipe::recipe* text_;
  bool json_ = false;
  uint64_t line_ = 0;
  uint32_t documents_ = 0;
  std::string kept_;  // a line of plain text that belongs to the next document
};

/// The first `most` documents of `path`.
result<std::vector<kernels::measure::document>> read_documents(const std::string& path, const recipe::recipe& text,
                                                               size_t most);

}  // namespace troupe::cli
