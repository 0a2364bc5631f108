// Which store a directory holds, or would get.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kv/store/directory.hpp"

namespace troupe::kv {
namespace {

namespace fs = std::filesystem;
using detail::folder_of;

// Whether a name may be in the directory of a store that is about to be made: what a cut attempt leaves, and what
// belongs to a file system or to targets that are mounted already.
bool expected_name(const std::string& name) {
  return name == "lock" || name == "layout.json.new" || name == "lost+found" || name.starts_with("target-");
}

// The layout of a store that is not there yet, or why none can be.
result<store_layout> new_layout(const directory_options& options) {
  const auto& e = options.expect;
  const std::string& dir = options.dir;
  std::error_code ec;
  // A lost layout must not turn a store into a new, empty one.
  for (uint32_t t = 1; t <= max_targets; ++t) {
    if (fs::exists(folder_of(dir, target_id{t}) + "/chunk-00000000", ec))
      return fail(errc::corrupt, "{}: there are targets but no layout.json; restore it from a backup", dir);
  }
  if (!options.create) return fail(errc::not_found, "{}: there is no store; `troupe kv put` makes one", dir);
  if (fs::exists(dir, ec)) {
    if (!fs::is_directory(dir, ec)) return fail(errc::invalid_argument, "{}: is not a directory", dir);
    for (const auto& f : fs::directory_iterator(dir, ec)) {
      const std::string name = f.path().filename().string();
      if (!expected_name(name))
        return fail(errc::invalid_argument,
                    "{}: holds no store but other things ('{}'); a new store needs a directory of its own", dir, name);
    }
    if (ec) return fail(errc::io, "{}: {}", dir, ec.message());
  }
  store_layout l;
  l.data = e.data.value_or(l.data);
  l.parity = e.parity.value_or(l.parity);
  l.targets = e.targets.value_or(options.targets.value_or(l.data + l.parity));
  l.scheme = e.scheme.value_or(l.scheme);
  if (e.block_tokens) l.scheme.block_tokens = *e.block_tokens;
  if (e.fingerprint) l.scheme.fingerprint = *e.fingerprint;
  l.chunk_bytes = e.chunk_bytes.value_or(options.chunk_bytes.value_or(l.chunk_bytes));
  l.capacity_bytes = options.capacity_bytes.value_or(l.capacity_bytes);
  // A chunk that was asked for is compared with the capacity below; else one chunk is the least.
  if (!e.chunk_bytes) l.capacity_bytes = std::max(l.capacity_bytes, l.chunk_bytes);
  if (l.data < 1 || l.data > max_data_shards || l.parity > max_parity_shards)
    return fail(errc::invalid_argument, "a code of {}+{}: 1 to {} data and 0 to {} parity shards are possible", l.data,
                l.parity, max_data_shards, max_parity_shards);
  if (l.targets < l.data + l.parity || l.targets > max_targets)
    return fail(errc::invalid_argument, "{} targets for {}+{}: at least {} are needed, {} are possible", l.targets,
                l.data, l.parity, l.data + l.parity, max_targets);
  if (e.capacity_bytes) l.capacity_bytes = *e.capacity_bytes;
  if (l.capacity_bytes < l.chunk_bytes)
    return fail(errc::invalid_argument,
                "a capacity of {} bytes for each target is less than one chunk ({} bytes); more, or a smaller chunk "
                "(at least 1 MiB), is needed",
                l.capacity_bytes, l.chunk_bytes);
  if (l.chunk_bytes < min_chunk_bytes || l.chunk_bytes > max_chunk_bytes || l.chunk_bytes % run_bytes != 0)
    return fail(errc::invalid_argument, "chunk files of {} bytes: 1 MiB to 16 GiB, a multiple of 4 KiB", l.chunk_bytes);
  return l;
}

}  // namespace

result<store_layout> directory_store::plan(const directory_options& options) {
  const auto& e = options.expect;
  const std::string& dir = options.dir;
  if (dir.empty()) return fail(errc::invalid_argument, "no directory was given");
  const std::string file = dir + "/layout.json";
  std::error_code ec;
  store_layout l;
  if (fs::exists(file, ec)) {
    TROUPE_TRY(auto text, detail::read_whole(file));
    TROUPE_TRY(l, parse_layout(text, file));
  } else {
    TROUPE_TRY(l, new_layout(options));
  }
  const auto differs = [&](const char* what, const auto& wanted, const auto& is) {
    return fail(errc::invalid_argument,
                "{}: the store has {} = {}, not {}; leave the option out or use another directory", dir, what, is,
                wanted);
  };
  if (e.data && *e.data != l.data) return differs("data shards", *e.data, l.data);
  if (e.parity && *e.parity != l.parity) return differs("parity shards", *e.parity, l.parity);
  if (e.targets && *e.targets != l.targets) return differs("targets", *e.targets, l.targets);
  if (e.chunk_bytes && *e.chunk_bytes != l.chunk_bytes) return differs("chunk bytes", *e.chunk_bytes, l.chunk_bytes);
  if (e.capacity_bytes && *e.capacity_bytes != l.capacity_bytes)
    return differs("capacity bytes", *e.capacity_bytes, l.capacity_bytes);
  if (e.block_tokens && *e.block_tokens != l.scheme.block_tokens)
    return differs("block size in tokens", *e.block_tokens, l.scheme.block_tokens);
  if (e.scheme || e.fingerprint) {
    hash_scheme wanted = e.scheme.value_or(l.scheme);
    if (e.fingerprint) wanted.fingerprint = *e.fingerprint;
    if (auto same = check_same_scheme(wanted, l.scheme, "the store in " + dir); !same) return fail(same.error());
  }
  std::string known;
  for (const auto& m : l.members()) known += fmt::format("{}{}", known.empty() ? "" : ", ", m.id.value);
  for (const auto* list : {&options.without, &options.renew}) {
    for (uint32_t t : *list) {
      if (!l.has(target_id{t}))
        return fail(errc::invalid_argument, "{}: there is no target {}; the store has targets {}", dir, t, known);
    }
  }
  return l;
}

}  // namespace troupe::kv
