#include "kernels/model/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/model/config.hpp"

namespace troupe::kernels {
namespace {

using nlohmann::json;

struct type_row {
  dtype type;
  const char* name;
  size_t bytes;
};
constexpr type_row type_rows[] = {
    {dtype::f32, "F32", 4},         {dtype::f16, "F16", 2},         {dtype::bf16, "BF16", 2},
    {dtype::f8_e4m3, "F8_E4M3", 1}, {dtype::f8_e8m0, "F8_E8M0", 1}, {dtype::i8, "I8", 1},
    {dtype::u8, "U8", 1},           {dtype::i32, "I32", 4},         {dtype::i64, "I64", 8},
    {dtype::boolean, "BOOL", 1},
};

// A header is JSON text; 100 MB is the format's own bound.
constexpr uint64_t header_limit = 100'000'000;

}  // namespace

const char* to_string(dtype t) {
  for (const type_row& row : type_rows)
    if (row.type == t) return row.name;
  return "?";
}

size_t size_of(dtype t) {
  for (const type_row& row : type_rows)
    if (row.type == t) return row.bytes;
  return 0;
}

uint64_t tensor::values() const {
  uint64_t n = 1;
  for (uint64_t d : shape) n *= d;
  return n;
}

struct checkpoint::mapping {
  void* data = nullptr;
  size_t size = 0;
  ~mapping() {
    if (data) ::munmap(data, size);
  }
};

checkpoint::checkpoint() = default;
checkpoint::~checkpoint() = default;
checkpoint::checkpoint(checkpoint&&) noexcept = default;
checkpoint& checkpoint::operator=(checkpoint&&) noexcept = default;

result<void> checkpoint::add_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(errc::io, "{}: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int e = errno;
    ::close(fd);
    return fail(errc::io, "{}: {}", path, std::strerror(e));
  }
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size < 8) {
    ::close(fd);
    return fail(errc::corrupt, "{}: truncated: {} bytes, a safetensors file has at least 8", path, size);
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int e = errno;
  ::close(fd);
  if (data == MAP_FAILED) return fail(errc::io, "{}: cannot be mapped: {}", path, std::strerror(e));
  auto map = std::make_unique<mapping>();
  map->data = data;
  map->size = size;
  const auto* bytes = static_cast<const std::byte*>(data);
  mappings_.push_back(std::move(map));

  uint64_t length = 0;
  std::memcpy(&length, bytes, 8);
  if (length > header_limit || length > size - 8)
    return fail(errc::corrupt, "{}: bad header: it claims {} bytes, the file has {}", path, length, size);
  const char* text = reinterpret_cast<const char*>(bytes) + 8;
  json header = json::parse(text, text + length, nullptr, false);
  if (header.is_discarded() || !header.is_object())
    return fail(errc::corrupt, "{}: bad header: not a JSON object", path);
  const uint64_t body = size - 8 - length;
  headers_.emplace_back(bytes, 8 + length);

  struct range {
    uint64_t begin, end;
    std::string name;
  };
  std::vector<range> ranges;
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensor t;
    t.name = name;
    t.file = path;
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
        !entry["shape"].is_array() || !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
        entry["data_offsets"].size() != 2)
      return fail(errc::corrupt, "{}: tensor {}: header entry lacks dtype, shape or data_offsets", path, name);
    const std::string type = entry["dtype"].get<std::string>();
    const auto* row = std::find_if(std::begin(type_rows), std::end(type_rows), [&](auto& r) { return type == r.name; });
    if (row == std::end(type_rows)) return fail(errc::corrupt, "{}: tensor {}: unknown dtype {}", path, name, type);
    t.type = row->type;
    uint64_t count = 1;
    for (const json& d : entry["shape"]) {
      if (!d.is_number_unsigned() || (d.get<uint64_t>() != 0 && count > (uint64_t{1} << 48) / d.get<uint64_t>()))
        return fail(errc::corrupt, "{}: tensor {}: bad shape {}", path, name, entry["shape"].dump());
      t.shape.push_back(d.get<uint64_t>());
      count *= d.get<uint64_t>();
    }
    const json& offsets = entry["data_offsets"];
    if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      return fail(errc::corrupt, "{}: tensor {}: bad data_offsets {}", path, name, offsets.dump());
    const uint64_t begin = offsets[0], end = offsets[1];
    if (begin > end || end > body)
      return fail(errc::corrupt, "{}: tensor {}: truncated: its data is at [{}, {}), the file holds {} bytes of data",
                  path, name, begin, end, body);
    if (end - begin != count * row->bytes)
      return fail(errc::corrupt, "{}: tensor {}: {} bytes of data, shape {} of {} needs {}", path, name, end - begin,
                  entry["shape"].dump(), type, count * row->bytes);
    t.data = {bytes + 8 + length + begin, end - begin};
    ranges.push_back({begin, end, name});
    if (!tensors_.emplace(name, std::move(t)).second)
      return fail(errc::corrupt, "{}: tensor {}: also in another file", path, name);
  }
  std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].begin < ranges[i - 1].end)
      return fail(errc::corrupt, "{}: tensors {} and {} overlap at byte {}", path, ranges[i - 1].name, ranges[i].name,
                  ranges[i].begin);
  return {};
}

result<checkpoint> checkpoint::open_file(const std::string& path) {
  checkpoint c;
  if (auto r = c.add_file(path); !r) return fail(r.error());
  return c;
}

result<checkpoint> checkpoint::open_directory(const std::string& directory) {
  const std::string index_path = directory + "/model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) return open_file(directory + "/model.safetensors");
  TROUPE_TRY(std::string text, read_text_file(index_path));
  json index = json::parse(text, nullptr, false);
  if (index.is_discarded() || !index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return fail(errc::corrupt, "{}: no weight_map object", index_path);
  std::set<std::string> files;
  for (auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
      return fail(errc::corrupt, "{}: tensor {}: bad file name {}", index_path, name, file.dump());
    files.insert(file.get<std::string>());
  }
  checkpoint c;
  for (const std::string& file : files)
    if (auto r = c.add_file(directory + "/" + file); !r) return fail(r.error());
  for (auto& [name, file] : index["weight_map"].items()) {
    const tensor* t = c.find(name);
    if (!t || t->file != directory + "/" + file.get<std::string>())
      return fail(errc::not_found, "{}/{}: tensor {} is missing, {} says it is there", directory,
                  file.get<std::string>(), name, index_path);
  }
  return c;
}

const tensor* checkpoint::find(const std::string& name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace troupe::kernels
