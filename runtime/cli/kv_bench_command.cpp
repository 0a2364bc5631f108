// troupe kv bench: what a store does on this machine.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "kv/store/bench.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/kv_command.hpp"
#include "runtime/cli/kv_common.hpp"
#include "runtime/config/units.hpp"

namespace troupe::cli {
namespace {

using json = nlohmann::ordered_json;

struct kv_bench_options {
  kv_store_options store;
  uint64_t blocks = 2048, chain = 1024, seed = 1;
  uint32_t rounds = 3;
  std::string block_bytes = "113920";
};

json times(const kv::latency& l) {
  return {{"calls", l.calls}, {"p50_us", l.p50_us}, {"p99_us", l.p99_us}, {"max_us", l.max_us}};
}

result<int> bench(const kv_bench_options& o) {
  kv::bench_options b;
  TROUPE_TRY(b.store, o.store.resolve());
  b.store.create = true;
  b.blocks = o.blocks;
  b.chain = o.chain;
  b.rounds = o.rounds;
  b.seed = o.seed;
  TROUPE_TRY(b.block_bytes, kv_bytes(o.block_bytes));
  b.progress = [](const std::string& what) { tell("troupe kv bench: {}\n", what); };
  b.stop = [] { return kv_interrupt::set(); };
  kv_interrupt interrupt;
  TROUPE_TRY(auto r, kv::run_bench(b, steady_clock()));
  json reads = json::array();
  for (const auto& x : r.reads)
    reads.push_back({{"targets_gone", x.targets_gone},
                     {"gb_s", x.gb_s},
                     {"shards_decoded", x.shards_decoded},
                     {"get_call", times(x.call)}});
  const json j{{"blocks", b.blocks},
               {"block_bytes", b.block_bytes},
               {"blocks_per_call", b.chain},
               {"ec", fmt::format("{}+{}", b.store.expect.data.value_or(2), b.store.expect.parity.value_or(1))},
               {"io_threads", b.store.io_threads},
               {"disk", r.disk},
               {"durability", o.store.durable ? "power" : "process"},
               {"bytes", r.bytes},
               {"write_gb_s", r.write_gb_s},
               {"put_call", times(r.put)},
               {"put_one_block", times(r.put_single)},
               {"reads", reads},
               {"get_one_block", times(r.get_single)},
               {"match_chain", times(r.match_chain)},
               {"raw_read_gb_s", r.raw_read_gb_s},
               {"read_share_of_raw", r.read_share_of_raw},
               {"encode_gb_s", r.encode_gb_s},
               {"isal_gb_s", r.isal_gb_s},
               {"encode_share_of_isal", r.encode_share_of_isal},
               {"allocated_per_byte_full", r.allocated_per_byte_full},
               {"allocated_per_byte_single", r.allocated_per_byte_single}};
  fmt::print("{}\n", o.store.json ? j.dump() : j.dump(2));
  std::fflush(stdout);
  return int{ok};
}

}  // namespace

void add_kv_bench(CLI::App& kv, context& ctx) {
  auto o = std::make_shared<kv_bench_options>();
  CLI::App* c = kv.add_subcommand("bench", "Measure puts, gets and losses in a new directory");
  o->store.add_to(*c, true);
  c->add_option("--blocks", o->blocks, "Blocks in all")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  c->add_option("--chain", o->chain, "Blocks of one call; 1024 of 128 tokens are a context of 131,072 tokens")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  c->add_option("--block-bytes", o->block_bytes, "Bytes of a block; a plain number or with a unit")
      ->capture_default_str();
  c->add_option("--rounds", o->rounds, "Reads of everything, raw and through the store in turn; medians are printed")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  c->add_option("--seed", o->seed, "Draws tokens and bytes")->capture_default_str();
  c->footer(
      "JSON on stdout, times in microseconds, rates in GB = 1e9 bytes of block data per second. Everything that is "
      "read\n"
      "is compared. The store stays in the directory.\n"
      "Example:\n  troupe kv bench --dir /tmp/bench --targets 12 --ec 10+2 --block-bytes 113920 --blocks 2048");
  c->callback([o, &ctx] {
    auto r = bench(*o);
    ctx.result = r ? *r : kv_fail("bench", r.error());
  });
}

}  // namespace troupe::cli
