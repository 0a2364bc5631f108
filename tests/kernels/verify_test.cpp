// The forward pass against the golden tensors, and the check itself against a damaged checkpoint.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/cpu/operators.hpp"
#include "kernels/model/verify.hpp"
#include "tests/kernels/tiny.hpp"

namespace troupe::kernels {
namespace {

std::vector<verify_row> rows_of(const std::string& model_directory, cpu::isa which, uint32_t threads) {
  auto m = load_model(model_directory);
  EXPECT_TRUE(m) << m.error().message;
  if (!m) return {};
  auto ops = cpu::make_operators(threads, which);
  auto rows = verify_model(**m, *ops, tiny_folder, steady_clock());
  EXPECT_TRUE(rows) << rows.error().message;
  return rows ? *rows : std::vector<verify_row>{};
}

std::string text_of(const std::vector<verify_row>& rows) {
  std::string s;
  for (auto& r : rows)
    s += fmt::format("{:40} {:10.3e} {:10.3e} {:5} {}\n", r.name, r.max_abs, r.max_rel, r.pass ? "ok" : "MISS", r.note);
  return s;
}

TEST(verify, every_golden_tensor_is_within_its_tolerance) {
  const auto rows = rows_of(tiny_folder, cpu::best_isa(), 2);
  EXPECT_EQ(rows.size(), 57u) << "a tensor came or went";
  for (auto& r : rows) EXPECT_TRUE(r.pass) << r.name << " " << r.note;
  std::cout << text_of(rows);
}

TEST(verify, a_flipped_weight_byte_fails) {
  const auto copy = std::filesystem::temp_directory_path() / fmt::format("troupe-verify-{}", ::getpid());
  std::filesystem::create_directories(copy);
  for (auto& f : std::filesystem::directory_iterator(tiny_folder))
    std::filesystem::copy_file(f.path(), copy / f.path().filename(), std::filesystem::copy_options::overwrite_existing);
  {
    auto m = load_model(tiny_folder);
    ASSERT_TRUE(m) << m.error().message;
    const tensor* t = (*m)->files.find("layers.3.attn.wo_b.weight");
    ASSERT_NE(t, nullptr);
    const auto base = (*m)->files.headers()[0].data();
    std::fstream f(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    const auto at = t->data.data() - base + 100;
    f.seekg(at);
    char byte = static_cast<char>(f.get());
    f.seekp(at);
    f.put(static_cast<char>(byte ^ 0x40));
  }
  const auto rows = rows_of(copy.string(), cpu::best_isa(), 1);
  size_t missed = 0;
  for (auto& r : rows) missed += !r.pass;
  EXPECT_GT(missed, 10u) << text_of(rows);
  std::filesystem::remove_all(copy);
}

}  // namespace
}  // namespace troupe::kernels
