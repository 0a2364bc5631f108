// The configuration of a cluster: one typed struct per section. Name, type, default, bounds and meaning of every key
// live in one table per section (sections.cpp), which drives parsing, `troupe config --explain|--check|--print` and
// docs/config.md. A default-constructed section holds the defaults of its table.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/units.hpp"

namespace troupe::config {

/// Who the cluster is, and how its nodes watch each other.
struct cluster_section {
  cluster_section();
  std::string name;
  std::chrono::nanoseconds heartbeat, lost_after, connection_timeout, join_timeout, drain_timeout, role_every;
  bool role_changes;
};

/// The checkpoint that is served. Paths are absolute after loading.
struct model_section {
  model_section();
  std::string path, tokenizer, name;
};

/// The process that knows all nodes.
struct director_section {
  director_section();
  address listen;
};

/// The processes that talk HTTP.
struct front_section {
  front_section();
  address listen;
  std::string api_keys;
  uint64_t max_body;
  uint32_t count, max_connections, max_requests, io_threads, encode_threads;
  std::chrono::nanoseconds request_timeout, idle_timeout, keep_alive, slow_client_timeout;
  /// Where front process number `index` listens: the port counts up, unless it is 0.
  address listen_of(uint32_t index) const {
    return {listen.host, static_cast<uint16_t>(listen.port == 0 ? 0 : listen.port + index)};
  }
};

/// Ranks of one role: each a process with its own engine.
struct ranks_section {
  uint32_t ranks, ep, threads, slots, pages, max_chunk, max_context, handoffs;
  std::chrono::nanoseconds step_budget;
  uint32_t redundant_experts, rebalance_every, split_window, micro_batch_rows;
};

/// Ranks that run prompts.
struct prefill_section : ranks_section {
  prefill_section();
};

/// Ranks that write answers.
struct decode_section : ranks_section {
  decode_section();
};

/// How engines compute.
struct engine_section {
  engine_section();
  std::string kind, cost_model, isa, replay;
  bool speculation, plan_ahead;
  uint32_t max_draft;
};

/// How expert-parallel groups move their experts.
struct eplb_section {
  eplb_section();
  uint32_t loads_per_step, max_moves, min_gain;
  std::chrono::nanoseconds move_timeout;
};

/// The data plane.
struct transport_section {
  transport_section();
  bool shared_memory;
  std::chrono::nanoseconds step_deadline, peer_deadline;
};

/// The KV block store: where it lies, how it is coded, how long blocks live. `troupe kv -c FILE` reads it.
struct storage_section {
  storage_section();
  std::string path, durability;
  std::string fingerprint;
  uint32_t data, parity, targets, io_threads, high_mark, low_mark, nodes, disks, block_tokens;
  uint64_t chunk, capacity, window, staging, scrub_rate, snapshots;
  std::chrono::nanoseconds agent_ttl, chatbot_ttl, ttl_step, hedge_after, repair_after, scrub_every, snapshot_ttl;
};

/// Reuse of earlier prompts' keys and values, through the storage nodes of the cluster.
struct cache_section {
  cache_section();
  bool enabled;
  uint32_t writes, snapshots;
  std::chrono::nanoseconds match_timeout, read_at_least, read_at_most;
};

/// How `troupe sim` lets the cluster run in virtual time.
struct sim_section {
  sim_section();
  std::string cost, profile, faults;
  uint32_t seed, loss, duplication, reordering;
  uint64_t link_rate, node_rate, control_rate, disk_rate;
  bool encode;
  std::chrono::nanoseconds latency, jitter, disk_latency, load_time;
};

/// What the processes write about themselves.
struct log_section {
  log_section();
  std::string level;
};

/// A whole cluster. Plain data; copy it freely.
struct settings {
  cluster_section cluster;
  model_section model;
  director_section director;
  front_section front;
  prefill_section prefill;
  decode_section decode;
  engine_section engine;
  eplb_section eplb;
  transport_section transport;
  storage_section storage;
  cache_section cache;
  sim_section sim;
  log_section log;
};

/// One mistake in a configuration.
struct problem {
  std::string file;          // as given by the caller, or "--set"
  int line = 0, column = 0;  // from 1; 0 where the text has no position
  std::string key;           // "section.key", or "" for a mistake in the file as a whole
  std::string message;       // what is wrong and what to do
  /// "FILE:LINE:COLUMN: KEY: MESSAGE".
  std::string text() const;
};

/// Settings, and every mistake found; the settings are usable only when there is none.
struct loaded {
  settings values;
  std::vector<problem> problems;
};

/// Reads a YAML file, then the overrides ("section.key=value", later ones win), then checks keys against each other.
/// Relative paths in the file are relative to the file; in an override, to the working directory.
loaded read(const std::string& file, const std::vector<std::string>& overrides = {});

/// The same from text. `name` stands for the file in messages, `folder` for its folder.
loaded read_text(const std::string& text, const std::string& name, const std::string& folder,
                 const std::vector<std::string>& overrides = {});

/// `read` for callers that go on only with a good configuration: all mistakes, one a line, in one invalid_argument.
result<settings> load(const std::string& file, const std::vector<std::string>& overrides = {});

/// The effective settings as YAML with every key; `load` of it gives the same settings.
std::string print(const settings& s);

/// Every key with type, default, bounds and meaning, for a terminal. `topic` limits it to a section or "section.key";
/// an unknown topic is not_found with the nearest name.
result<std::string> explain(std::string_view topic = "");

/// docs/config.md.
std::string markdown();

}  // namespace troupe::config
