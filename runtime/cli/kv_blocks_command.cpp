// troupe kv put, get, match: a file in blocks under the tokens that it belongs to.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/cli/command.hpp"
#include "runtime/cli/kv_any_store.hpp"
#include "runtime/cli/kv_command.hpp"
#include "runtime/cli/kv_common.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {
namespace {

// Of one call; Ctrl-C is looked at in between. At least one block.
constexpr size_t blocks_per_call = 256;
constexpr uint64_t bytes_per_call = 64ull << 20;

struct kv_blocks_options {
  kv_store_options store;
  kv_chain_options chain;
  std::string data, out, block_bytes, traffic = "agent";
  bool read_only = false;
};

// The store is there and cannot answer: not "no store there".
int cannot_tell(const kv_blocks_options& o, const char* command, const error& e) {
  const char* hint =
      o.store.on_cluster() ? "; `troupe status` shows which storage nodes are there: start the others" : "";
  return complain(fmt::format("kv {}", command), e.message + hint, e.code == errc::cancelled ? interrupted : failed);
}

void print(const kv_blocks_options& o, const nlohmann::ordered_json& j, const std::string& for_people) {
  fmt::print("{}\n", o.store.json ? j.dump() : for_people);
  std::fflush(stdout);
}

result<std::vector<std::byte>> read_file(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) return fail(errc::io, "{}: is a directory, not a file", path);
  std::FILE* in = std::fopen(path.c_str(), "rb");
  if (!in) return fail(errc::io, "{}: {}", path, std::strerror(errno));
  const auto known = std::filesystem::is_regular_file(path, ec) ? std::filesystem::file_size(path, ec) : 0;
  std::vector<std::byte> bytes(ec ? 1 : known + 1);  // one more, so that the end is seen
  size_t at = 0;
  for (size_t n; (n = std::fread(bytes.data() + at, 1, bytes.size() - at, in)) > 0;) {
    at += n;
    if (at == bytes.size()) bytes.resize(at + std::max<size_t>(at, 1 << 20));  // a pipe, or a file that grows
  }
  const bool good = std::ferror(in) == 0;
  const int why = errno;
  std::fclose(in);
  if (!good) return fail(errc::io, "{}: {}", path, std::strerror(why));
  if (at == 0) return fail(errc::invalid_argument, "{}: is empty; there is nothing to store", path);
  bytes.resize(at);
  return bytes;
}

result<int> put(const kv_blocks_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  where.create = true;
  TROUPE_TRY(auto data, read_file(o.data));
  // All of the request is looked at before a store is made.
  std::unique_ptr<kv_any_store> store;
  if (o.store.on_cluster()) {
    TROUPE_TRY(store, kv_open(o.store, where, false));
  }
  TROUPE_TRY(auto layout, store ? store->layout() : kv::directory_store::plan(where));
  TROUPE_TRY(auto chain, o.chain.hashes(layout.scheme));
  uint64_t size = (data.size() + chain.size() - 1) / chain.size();
  if (!o.block_bytes.empty()) {
    TROUPE_TRY(size, kv_bytes(o.block_bytes));
    if (size == 0) return fail(errc::invalid_argument, "--block-bytes 0: a block has at least one byte");
  }
  const uint64_t n = chain.size();
  if (size == 0 || size > kv::max_block_bytes || data.size() <= (n - 1) * size || data.size() > n * size)
    return fail(errc::invalid_argument,
                "{}: {} bytes for {} blocks of {} bytes; more than {} and at most {} are needed", o.data, data.size(),
                n, size, (n - 1) * size, n * size);
  kv_interrupt interrupt;
  if (!store) {
    TROUPE_TRY(store, kv_open(o.store, where, false));
  }
  kv_notes("put", *store);
  TROUPE_TRY(auto space, store->maintain());
  (void)space;
  kv::put_chain_reply sum;
  kv_progress progress("put");
  const uint64_t step = std::clamp<uint64_t>(bytes_per_call / size, 1, blocks_per_call);
  for (uint64_t at = 0; at < n; at += step) {
    if (kv_interrupt::set()) {
      tell("troupe kv put: stopped; {} of {} blocks are stored\n", at, n);
      return int{interrupted};
    }
    const uint64_t to = std::min<uint64_t>(n, at + step);
    kv::put_chain_request r;
    r.chain.assign(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(to));
    r.first = at;
    r.traffic = o.traffic == "chatbot" ? kv::traffic_class::chatbot : kv::traffic_class::agent;
    for (uint64_t b = at; b < to; ++b)
      r.blocks.emplace_back(data.data() + b * size, std::min<uint64_t>(size, data.size() - b * size));
    auto done = store->put(std::move(r));
    if (!done) {  // whatever it was: not "no store there"
      auto there = store->match(chain);
      return complain("kv put",
                      fmt::format("{}; {} of {} blocks are in the store", done.error().message, there ? *there : at, n),
                      done.error().code == errc::cancelled ? interrupted : failed);
    }
    sum.stored += done->stored;
    sum.present += done->present;
    sum.extents += done->extents;
    sum.block_bytes += done->block_bytes;
    progress.show(fmt::format("{} of {} blocks", to, n));
  }
  print(
      o,
      {{"blocks", n},
       {"tokens", chain.back().tokens},
       {"stored", sum.stored},
       {"present", sum.present},
       {"extents", sum.extents},
       {"bytes", sum.block_bytes}},
      fmt::format("{} of {} blocks stored ({}), {} were there", sum.stored, n, kv_size(sum.block_bytes), sum.present));
  return int{ok};
}

result<int> get(const kv_blocks_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  kv_interrupt interrupt;
  where.read_only = o.read_only;
  auto opened = kv_open(o.store, where, false);
  if (!opened && !o.read_only && !o.store.on_cluster() &&
      (opened.error().code == errc::io || opened.error().code == errc::exhausted)) {
    // A full disk or a read-only file system: reading goes on.
    where.read_only = true;
    if (auto again = kv_open(o.store, where, false)) {
      tell("troupe kv get: opened for reading only, no life is extended: {}\n", opened.error().message);
      opened = std::move(again);
    } else if (again.error().code == errc::stale) {
      opened = std::move(again);  // that is why it would have to be written
    }
  }
  TROUPE_TRY(auto store, std::move(opened));
  kv_notes("get", *store);
  TROUPE_TRY(auto chain, o.chain.hashes(store->layout().scheme));
  const auto known = store->lengths(chain);
  if (!known) return cannot_tell(o, "get", known.error());
  const auto& lengths = *known;
  std::FILE* out = o.out == "-" ? stdout : nullptr;  // a file is opened when there is something to write
  uint64_t blocks = 0, bytes = 0, decoded = 0;
  std::string stopped;
  bool write_failed = false;
  kv_progress progress("get");
  for (size_t at = 0, to = 0; at < lengths.size() && stopped.empty() && !kv_interrupt::set(); at = to) {
    uint64_t total = 0;
    while (to < lengths.size() && to < at + blocks_per_call && (to == at || total + lengths[to] <= bytes_per_call))
      total += lengths[to++];
    std::vector<std::byte> memory(total);
    kv::get_chain_request r;
    r.chain.assign(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(to));
    r.first = at;
    for (uint64_t b = at, from = 0; b < to; from += lengths[b++]) r.into.emplace_back(memory.data() + from, lengths[b]);
    r.traffic = o.traffic == "chatbot" ? kv::traffic_class::chatbot : kv::traffic_class::agent;
    auto got = store->get(std::move(r));
    if (!got) {
      stopped = got.error().message;
      break;
    }
    uint64_t good = 0;
    for (size_t b = at; b < at + got->blocks; ++b) good += lengths[b];
    if (good > 0 && !out) {
      out = std::fopen(o.out.c_str(), "wb");
      if (!out) return fail(errc::io, "{}: {}", o.out, std::strerror(errno));
    }
    write_failed = out && std::fwrite(memory.data(), 1, good, out) != good;
    blocks += got->blocks;
    bytes += good;
    decoded += got->decoded;
    if (got->stopped) stopped = got->stopped->message;
    if (write_failed) stopped = fmt::format("{}: {}", o.out, std::strerror(errno));
    progress.show(fmt::format("{} of {} blocks", blocks, chain.size()));
  }
  if (!out) {
  } else if (out == stdout ? std::fflush(out) != 0 : std::fclose(out) != 0) {
    if (!write_failed) stopped = fmt::format("{}: {}", o.out, std::strerror(errno));
  }
  if (stopped.empty() && blocks < chain.size() && !kv_interrupt::set())
    stopped = fmt::format("block {} is not in the store", blocks);
  nlohmann::ordered_json j{{"blocks", blocks},
                           {"of", chain.size()},
                           {"tokens", blocks == 0 ? 0 : chain[blocks - 1].tokens},
                           {"bytes", bytes},
                           {"decoded", decoded}};
  if (!stopped.empty()) j["stopped"] = stopped;
  const std::string people = fmt::format("{} of {} blocks ({}) read{}", blocks, chain.size(), kv_size(bytes),
                                         decoded > 0 ? fmt::format(", {} shards decoded", decoded) : "");
  if (o.out == "-")
    tell("{}\n", o.store.json ? j.dump() : people);
  else
    print(o, j, people);
  if (kv_interrupt::set() && blocks < chain.size()) return int{interrupted};
  if (blocks == chain.size() && stopped.empty()) return int{ok};
  return complain("kv get", fmt::format("{} of {} blocks: {}", blocks, chain.size(), stopped), failed);
}

result<int> match(const kv_blocks_options& o) {
  TROUPE_TRY(auto where, o.store.resolve());
  TROUPE_TRY(auto store, kv_open(o.store, where, true));
  kv_notes("match", *store);
  TROUPE_TRY(auto chain, o.chain.hashes(store->layout().scheme));
  const size_t of = chain.size();
  const uint32_t tokens = store->layout().scheme.block_tokens;
  const auto found = store->find(std::move(chain));
  if (!found) return cannot_tell(o, "match", found.error());
  const uint64_t n = found->blocks;
  std::string people = fmt::format("{} of {} blocks, {} tokens", n, of, n * tokens);
  if (!found->snapshots.empty())
    people += fmt::format("; window snapshots behind block {}", fmt::join(found->snapshots, ", "));
  print(o, {{"blocks", n}, {"of", of}, {"tokens", n * tokens}, {"snapshots", found->snapshots}}, people);
  return int{ok};
}

}  // namespace

void add_kv_blocks(CLI::App& kv, context& ctx) {
  {
    auto o = std::make_shared<kv_blocks_options>();
    CLI::App* c =
        kv.add_subcommand("put", "Store a file as the blocks of a chain of tokens; makes the store if needed");
    o->store.add_to(*c, true);
    o->store.add_cluster_to(*c);
    o->chain.add_to(*c);
    c->add_option("--data", o->data, "The file; it is cut into as many blocks as the tokens make")->required();
    c->add_option("--block-bytes", o->block_bytes, "Size of a block; default: the file's size over the blocks");
    c->add_option("--class", o->traffic, "Traffic class: how long the blocks live")
        ->check(CLI::IsMember({"agent", "chatbot"}))
        ->capture_default_str();
    c->footer(
        "Blocks that are there already are kept. The last block may be shorter.\n"
        "Example:\n  troupe kv put --dir /tmp/kv --block-tokens 4 --text 'sixteen letters.' --data README.md");
    c->callback([o, &ctx] { kv_run(ctx, "put", [&] { return put(*o); }); });
  }
  {
    auto o = std::make_shared<kv_blocks_options>();
    CLI::App* c = kv.add_subcommand("get", "Read the blocks of a chain of tokens into a file");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    o->store.add_fingerprint_to(*c);
    o->chain.add_to(*c);
    c->add_option("--out", o->out, "Where to; - is stdout")->required();
    c->add_option("--class", o->traffic, "Traffic class: how far the read extends their life")
        ->check(CLI::IsMember({"agent", "chatbot"}))
        ->capture_default_str();
    c->add_flag("--read-only", o->read_only, "Write nothing into the store: no life is extended");
    c->footer(
        "Exit code 1 when not all blocks are there; what comes before the first missing one is written.\n"
        "Example:\n  troupe kv get --dir /tmp/kv --text 'sixteen letters.' --out copy.md");
    c->callback([o, &ctx] { kv_run(ctx, "get", [&] { return get(*o); }); });
  }
  {
    auto o = std::make_shared<kv_blocks_options>();
    CLI::App* c = kv.add_subcommand("match", "How many blocks of a chain are there, from the first on");
    o->store.add_to(*c, false);
    o->store.add_cluster_to(*c);
    o->store.add_fingerprint_to(*c);
    o->chain.add_to(*c);
    c->footer("Extends no life.\nExample:\n  troupe kv match --dir /tmp/kv --text 'sixteen letters.'");
    c->callback([o, &ctx] { kv_run(ctx, "match", [&] { return match(*o); }); });
  }
}

}  // namespace troupe::cli
