// Checkpoints that are damaged, incomplete or of another model: clear errors that name file and tensor.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/model/model.hpp"
#include "runtime/base/rng.hpp"
#include "tests/kernels/tiny.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// A copy of tiny-v41 whose safetensors header can be edited.
class model_copy {
 public:
  model_copy() : dir_(fs::temp_directory_path() / fmt::format("troupe-model-{}-{}", ::getpid(), count_++)) {
    fs::create_directories(dir_);
    for (const char* name : {"config.json", "engram_hash.json", "model.safetensors"})
      fs::copy_file(fs::path(tiny_folder) / name, dir_ / name, fs::copy_options::overwrite_existing);
    std::ifstream in(dir_ / "model.safetensors", std::ios::binary);
    uint64_t length = 0;
    in.read(reinterpret_cast<char*>(&length), 8);
    std::string text(length, 0);
    in.read(text.data(), static_cast<std::streamsize>(length));
    header_ = json::parse(text);
    body_.assign(std::istreambuf_iterator<char>(in), {});
  }
  ~model_copy() { fs::remove_all(dir_); }

  std::string path() const { return dir_.string(); }
  json& header() { return header_; }
  const std::string& body() const { return body_; }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  static std::string file_of(const json& header, const std::string& body) {
    const std::string text = header.dump();
    uint64_t length = text.size();
    std::string out(8, 0);
    std::memcpy(out.data(), &length, 8);
    return out + text + body;
  }
  void save() { write("model.safetensors", file_of(header_, body_)); }
  void edit_config(const std::function<void(json&)>& change) {
    json c = json::parse(*read_text_file(path() + "/config.json"));
    change(c["text_config"]);
    write("config.json", c.dump());
  }
  void truncate(uint64_t size) { fs::resize_file(dir_ / "model.safetensors", size); }
  void remove(const std::string& name) { fs::remove(dir_ / name); }

 private:
  static inline int count_ = 0;
  fs::path dir_;
  json header_;
  std::string body_;
};

void expect_error(const model_copy& copy, errc code, std::initializer_list<const char*> parts) {
  auto m = load_model(copy.path());
  ASSERT_FALSE(m);
  EXPECT_EQ(m.error().code, code) << m.error().message;
  for (const char* part : parts)
    EXPECT_NE(m.error().message.find(part), std::string::npos) << m.error().message << "\nlacks " << part;
}

TEST(model_files, tiny_loads) {
  model_copy copy;
  copy.save();
  auto m = load_model(copy.path());
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ((*m)->weights.layers.size(), 8u);
  EXPECT_EQ((*m)->weights.draft.blocks.size(), 3u);
}

TEST(model_files, truncated) {
  model_copy copy;
  const uint64_t size = fs::file_size(copy.path() + "/model.safetensors");
  copy.truncate(size - 1);
  expect_error(copy, errc::corrupt, {"model.safetensors", "truncated", "tensor"});
  copy.truncate(1000);
  expect_error(copy, errc::corrupt, {"model.safetensors", "bad header"});
  copy.truncate(3);
  expect_error(copy, errc::corrupt, {"model.safetensors", "truncated: 3 bytes"});
  copy.remove("model.safetensors");
  expect_error(copy, errc::io, {"model.safetensors"});
}

TEST(model_files, bad_headers) {
  const char* name = "layers.0.attn.wkv.weight";
  struct row {
    const char* what;
    std::function<void(json&)> change;
    errc code;
    std::vector<const char*> parts;
  };
  const row table[] = {
      {"wrong dtype", [](json& t) { t["dtype"] = "I8"; }, errc::invalid_argument, {"dtype is I8, expected F8_E4M3"}},
      {"unknown dtype", [](json& t) { t["dtype"] = "F9"; }, errc::corrupt, {"unknown dtype F9"}},
      {"wrong size",
       [](json& t) {
         t["shape"] = {64, 64};
       },
       errc::corrupt,
       {"bytes of data"}},
      {"wrong shape",
       [](json& t) {
         t["shape"] = {128, 64};
       },
       errc::invalid_argument,
       {"shape is [128, 64], the configuration asks for [64, 128]"}},
      {"negative shape",
       [](json& t) {
         t["shape"] = {-64, 128};
       },
       errc::corrupt,
       {"bad shape"}},
      {"huge shape",
       [](json& t) {
         t["shape"] = {1ull << 40, 1ull << 40};
       },
       errc::corrupt,
       {"bad shape"}},
      {"offsets reversed", [](json& t) { std::swap(t["data_offsets"][0], t["data_offsets"][1]); }, errc::corrupt, {}},
      {"offsets missing", [](json& t) { t.erase("data_offsets"); }, errc::corrupt, {"lacks"}},
      {"outside the file",
       [](json& t) {
         t["data_offsets"][0] = t["data_offsets"][0].get<uint64_t>() + (1ull << 40);
         t["data_offsets"][1] = t["data_offsets"][1].get<uint64_t>() + (1ull << 40);
       },
       errc::corrupt,
       {"truncated"}},
      {"overlap",
       [](json& t) {
         t["data_offsets"][0] = t["data_offsets"][0].get<uint64_t>() + 32;
         t["data_offsets"][1] = t["data_offsets"][1].get<uint64_t>() + 32;
       },
       errc::corrupt,
       {"overlap"}},
  };
  for (const row& r : table) {
    model_copy copy;
    r.change(copy.header()[name]);
    copy.save();
    SCOPED_TRACE(r.what);
    auto m = load_model(copy.path());
    ASSERT_FALSE(m);
    EXPECT_EQ(m.error().code, r.code) << m.error().message;
    EXPECT_NE(m.error().message.find(name), std::string::npos) << m.error().message;
    EXPECT_NE(m.error().message.find("model.safetensors"), std::string::npos) << m.error().message;
    for (const char* part : r.parts) EXPECT_NE(m.error().message.find(part), std::string::npos) << m.error().message;
  }
  model_copy copy;
  copy.write("model.safetensors", std::string(8, '\xff') + "{}");
  expect_error(copy, errc::corrupt, {"bad header"});
  copy.write("model.safetensors", std::string("\x02\0\0\0\0\0\0\0[]", 10));
  expect_error(copy, errc::corrupt, {"not a JSON object"});
}

// Bytes of the header changed at random: an error or a model, never a crash.
TEST(model_files, random_damage_of_the_header_never_crashes) {
  const uint64_t seed = 20261129;
  std::cout << "seed " << seed << "\n";
  rng random(seed);
  model_copy copy;
  const std::string whole = model_copy::file_of(copy.header(), copy.body());
  const uint64_t header = copy.header().dump().size() + 8;
  size_t refused = 0;
  const int rounds = std::getenv("TROUPE_LONG") ? 400 : 40;
  for (int i = 0; i < rounds; ++i) {
    std::string damaged = whole;
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      damaged[random.below(header)] =
          static_cast<char>(random.below(2) ? random.below(256) : "0123456789{}[],:\"-"[random.below(18)]);
    if (random.below(4) == 0) damaged.resize(random.below(damaged.size()));
    copy.write("model.safetensors", damaged);
    auto m = load_model(copy.path());
    refused += !m;
    if (!m) {
      EXPECT_FALSE(m.error().message.empty());
    }
  }
  EXPECT_GT(refused, static_cast<size_t>(rounds) / 2);
}

TEST(model_files, missing_tensor) {
  for (const char* name :
       {"embed.weight", "layers.3.ffn.experts.15.w2.scale", "layers.2.attn.compressor.wgate.weight",
        "layers.3.engram.embed.scale", "mtp.2.confidence_head.proj.weight", "layers.7.hc_ffn_base"}) {
    model_copy copy;
    copy.header().erase(name);
    copy.save();
    expect_error(copy, errc::not_found, {name, "is missing", "model.safetensors"});
  }
}

TEST(model_files, config_that_contradicts_the_weights) {
  struct row {
    const char* field;
    json value;
    const char* tensor;
  };
  const row table[] = {
      {"hidden_size", 160, "embed.weight"},
      {"vocab_size", 640, "embed.weight"},
      {"n_routed_experts", 8, "gate.weight"},
      {"moe_intermediate_size", 96, "experts.0.w1.weight"},
      {"head_dim", 96, "wq_b.weight"},
      {"index_n_heads", 8, "indexer.wq_b.weight"},
      {"dspark_markov_rank", 64, "markov_head"},
      {"kv_source_layer_ids", {2}, "layers.4"},
      {"index_source_layer_ids", {2, 4}, "layers.6.attn.indexer.wq_b.weight"},
  };
  for (const row& r : table) {
    model_copy copy;
    copy.edit_config([&](json& c) {
      c[r.field] = r.value;
      if (std::string(r.field) == "kv_source_layer_ids") {
        c["compress_ratios"] = {0, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0};
        c["candidate_source_layer_id"] = 2;
      }
    });
    SCOPED_TRACE(r.field);
    expect_error(copy, errc::invalid_argument, {r.tensor});
  }
  model_copy fewer;
  fewer.edit_config([](json& c) {
    c["num_hidden_layers"] = 7;
    c["compress_ratios"] = {0, 0, 2, 2, 1, 1, 1, 0, 0, 0};
    c["dspark_target_layer_ids"] = {4, 5, 6};
  });
  expect_error(fewer, errc::invalid_argument, {"layers.7.attn_norm.weight", "num_hidden_layers"});
  model_copy hash;
  hash.edit_config([](json& c) { c["engram_compressed_vocab_size"] = 255; });
  expect_error(hash, errc::invalid_argument, {"engram_hash.json", "engram_compressed_vocab_size"});
  model_copy primes;
  primes.write("engram_hash.json", [] {
    json h = json::parse(*read_text_file(tiny_folder + "/engram_hash.json"));
    h["primes"][0][0][0] = 1013;
    return h.dump();
  }());
  expect_error(primes, errc::invalid_argument, {"engram_num_embeddings"});
}

TEST(model_files, several_files_with_an_index) {
  model_copy copy;
  json first = json::object(), second = json::object(), map = json::object();
  std::string bodies[2];
  size_t i = 0;
  for (auto& [name, entry] : copy.header().items()) {
    if (name == "__metadata__") continue;
    const size_t which = i++ % 2;
    json e = entry;
    const uint64_t begin = e["data_offsets"][0], end = e["data_offsets"][1];
    e["data_offsets"] = {bodies[which].size(), bodies[which].size() + end - begin};
    bodies[which] += copy.body().substr(begin, end - begin);
    (which ? second : first)[name] = e;
    map[name] = which ? "model-2.safetensors" : "model-1.safetensors";
  }
  copy.write("model-1.safetensors", model_copy::file_of(first, bodies[0]));
  copy.write("model-2.safetensors", model_copy::file_of(second, bodies[1]));
  copy.remove("model.safetensors");
  copy.write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
  auto m = load_model(copy.path());
  ASSERT_TRUE(m) << m.error().message;
  const tensor* t = (*m)->files.find("head.weight");
  ASSERT_NE(t, nullptr);
  auto whole = load_model(tiny_folder);
  const tensor* u = (*whole)->files.find("head.weight");
  EXPECT_EQ(std::memcmp(t->data.data(), u->data.data(), u->data.size()), 0);

  map["head.weight"] = map["head.weight"] == "model-1.safetensors" ? "model-2.safetensors" : "model-1.safetensors";
  copy.write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
  expect_error(copy, errc::not_found, {"head.weight", "is missing"});
  copy.write("model.safetensors.index.json", "{}");
  expect_error(copy, errc::corrupt, {"index.json", "weight_map"});
}

TEST(model_files, fingerprint_changes_with_weights_backend_and_mode) {
  auto a = load_model(tiny_folder);
  ASSERT_TRUE(a);
  const auto base = fingerprint(**a, "cpu f32", "exact");
  ASSERT_TRUE(base);
  EXPECT_EQ(base->size(), 64u);
  EXPECT_EQ(*fingerprint(**a, "cpu f32", "exact"), *base);
  EXPECT_NE(*fingerprint(**a, "cpu f32", "bounded"), *base);
  EXPECT_NE(*fingerprint(**a, "gpu", "exact"), *base);
  model_copy copy;
  copy.save();
  const std::string file = copy.path() + "/model.safetensors";
  {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-1, std::ios::end);
    f.put('\x55');
  }
  auto b = load_model(copy.path());
  ASSERT_TRUE(b) << b.error().message;
  EXPECT_NE(*fingerprint(**b, "cpu f32", "exact"), *base);
}

}  // namespace
}  // namespace troupe::kernels
