#include "kv/store/generations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "kv/store/directory_files.hpp"
#include "runtime/base/rng.hpp"

namespace troupe::kv {
namespace {

constexpr std::string_view mark_begin = "troupe-kv store ", mark_middle = " generation ";
constexpr const char* generation_key = "generation";  // in `meta`

std::string told_key(target_id t) { return fmt::format("generation-of-{}", t.value); }

struct generation_mark {
  std::string store;
  uint64_t generation = 0;
};

std::string print(const generation_mark& m) {
  return fmt::format("{}{}{}{}\n", mark_begin, m.store, mark_middle, m.generation);
}

std::optional<generation_mark> parse_generation(const std::string& text) {
  const size_t middle = text.find(mark_middle);
  if (!text.starts_with(mark_begin) || middle == std::string::npos || !text.ends_with('\n')) return std::nullopt;
  generation_mark m;
  m.store = text.substr(mark_begin.size(), middle - mark_begin.size());
  const char* from = text.data() + middle + mark_middle.size();
  const char* to = text.data() + text.size() - 1;
  const auto r = std::from_chars(from, to, m.generation);
  if (r.ec != std::errc{} || r.ptr != to || m.store.empty()) return std::nullopt;
  return m;
}

std::optional<generation_mark> read_generation(const std::string& folder) {
  const auto text = detail::read_whole(folder + "/generation");
  return text ? parse_generation(*text) : std::nullopt;
}

bool write_generation(const std::string& folder, const generation_mark& m) {
  const std::string path = folder + "/generation", temporary = path + ".new";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << print(m);
    if (!out.flush()) return false;
  }
  std::error_code ec;
  std::filesystem::rename(temporary, path, ec);
  return !ec;
}

result<std::optional<generation_mark>> stored(const db& database, const std::string& key) {
  std::string value;
  TROUPE_TRY(const bool known, database.get(family::meta, key, value));
  return known ? parse_generation(value) : std::nullopt;
}

}  // namespace

result<generations> generations::read(const db& database, const std::vector<target_folder>& targets) {
  generations g;
  TROUPE_TRY(const auto own, stored(database, generation_key));
  if (own) g.store_ = own->store, g.generation_ = own->generation;
  for (const auto& t : targets) {
    auto& p = g.targets_[t.target];
    const auto mark = read_generation(t.folder);
    if (mark && g.store_.empty()) g.store_ = mark->store;
    if (mark && mark->store == g.store_) p.found = mark->generation;
    TROUPE_TRY(const auto told, stored(database, told_key(t.target)));
    if (told && told->store == g.store_) p.told = told->generation;
    g.highest_ = std::max(g.highest_, p.found.value_or(0));
  }
  return g;
}

std::optional<uint64_t> generations::in_folder(const std::string& folder) {
  const auto mark = read_generation(folder);
  return mark ? std::optional(mark->generation) : std::nullopt;
}

std::optional<std::string> generations::older_index() const {
  if (generation_ >= highest_) return std::nullopt;
  return fmt::format("the index is an older copy: it knows the first {} steps of {}", generation_, highest_);
}

std::optional<std::string> generations::older_disk(target_id target) const {
  const auto it = targets_.find(target);
  if (it == targets_.end() || !it->second.found || *it->second.found >= it->second.told) return std::nullopt;
  return fmt::format("its disk is an older copy: it was there for the first {} steps of {}", *it->second.found,
                     it->second.told);
}

void generations::forget_index() {
  generation_ = 0;
  for (auto& [t, p] : targets_) p.told = 0;
}

result<void> generations::begin(db& database) {
  if (store_.empty()) store_ = fmt::format("{:016x}", entropy_seed());
  generation_ = std::max(generation_, highest_) + 1;
  write_batch b;
  b.put(family::meta, generation_key, print({store_, generation_}));
  return database.write(b, sync_write::yes);
}

void generations::tell(db& database, const std::vector<target_folder>& targets) {
  write_batch b;
  bool any = false;
  for (const auto& t : targets) {
    if (!write_generation(t.folder, {store_, generation_})) continue;
    b.put(family::meta, told_key(t.target), print({store_, generation_}));
    any = true;
  }
  if (any) (void)database.write(b, sync_write::no);
}

result<void> generations::advance(db& database, const std::vector<target_folder>& targets) {
  if (auto r = begin(database); !r) return r;
  tell(database, targets);
  return {};
}

}  // namespace troupe::kv
