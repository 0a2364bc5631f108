// Puts and gets through three storage node processes (2+1), beside the same store in a directory of this process, on
// the same file system, in the same run. JSON on stdout; every byte that is read is compared. TROUPE_LONG=1: more
// bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/rng.hpp"
#include "runtime/node/cluster_store.hpp"
#include "runtime/node/node_process.hpp"
#include "runtime/node/supervisor.hpp"
#include "tests/cli/run_program.hpp"

namespace troupe {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t block_bytes = 113'920, chain_blocks = 256;

struct chain {
  std::vector<kv::block_hash> hashes;
  std::vector<std::vector<std::byte>> blocks;
};

chain make_chain(const kv::hash_scheme& scheme, uint64_t seed) {
  chain c;
  rng draw(seed, 1);
  std::vector<uint32_t> tokens(size_t{scheme.block_tokens} * chain_blocks);
  for (auto& t : tokens) t = static_cast<uint32_t>(draw.below(100'000));
  c.hashes = *kv::hash_chain(scheme, "", tokens);
  for (size_t b = 0; b < chain_blocks; ++b) {
    auto& bytes = c.blocks.emplace_back(block_bytes);
    for (size_t i = 0; i < block_bytes; i += 8) {
      const uint64_t v = draw.next();
      std::memcpy(bytes.data() + i, &v, 8);
    }
  }
  return c;
}

double seconds(nanoseconds d) { return std::chrono::duration<double>(d).count(); }

// GB/s of put and get, the median of `rounds`; -1 where something was not as it should be.
template <class Store>
std::pair<double, double> measure(Store& store, uint64_t seed, int rounds) {
  std::vector<double> puts, gets;
  const double gb = static_cast<double>(block_bytes * chain_blocks) / 1e9;
  for (int r = 0; r < rounds; ++r) {
    const chain c = make_chain(store.layout().scheme, seed + static_cast<uint64_t>(r));
    kv::put_chain_request put;
    put.chain = c.hashes;
    for (const auto& b : c.blocks) put.blocks.emplace_back(b);
    auto begin = steady_clock().now();
    auto stored = store.put(std::move(put));
    puts.push_back(gb / seconds(steady_clock().now() - begin));
    std::vector<std::vector<std::byte>> memory(chain_blocks, std::vector<std::byte>(block_bytes));
    kv::get_chain_request get;
    get.chain = c.hashes;
    for (auto& m : memory) get.into.emplace_back(m);
    begin = steady_clock().now();
    auto got = store.get(std::move(get));
    gets.push_back(gb / seconds(steady_clock().now() - begin));
    if (!stored || !got || got->blocks != chain_blocks || memory != c.blocks) {
      fmt::print(stderr, "{}\n", !stored ? stored.error().message : !got ? got.error().message : "bytes differ");
      return {-1, -1};
    }
  }
  std::sort(puts.begin(), puts.end());
  std::sort(gets.begin(), gets.end());
  return {puts[puts.size() / 2], gets[gets.size() / 2]};
}

int run() {
  const char* more = std::getenv("TROUPE_LONG");
  const int rounds = more && std::string(more) == "1" ? 15 : 3;
  tests::temporary_folder folder;
  const std::string config = folder.path + "/c.yaml";
  tests::write_file(config, "model: {path: " TROUPE_TEST_DATA "/tiny-v41}\nstorage: {path: " + folder.path +
                                "/kv, nodes: 3, block_tokens: 128, capacity: 4GiB}\n");
  node::supervisor children(tests::troupe_path(), folder.path);
  auto start = [&](const std::string& seat, std::vector<std::string> rest) {
    std::vector<std::string> args{"node", "-c", config, "--seat", seat};
    args.insert(args.end(), rest.begin(), rest.end());
    return children.start({node::process_name(seat), args}).has_value();
  };
  auto wait = [&](size_t n, const char* key) {
    std::string last;
    while (n > 0) {
      auto e = children.wait(std::chrono::seconds(60));
      if (e.what != node::supervisor_event::kind::report) return std::string();
      const auto line = json::parse(e.text);
      if (!line.contains(key)) continue;
      last = line[key].is_string() ? line[key].get<std::string>() : "yes";
      --n;
    }
    return last;
  };
  if (!start("director", {"--set", "director.listen=127.0.0.1:0"})) return 1;
  const std::string director = wait(1, "actor");
  for (int i = 0; i < 3; ++i)
    if (director.empty() || !start(fmt::format("storage/{}", i), {"--join", director})) return 1;
  if (wait(3, "stores").empty()) return 1;
  node::cluster_store_options o;
  o.director = *config::parse_address(director);
  auto cluster = node::cluster_store::open(o);
  kv::directory_options d;
  d.dir = folder.path + "/directory";
  d.create = true;
  auto directory = kv::directory_store::open(d);
  if (!cluster || !directory) return 1;
  measure(**cluster, 1, 1);  // both are warm then
  measure(**directory, 1, 1);
  const auto [cluster_put, cluster_get] = measure(**cluster, 100, rounds);
  const auto [directory_put, directory_get] = measure(**directory, 100, rounds);
  fmt::print("{}\n", json{{"bytes_per_call", block_bytes * chain_blocks},
                          {"rounds", rounds},
                          {"cluster_put_gb_s", cluster_put},
                          {"cluster_get_gb_s", cluster_get},
                          {"directory_put_gb_s", directory_put},
                          {"directory_get_gb_s", directory_get},
                          {"put_ratio", cluster_put / directory_put},
                          {"get_ratio", cluster_get / directory_get}}
                         .dump(2));
  cluster->reset();
  children.stop({{"storage.0", "storage.1", "storage.2"}, {"director"}}, std::chrono::seconds(30));
  return cluster_put > 0 && cluster_get > 0 && directory_put > 0 && directory_get > 0 ? 0 : 1;
}

}  // namespace
}  // namespace troupe

int main() { return troupe::run(); }
