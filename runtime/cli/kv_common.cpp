// What the subcommands of `troupe kv` on a directory share.
#include "runtime/cli/kv_common.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "runtime/base/clock.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/config/config.hpp"

namespace troupe::cli {
namespace {

std::atomic<bool> interrupted_flag{false};
struct sigaction old_int, old_term;

void on_signal(int number) {
  if (interrupted_flag.exchange(true)) {  // the second one means it
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

result<std::vector<uint32_t>> parse_tokens(std::istream& in, const std::string& name) {
  std::vector<uint32_t> out;
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t line = 1;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == '[' || c == ']') {
      ++i;
      continue;
    }
    uint64_t v = 0;
    const size_t begin = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9' && v <= UINT32_MAX)
      v = v * 10 + uint64_t(text[i++] - '0');
    if (i == begin || v > UINT32_MAX)
      return fail(errc::invalid_argument,
                  "{}:{}: '{}' is no token id; ids are whole numbers up to 4294967295, separated "
                  "by spaces, commas or lines",
                  name, line,
                  text.substr(begin, std::min<size_t>(12, text.find_first_of(" \t\r\n,[]", begin) - begin)));
    out.push_back(static_cast<uint32_t>(v));
  }
  return out;
}

}  // namespace

void kv_store_options::add_to(CLI::App& c, bool shape) {
  c.add_option("--dir", dir, "Directory of the store");
  c.add_option("-c,--config", config, "Configuration file whose storage section gives what is not given here");
  c.add_option("--without", without, "Treat these targets as absent, e.g. 1,4")->delimiter(',');
  c.add_option("--io-threads", io_threads, "Threads of disk I/O")->check(CLI::Range(1, 256));
  c.add_flag("--json", json, "JSON on stdout, for programs");
  if (!shape) return;
  c.add_option("--ec", ec, "Code of a new store, DATA+PARITY, e.g. 10+2; default 2+1");
  c.add_option("--targets", targets, "Targets of a new store; default DATA + PARITY")->check(CLI::Range(1, 255));
  c.add_option("--block-tokens", block_tokens, "Tokens of a block in a new store; default 128")
      ->check(CLI::Range(1, 65536));
  add_fingerprint_to(c);
  c.add_option("--chunk", chunk, "Size of the files of a new store's targets, 1MiB to 16GiB; default 64MiB");
  c.add_option("--capacity", capacity, "Most that one target of a new store may take; default 64GiB");
  c.add_flag("--durable", durable, "Acknowledge only what survives a power cut, not just the end of the process");
}

void kv_store_options::add_fingerprint_to(CLI::App& c) {
  c.add_option("--fingerprint", fingerprint,
               "Which model the blocks belong to: 64 hex digits, or any text. Blocks of another one never match, and a "
               "store of another one is refused");
}

void kv_store_options::add_cluster_to(CLI::App& c) {
  c.add_option("--join", join, "The store of a running cluster, by the address of its director, HOST:PORT");
  c.add_option("--cluster", cluster.cluster, "The same, by the name of a cluster that `troupe up` runs here");
  c.add_option("--run-dir", cluster.run_dir, "The same, by its run directory");
}

result<config::address> kv_store_options::director() const {
  std::string where = join;
  if (where.empty()) {
    TROUPE_TRY(auto file, cluster.find());
    where = file.director;
  }
  return config::parse_address(where);
}

result<kv::directory_options> kv_store_options::resolve() const {
  kv::directory_options o;
  std::string code = ec;
  if (!config.empty()) {
    TROUPE_TRY(auto s, config::load(config, {"model.path=."}));  // a store needs no model: the file need not name one
    const auto& g = s.storage;
    o.dir = g.path;
    o.expect.data = g.data;
    o.expect.parity = g.parity;
    o.targets = std::max(g.targets, g.data + g.parity);  // of a new store: `troupe kv targets` changes them
    o.chunk_bytes = g.chunk;
    o.capacity_bytes = g.capacity;
    o.agent_ttl_s = std::chrono::duration_cast<std::chrono::seconds>(g.agent_ttl).count();
    o.chatbot_ttl_s = std::chrono::duration_cast<std::chrono::seconds>(g.chatbot_ttl).count();
    o.step_s = std::chrono::duration_cast<std::chrono::seconds>(g.ttl_step).count();
    o.high = g.high_mark / 100.0;
    o.low = g.low_mark / 100.0;
    o.hedge_after = g.hedge_after;
    o.window = g.window;
    o.io_threads = g.io_threads;
    o.durable = g.durability == "power" ? kv::durability::power : kv::durability::process;
  }
  if (!dir.empty()) o.dir = dir;
  if (o.dir.empty() && !on_cluster())
    return fail(errc::invalid_argument, "no store was named; give --dir, or -c with storage.path");
  if (!code.empty()) {
    TROUPE_TRY(const auto shards, kv_code(code));
    o.expect.data = shards.first;
    o.expect.parity = shards.second;
    o.targets.reset();
  }
  if (targets > 0) o.expect.targets = targets;
  if (block_tokens > 0) o.expect.block_tokens = block_tokens;
  if (!fingerprint.empty()) {
    kv::hash_scheme scheme;
    const bool hex = fingerprint.size() == 64 && fingerprint.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (hex) {
      for (size_t i = 0; i < 32; ++i)
        scheme.fingerprint[i] = static_cast<uint8_t>(std::stoul(fingerprint.substr(2 * i, 2), nullptr, 16));
    } else {
      SHA256(reinterpret_cast<const unsigned char*>(fingerprint.data()), fingerprint.size(), scheme.fingerprint.data());
    }
    o.expect.fingerprint = scheme.fingerprint;
  }
  if (!chunk.empty()) {
    TROUPE_TRY(o.expect.chunk_bytes, kv_bytes(chunk));
  }
  if (!capacity.empty()) {
    TROUPE_TRY(o.expect.capacity_bytes, kv_bytes(capacity));
  }
  if (const auto& c = o.expect.chunk_bytes;
      c && (*c < kv::min_chunk_bytes || *c > kv::max_chunk_bytes || *c % kv::run_bytes != 0))
    return fail(errc::invalid_argument, "--chunk {}: 1 MiB to 16 GiB, a multiple of 4 KiB", chunk);
  if (io_threads > 0) o.io_threads = io_threads;
  if (durable) o.durable = kv::durability::power;
  o.without = without;
  return o;
}

void kv_chain_options::add_to(CLI::App& c) {
  auto* t =
      c.add_option("--tokens", tokens, "File of token ids: numbers separated by spaces, commas or lines; - is stdin");
  auto* x = c.add_option("--text", text, "Instead of a file: the bytes of this text are the token ids");
  t->excludes(x);
  c.add_option("--tenant", tenant, "Whose blocks: tenants share nothing");
}

result<std::vector<kv::block_hash>> kv_chain_options::hashes(const kv::hash_scheme& scheme) const {
  std::vector<uint32_t> ids;
  if (!text.empty()) {
    for (unsigned char c : text) ids.push_back(c);
  } else if (tokens == "-") {
    TROUPE_TRY(ids, parse_tokens(std::cin, "stdin"));
  } else if (!tokens.empty()) {
    std::ifstream in(tokens, std::ios::binary);
    if (!in) return fail(errc::io, "{}: cannot be read", tokens);
    TROUPE_TRY(ids, parse_tokens(in, tokens));
  } else {
    return fail(errc::invalid_argument, "give the chain by --tokens FILE or --text TEXT");
  }
  if (ids.size() < scheme.block_tokens)
    return fail(errc::invalid_argument,
                "{} tokens make no block; the store's blocks have {} (set --block-tokens when a "
                "store is made)",
                ids.size(), scheme.block_tokens);
  return kv::hash_chain(scheme, tenant, ids);
}

result<uint64_t> kv_bytes(const std::string& text) {
  if (auto plain = config::parse_count(text)) return *plain;
  return config::parse_bytes(text);
}

result<std::unique_ptr<kv::directory_store>> kv_open_to_look(kv::directory_options where) {
  where.read_only = true;
  return kv::directory_store::open(where);
}

result<std::pair<uint32_t, uint32_t>> kv_code(const std::string& text) {
  unsigned k = 0, m = 0;
  char rest = 0;
  if (text.find_first_not_of("0123456789+") != std::string::npos ||
      std::sscanf(text.c_str(), "%3u+%3u%c", &k, &m, &rest) != 2)
    return fail(errc::invalid_argument, "--ec {}: write DATA+PARITY, e.g. 10+2", text);
  if (k < 1 || k > kv::max_data_shards || m > kv::max_parity_shards)
    return fail(errc::invalid_argument, "--ec {}: a code of {}+{}: 1 to {} data and 0 to {} parity shards are possible",
                text, k, m, kv::max_data_shards, kv::max_parity_shards);
  return std::pair{k, m};
}

std::string kv_size(uint64_t bytes) {
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, units[unit]);
}

kv_interrupt::kv_interrupt() {
  interrupted_flag = false;
  struct sigaction act {};
  act.sa_handler = on_signal;
  sigaction(SIGINT, &act, &old_int);
  sigaction(SIGTERM, &act, &old_term);
}

kv_interrupt::~kv_interrupt() {
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

bool kv_interrupt::set() { return interrupted_flag; }

void kv_progress::show(const std::string& state) {
  const auto now = steady_clock().now();
  if (last_ == nanoseconds{0}) last_ = now;  // short work says nothing
  if (now - last_ < std::chrono::seconds(1)) return;
  last_ = now;
  tell("troupe kv {}: {}\n", what_, state);
}

int kv_fail(const std::string& command, const error& e) {
  const int code = e.code == errc::invalid_argument || e.code == errc::unsupported ? usage
                   : e.code == errc::not_found || e.code == errc::unavailable || e.code == errc::stale ||
                           e.code == errc::timeout || e.code == errc::peer_lost
                       ? unavailable
                   : e.code == errc::cancelled ? interrupted
                                               : failed;
  return complain("kv " + command, e.message, code);
}

void kv_notes(const std::string& command, const kv::directory_store& store) {
  for (const auto& n : store.notes()) tell("troupe kv {}: {}\n", command, n);
}

}  // namespace troupe::cli
