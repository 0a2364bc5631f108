// troupe kv replay: what a recorded trace would have found in the store.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kv/index/rocks_db.hpp"
#include "kv/replay/replay.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/cli/kv_command.hpp"
#include "runtime/cli/kv_common.hpp"

namespace troupe::cli {
namespace {

struct kv_replay_options {
  std::string trace, dir;
  double ttl_s = 0;
  uint64_t lru = 0;
  uint32_t block_tokens = kv::trace_block_tokens;
  uint32_t block_bytes = 113'920;
  std::string ec = "10+2";
};

// A directory below the system's temporary one, gone at the end.
class scratch {
 public:
  scratch() {
    std::error_code ec;
    std::string name = (std::filesystem::temp_directory_path(ec) / "troupe-replay-XXXXXX").string();
    if (mkdtemp(name.data())) path_ = name;
  }
  scratch(const scratch&) = delete;
  ~scratch() {
    std::error_code ec;
    if (!path_.empty()) std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

double seconds_since(nanoseconds start) { return std::chrono::duration<double>(steady_clock().now() - start).count(); }

double rounded(double v) { return std::round(v * 1e6) / 1e6; }

nlohmann::ordered_json common(const kv_replay_options& o, const kv::replay_counts& c) {
  nlohmann::ordered_json j;
  j["trace"] = o.trace;
  j["definition"] = "a request hits the longest stored prefix of its blocks; then all its blocks are stored or touched";
  j["block_tokens"] = o.block_tokens;
  j["ttl_s"] = o.ttl_s > 0 ? nlohmann::ordered_json(o.ttl_s) : nlohmann::ordered_json(nullptr);
  j["lru_blocks"] = o.lru > 0 ? nlohmann::ordered_json(o.lru) : nlohmann::ordered_json(nullptr);
  j["requests"] = c.requests;
  j["blocks"] = c.blocks;
  j["unique_blocks"] = c.unique_blocks;
  j["hit_blocks"] = c.hit_blocks;
  j["block_hit_rate"] = rounded(c.block_hit_rate());
  j["token_hit_rate"] = rounded(c.token_hit_rate());
  return j;
}

result<nlohmann::ordered_json> through_index(const kv_replay_options& o, const std::vector<kv::trace_request>& trace) {
  kv::replay_shape shape;
  shape.stop = kv_interrupt::set;
  shape.block_tokens = o.block_tokens, shape.block_bytes = o.block_bytes, shape.lru_blocks = o.lru;
  TROUPE_TRY(const auto code, kv_code(o.ec));
  shape.data = code.first, shape.parity = code.second;
  std::optional<scratch> own;
  std::string path = o.dir;
  std::error_code ec;
  // Whatever is in it, be it a store or somebody's files, is not to be mixed with an index.
  if (!path.empty() && std::filesystem::exists(path, ec) && !std::filesystem::is_empty(path, ec))
    return fail(errc::invalid_argument, "--dir {}: {}; give a new or an empty directory", path,
                ec ? ec.message() : "is not empty");
  if (path.empty()) {
    own.emplace();
    if (own->path().empty()) return fail(errc::io, "no temporary directory; give one with --dir");
    path = own->path() + "/index";
  }
  TROUPE_TRY(const auto database, kv::open_rocks_db({.path = path}));
  kv::index_options options{.hold_after_open = false};
  if (o.ttl_s > 0 || o.lru > 0) options.step_s = 1;  // hits by recency: extended at every use
  if (o.ttl_s > 0) options.chatbot_ttl_s = shape.ttl_s = std::max<int64_t>(1, std::llround(o.ttl_s));
  constexpr int64_t start_s = 1'800'000'000;
  TROUPE_TRY(const auto index, kv::block_index::open(*database, options, start_s, {}));
  const auto began = steady_clock().now();
  TROUPE_TRY(const auto c, kv::replay_index(trace, *index, shape, start_s));
  const double took = seconds_since(began);
  auto j = common(o, c);
  j["per_block_hit_rate"] =
      rounded(c.blocks == 0 ? 0 : static_cast<double>(c.per_block_hits) / static_cast<double>(c.blocks));
  j["extents"] = c.extents;
  j["blocks_per_extent"] = rounded(
      c.extents == 0 ? 0 : static_cast<double>(c.payload_bytes / o.block_bytes) / static_cast<double>(c.extents));
  j["extents_read_per_16_blocks"] = rounded(c.extents_per_16_blocks());
  j["ec"] = o.ec;
  j["block_bytes"] = o.block_bytes;
  j["payload_bytes"] = c.payload_bytes;
  j["device_bytes"] = c.device_bytes;
  j["space_over_bytes"] = rounded(c.space_over_bytes());
  j["index_disk_bytes"] = database->stats().disk_bytes + database->stats().memtable_bytes;
  j["seconds"] = rounded(took);
  return j;
}

int run(const kv_replay_options& o) {
  const kv_interrupt interrupt;
  if (o.ttl_s > 0 && o.lru > 0) return complain("kv replay", "--ttl and --lru: choose one", usage);
  if (const auto code = kv_code(o.ec); !code) return complain("kv replay", code.error().message, usage);
  auto trace = kv::read_trace_file(o.trace);
  if (!trace) return complain("kv replay", trace.error().message, trace.error().code == errc::io ? usage : failed);
  nlohmann::ordered_json j;
  if (o.block_tokens == kv::trace_block_tokens) {
    const auto c = kv::replay_blocks(*trace, {std::llround(o.ttl_s * 1'000), o.lru});
    if (!c) return complain("kv replay", c.error().message, usage);
    j = common(o, *c);
  } else {
    auto r = through_index(o, *trace);
    if (!r) return kv_fail("replay", r.error());
    j = std::move(*r);
  }
  if (kv_interrupt::set()) return complain("kv replay", "stopped", interrupted);
  fmt::print("{}\n", j.dump(2));
  return ok;
}

}  // namespace

void add_kv_replay(CLI::App& kv, context& ctx) {
  auto o = std::make_shared<kv_replay_options>();
  CLI::App* c = kv.add_subcommand("replay", "What a recorded trace would have found in the store; JSON to stdout");
  c->add_option("--trace", o->trace, "Trace in the format of the Mooncake release (JSON lines)")->required();
  c->add_option("--ttl", o->ttl_s, "Seconds that a block lives after its last use; default: for ever")
      ->check(CLI::Range(0.001, 1e9));
  c->add_option("--lru", o->lru, "Room in blocks, the least recently used goes; default: no limit")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  c->add_option("--block-tokens", o->block_tokens,
                "512: the trace's own blocks, counted only; less: through the index, in extents, complete blocks only")
      ->check(CLI::IsMember({512, 256, 128, 64, 32}))
      ->capture_default_str();
  c->add_option("--block-bytes", o->block_bytes, "Size of a block, for the space figures")
      ->check(CLI::Range(1u, kv::max_block_bytes))
      ->capture_default_str();
  c->add_option("--ec", o->ec, "Data and parity shards, for the space figures")->capture_default_str();
  c->add_option("--dir", o->dir, "Directory for the index (kept); default: a temporary one");
  c->footer(
      "Where to get a trace: FAST25-release/traces/conversation_trace.jsonl of github.com/kvcache-ai/Mooncake.\n"
      "Example:\n  troupe kv replay --trace conversation_trace.jsonl --ttl 600");
  c->callback([o, &ctx] { ctx.result = run(*o); });
}

}  // namespace troupe::cli
