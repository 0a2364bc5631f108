// Tensors of safetensors files, mapped into memory and never copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::kernels {

/// Storage type of a tensor, as named in the header.
enum class dtype : uint8_t { f32, f16, bf16, f8_e4m3, f8_e8m0, i8, u8, i32, i64, boolean };
/// The header's name of `t`, e.g. "F8_E4M3".
const char* to_string(dtype t);
/// Bytes of one value.
size_t size_of(dtype t);

/// A tensor in a mapped file. Data may be unaligned.
struct tensor {
  std::string name;
  dtype type = dtype::f32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
  std::string file;  // for messages
  uint64_t values() const;
};

/// One safetensors file, or a directory's model.safetensors, or all files that its model.safetensors.index.json names.
/// Thread rules: const after construction. Tensors stay valid as long as the object lives.
class checkpoint {
 public:
  ~checkpoint();
  checkpoint(checkpoint&&) noexcept;
  checkpoint& operator=(checkpoint&&) noexcept;

  /// Maps a single file. corrupt: truncated, bad header, offsets that overlap or leave the file, unknown dtype, size
  /// that does not match the shape; io: cannot be opened. Messages name the file and, where there is one, the tensor.
  static result<checkpoint> open_file(const std::string& path);
  /// Maps a model directory. A tensor that the index places in a file that lacks it is not_found.
  static result<checkpoint> open_directory(const std::string& directory);
  /// Without any tensor: of a model that is known by its configuration alone.
  static checkpoint none() { return {}; }

  /// Null if there is none of this name.
  const tensor* find(const std::string& name) const;
  /// All tensors by name.
  const std::map<std::string, tensor>& tensors() const { return tensors_; }
  /// Raw headers (length and JSON) of all files in name order, for the fingerprint.
  const std::vector<std::span<const std::byte>>& headers() const { return headers_; }

 private:
  struct mapping;
  checkpoint();
  result<void> add_file(const std::string& path);
  std::vector<std::unique_ptr<mapping>> mappings_;
  std::map<std::string, tensor> tensors_;
  std::vector<std::span<const std::byte>> headers_;
};

}  // namespace troupe::kernels
