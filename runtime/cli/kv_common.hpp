// What the subcommands of `troupe kv` share.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/store/directory.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/find_cluster.hpp"

namespace troupe::cli {

/// Options that say which store, and, for a new one, what it is like.
struct kv_store_options {
  std::string dir, ec, fingerprint, config;
  uint32_t targets = 0, block_tokens = 0, io_threads = 0;
  std::string chunk, capacity;
  std::vector<uint32_t> without;
  bool durable = false, json = false;
  std::string join;  // a running cluster instead of a directory: the director's address
  cluster_options cluster{.run_dir = "", .cluster = ""};  // or how to find it
  /// `shape`: also the options of a new store.
  void add_to(CLI::App& command, bool shape);
  /// Also --fingerprint; `shape` has it too.
  void add_fingerprint_to(CLI::App& command);
  /// Also those that name a cluster; for commands that work on one.
  void add_cluster_to(CLI::App& command);
  bool on_cluster() const { return !join.empty() || !cluster.run_dir.empty() || !cluster.cluster.empty(); }
  /// Of the cluster that is named. Errors: not_found, invalid_argument.
  result<config::address> director() const;
  /// As the store takes them; a configuration file's storage section stands below the options given.
  result<kv::directory_options> resolve() const;
};

/// A chain that the user names by its tokens.
struct kv_chain_options {
  std::string tokens, text, tenant;
  void add_to(CLI::App& command);
  /// The chain's hashes: of every complete block. Errors: invalid_argument (no tokens, fewer than a block), io.
  result<std::vector<kv::block_hash>> hashes(const kv::hash_scheme& scheme) const;
};

/// Opens a store to look at it: nothing is written. Errors also: stale, where the index or a target's records must be
/// made again first (says how).
result<std::unique_ptr<kv::directory_store>> kv_open_to_look(kv::directory_options where);

/// "10+2" -> {10, 2}. Errors: invalid_argument, also for a code that no store can have.
result<std::pair<uint32_t, uint32_t>> kv_code(const std::string& text);

/// "65.1 GiB".
std::string kv_size(uint64_t bytes);

/// While one lives, Ctrl-C and SIGTERM set a flag instead of ending the process; a second one ends it. One at a time.
class kv_interrupt {
 public:
  kv_interrupt();
  ~kv_interrupt();
  static bool set();
};

/// "113920" or "64MiB" -> bytes.
result<uint64_t> kv_bytes(const std::string& text);

/// A line on stderr at most once a second.
class kv_progress {
 public:
  explicit kv_progress(std::string what) : what_(std::move(what)) {}
  void show(const std::string& state);

 private:
  std::string what_;
  nanoseconds last_{0};
};

/// Prints an error of the store for `command` and gives the exit code: 2 for wrong arguments, 3 where there is no
/// store, somebody else has it, its index must be rebuilt first, or the cluster does not answer; 1 otherwise.
int kv_fail(const std::string& command, const error& e);

/// Runs a subcommand's function, `result<int>()`, and leaves its exit code in `ctx`.
template <class F>
void kv_run(context& ctx, const char* name, F&& f) {
  const result<int> r = f();
  ctx.result = r ? *r : kv_fail(name, r.error());
}

/// Prints what opening the store found, to stderr.
void kv_notes(const std::string& command, const kv::directory_store& store);

}  // namespace troupe::cli
