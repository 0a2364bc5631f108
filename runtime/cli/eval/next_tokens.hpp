// The file of next tokens by which two programs compare a model (format troupe-next-1, docs/model.md).
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/measure/document.hpp"
#include "runtime/base/result.hpp"

namespace troupe::cli {

/// What a program said about one document.
struct next_tokens {
  uint32_t document = 0;
  std::vector<kernels::token_id> tokens, next;  // equally long
  double nats = 0;
  uint64_t bytes = 0;
  bool operator==(const next_tokens&) const = default;
};

/// One line of the file, without its end.
std::string to_line(const next_tokens& n);
/// The header line.
std::string next_tokens_header(const std::string& by, const std::string& model);

/// Agreement of two programs.
struct next_agreement {
  uint64_t documents = 0;  // with equal tokens
  uint64_t different = 0;  // documents of the file whose tokens differ from ours: nothing of them is compared
  uint64_t positions = 0, same = 0;
  double our_nats = 0, their_nats = 0;  // of the documents compared
  uint64_t bytes = 0;
  double rate() const { return positions ? static_cast<double>(same) / static_cast<double>(positions) : 0; }
};

/// Compares document by document with a file that is read along, so that memory holds one line (the file's documents
/// ascend). One thread.
class next_comparison {
 public:
  /// io or invalid_argument if there is no such file or its header is another one.
  static result<next_comparison> open(const std::string& path);

  /// Looks for `ours.document` in the file and compares. Documents that one side lacks are skipped. invalid_argument
  /// names a broken line.
  result<void> add(const next_tokens& ours);

  const next_agreement& total() const { return total_; }
  const std::string& by() const { return by_; }

 private:
  explicit next_comparison(std::string path) : path_(std::move(path)), in_(path_, std::ios::binary) {}
  result<bool> read();

  std::string path_, by_;
  std::ifstream in_;
  uint64_t line_ = 1;
  bool have_ = false;
  next_tokens theirs_;
  next_agreement total_;
};

}  // namespace troupe::cli
