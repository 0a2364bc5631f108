// Reads the source tree and fails on every broken house rule, with file, line and what to do; and tests the rules on
// made-up snippets.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/style/rules.hpp"

namespace troupe::style {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& p) {
  std::ifstream in(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(style, the_source_tree_keeps_the_house_rules) {
  fs::path root = TROUPE_SOURCE_DIR;
  std::vector<fs::path> files;
  for (const char* top :
       {"actors", "runtime", "kernels", "kv", "policies", "configs", "tests", "examples", "cmake", "docs"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& e : fs::recursive_directory_iterator(root / top)) {
      std::string relative = fs::relative(e.path(), root).generic_string();
      bool text = !relative.starts_with("tests/data/") && !relative.ends_with(".safetensors");
      if (!e.is_regular_file() || !text || relative.find("__pycache__") != std::string::npos) continue;
      files.push_back(e.path());
    }
  }
  for (const char* name : {"README.md", "CMakeLists.txt", "test.sh", "quickstart.sh", "install-deps.sh"}) {
    if (fs::exists(root / name)) files.push_back(root / name);
  }
  std::sort(files.begin(), files.end());
  ASSERT_GT(files.size(), 50u) << "the source tree was not found under " << root;
  for (const auto& f : files) {
    for (const auto& x : check(fs::relative(f, root).generic_string(), read(f))) {
      ADD_FAILURE_AT(f.c_str(), x.line) << x.path << ":" << x.line << ": " << x.text;
    }
  }
}

// Lines at which `check` complains.
std::vector<int> lines(std::string_view path, std::string_view text) {
  std::vector<int> out;
  for (const auto& f : check(path, text)) out.push_back(f.line);
  return out;
}

using v = std::vector<int>;

TEST(style_rules, includes_point_downward) {
  EXPECT_EQ(lines("kernels/a.cpp", "#include \"actors/x.hpp\"\n"), v{1});
  EXPECT_EQ(lines("kernels/a.cpp", "#include \"policies/x.hpp\"\n#include \"runtime/base/log.hpp\"\n"), v{});
  EXPECT_EQ(lines("policies/a.cpp", "#include <vector>\n#include \"kernels/x.hpp\"\n"), v{2});
  EXPECT_EQ(lines("actors/a.cpp", "#include \"runtime/gateway/x.hpp\"\n"), v{1});
  EXPECT_EQ(lines("runtime/node/a.cpp", "#include \"runtime/cli/x.hpp\"\n"), v{1});
  EXPECT_EQ(lines("runtime/node/a.cpp", "#include \"actors/x.hpp\"\n"), v{});
  EXPECT_EQ(lines("runtime/cli/a.cpp", "#include \"runtime/node/x.hpp\"\n"), v{});
  EXPECT_EQ(lines("kernels/a.cpp", "#include \"x.hpp\"\n"), v{1});
  EXPECT_EQ(lines("kernels/a.cpp", "#include <caf/all.hpp>\n"), v{1});
  EXPECT_EQ(lines("actors/a.cpp", "#include <caf/all.hpp>\n"), v{});
  EXPECT_FALSE(may_include("kv", "actors"));
  EXPECT_TRUE(may_include("tests", "actors"));
}

TEST(style_rules, clocks_and_sleeps) {
  EXPECT_EQ(lines("actors/a.cpp", "auto t = std::chrono::steady_clock::now();\n"), v{1});
  EXPECT_EQ(lines("actors/a.cpp", "auto t = self->clock().now();\n"), v{});
  EXPECT_EQ(lines("actors/a.cpp", "// steady_clock::now()\nconst char* s = \"steady_clock::now()\";\n"), v{});
  EXPECT_EQ(lines("runtime/base/a.cpp", "auto t = std::chrono::steady_clock::now();\n"), v{});
  EXPECT_EQ(lines("tests/a.cpp", std::string("std::this_thread::") + "sleep_for(1ms);\n"), v{1});
  EXPECT_EQ(lines("tests/a.cpp", "troupe::sleep_for(1ms);\n"), v{1});
  EXPECT_EQ(lines("runtime/node/a.cpp", "sleep_for(delay);\n"), v{});
  EXPECT_EQ(lines("kernels/a.cpp", "if (x) {\n  sleep(1);\n  ::sleep(1);\n}\n"), (v{2, 3}));
  EXPECT_EQ(lines("kernels/a.cpp", "void sleep(nanoseconds d) override;\nlane_->sleep(d);\n"), v{});
  EXPECT_EQ(lines("kernels/a.cpp", "std::random_device d;\n"), v{1});
  EXPECT_EQ(lines("tests/a.sh", "while true; do sleep 1; done\n"), v{1});
  EXPECT_EQ(lines("tests/a.py", std::string("time.") + "sleep(1)\n"), v{1});
}

TEST(style_rules, size_spawn_and_text) {
  std::string many(501, '\n');
  EXPECT_EQ(lines("kernels/a.cpp", many), v{501});
  EXPECT_EQ(lines("kernels/a.cpp", std::string(500, '\n')), v{});
  EXPECT_EQ(lines("actors/a.cpp", "auto a = self->spawn(f);\nauto b = sys.spawn<caf::linked>(f);\n"), (v{1, 2}));
  EXPECT_EQ(lines("actors/a.cpp", "auto a = spawn_state<rank>(self);\n"), v{});
  EXPECT_EQ(lines("actors/protocol/caf.hpp", "// x\nauto a = self->spawn(f);\n"), v{});
  EXPECT_EQ(lines("docs/a.md", std::string("see /wo") + "rk/x\n"), v{1});
  EXPECT_EQ(lines("docs/a.md", "see https://example.org/home/x\n"), v{});
  EXPECT_EQ(lines("runtime/base/a.cpp", std::string("// TO") + "DO later\n"), v{1});
}

TEST(style_rules, declarations_carry_a_contract) {
  const char* path = "kernels/a.hpp";
  EXPECT_EQ(lines(path, "namespace troupe {\nstruct a {\n  int f();\n};\n}\n"), v{2});
  EXPECT_EQ(lines(path, "namespace troupe {\n/// Meaning.\nstruct a {\n  int f();\n};\n}\n"), v{});
  EXPECT_EQ(lines(path, "namespace troupe {\nstruct a;\nenum class b : int;\nusing c = int;\n}\n"), v{});
  EXPECT_EQ(lines(path, "namespace troupe {\nint f(int x,\n      int y);\n}\n"), v{2});
  EXPECT_EQ(lines(path, "namespace troupe {\n// Both ways.\nint f(int);\nint g(int);\n\nint h(int);\n}\n"), v{6});
  EXPECT_EQ(lines(path, "namespace troupe {\nenum class e : int { a, b };  // why\nenum class f { a };\n}\n"), v{3});
  EXPECT_EQ(lines(path, "namespace troupe {\ntemplate <class T>\nclass x {\n};\n}\n"), v{2});
  EXPECT_EQ(lines(path, "namespace troupe::detail {\nstruct a {};\n}\n"), v{});
  EXPECT_EQ(lines(path, "namespace troupe {\nconstexpr int limit = 4 * (2 + 1);\ninline int k{3};\n}\n"), v{});
  EXPECT_EQ(lines(path, "namespace troupe {\ntemplate <class F>\nauto inspect(F& f, a& x) {\n  return f(x.a);\n}\n}\n"),
            v{});
  EXPECT_EQ(lines(path, "#define X(a) \\\n  int a()\nnamespace troupe {\nCAF_BEGIN(a, b)\n}\n"), v{});
}

TEST(style_rules, code_only_blanks_comments_and_literals) {
  EXPECT_EQ(code_only("a /* b */ c"), "a         c");
  EXPECT_EQ(code_only("f(\"x\\\"y\", 'z'); // t"), "f(\"    \", ' ');     ");
  EXPECT_EQ(code_only("R\"(a\"b)\" x 1'000"), "R\"    )\" x 1'000");
}

}  // namespace
}  // namespace troupe::style
