// A copy of tiny-v41 with bytes of some tensors overwritten, as a damaged file has them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/model/model.hpp"
#include "runtime/base/check.hpp"

namespace troupe::kernels::testing_support {

/// Goes away with the object.
class damaged_model {
 public:
  damaged_model()
      : dir_(std::filesystem::temp_directory_path() / fmt::format("troupe-damaged-{}-{}", ::getpid(), count_++)) {
    std::filesystem::remove_all(dir_);
    std::filesystem::copy(TROUPE_TEST_DATA "/tiny-v41", dir_);
    std::filesystem::permissions(file(), std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    auto whole = checkpoint::open_file(file());
    TROUPE_CHECK(whole.has_value(), "{}", whole.error().message);
    files_ = std::make_unique<checkpoint>(std::move(*whole));
  }
  ~damaged_model() { std::filesystem::remove_all(dir_); }
  damaged_model(const damaged_model&) = delete;
  damaged_model& operator=(const damaged_model&) = delete;

  std::string path() const { return dir_.string(); }
  std::string file() const { return (dir_ / "model.safetensors").string(); }

  /// Overwrites `count` bytes of a tensor from `offset` with 0xff: a NaN in every floating-point format.
  void damage(const std::string& tensor, size_t offset, size_t count) {
    const auto* t = files_->find(tensor);
    TROUPE_CHECK(t && offset + count <= t->data.size(), "{} at {}", tensor, offset);
    const auto at = t->data.data() - files_->headers()[0].data() + static_cast<ptrdiff_t>(offset);
    damage_file(static_cast<size_t>(at), count);
  }
  /// The same, from an offset in the file.
  void damage_file(size_t offset, size_t count) {
    std::fstream out(file(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(offset));
    const std::string bytes(count, '\xff');
    out.write(bytes.data(), static_cast<std::streamsize>(count));
    out.flush();
    TROUPE_CHECK(out.good(), "{} cannot be written", file());
  }

 private:
  static inline int count_ = 0;
  std::filesystem::path dir_;
  std::unique_ptr<checkpoint> files_;
};

}  // namespace troupe::kernels::testing_support
