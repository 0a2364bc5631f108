// Every key of every section: name, default, bounds, unit and meaning. The only place where they are written.
#include "runtime/config/schema.hpp"

namespace troupe::config {

using namespace std::chrono_literals;

cluster_section::cluster_section() { cluster_table().apply_defaults(*this); }
model_section::model_section() { model_table().apply_defaults(*this); }
director_section::director_section() { director_table().apply_defaults(*this); }
front_section::front_section() { front_table().apply_defaults(*this); }
prefill_section::prefill_section() { prefill_table().apply_defaults(*this); }
decode_section::decode_section() { decode_table().apply_defaults(*this); }
engine_section::engine_section() { engine_table().apply_defaults(*this); }
eplb_section::eplb_section() { eplb_table().apply_defaults(*this); }
transport_section::transport_section() { transport_table().apply_defaults(*this); }
storage_section::storage_section() { storage_table().apply_defaults(*this); }
cache_section::cache_section() { cache_table().apply_defaults(*this); }
log_section::log_section() { log_table().apply_defaults(*this); }

const section<cluster_section>& cluster_table() {
  using s = cluster_section;
  static const section<s> table{
      "cluster",
      "Who the cluster is, and how its nodes watch each other.",
      {identifier<s>("name", &s::name, "local",
                     "Name of the cluster, in logs, in `troupe status` and in the path of its run directory."),
       duration<s>("heartbeat", &s::heartbeat, 500ms, 20ms, 60s,
                   "Interval of the heartbeats between nodes over the actor network."),
       duration<s>("lost_after", &s::lost_after, 5s, 60ms, 10min,
                   "The director gives up a node that was not heard for so long, or for longer, up to three times "
                   "that, if its heartbeats were irregular before. At least three heartbeats; a busy "
                   "machine needs more."),
       duration<s>("connection_timeout", &s::connection_timeout, 10s, 100ms, 10min,
                   "The actor network cuts a connection on which nothing came for so long; the net below `lost_after`. "
                   "At least three heartbeats."),
       duration<s>("join_timeout", &s::join_timeout, 30s, 1s, 1h,
                   "How long a starting node keeps trying to reach the director before it gives up."),
       duration<s>("drain_timeout", &s::drain_timeout, 10s, 0s, 1h,
                   "How long a stopping node lets running requests finish before it ends them with an error."),
       flag<s>("role_changes", &s::role_changes, false,
               "Ranks change between prefill and decode with the load: one finishes what it has, and starts again in "
               "the role that needs more. For ranks that were not started for a seat; `prefill.ep` must be 1, and "
               "`decode.ep` 1 or `decode.ranks`."),
       duration<s>("role_every", &s::role_every, 10s, 100ms, 1h,
                   "Time between two looks at the roles; loads are smoothed over three times that.")}};
  return table;
}

const section<model_section>& model_table() {
  using s = model_section;
  static const section<s> table{
      "model",
      "The checkpoint that is served.",
      {path<s>("path", &s::path, "Folder with config.json and the safetensors files. Required."),
       path<s>("tokenizer", &s::tokenizer,
               "A Hugging Face tokenizer.json. Empty: the one in the model's folder, or, where there is none and the "
               "vocabulary "
               "is that small, one token per byte."),
       text<s>("name", &s::name, "", "Name under which clients ask for the model. Empty: the name of its folder.")}};
  return table;
}

const section<director_section>& director_table() {
  using s = director_section;
  static const section<s> table{"director",
                                "The process that knows all nodes and gives them their roles.",
                                {listen_address<s>("listen", &s::listen, "127.0.0.1:0",
                                                   "Where the director listens for nodes. Loopback only: the actor "
                                                   "network is neither encrypted nor authenticated.")}};
  return table;
}

const section<front_section>& front_table() {
  using s = front_section;
  static const section<s> table{
      "front",
      "The processes that serve HTTP: gateway and entrypoint.",
      {listen_address<s>(
           "listen", &s::listen, "127.0.0.1:8000",
           "Where the HTTP server listens. Without an api_keys file only loopback addresses are allowed."),
       count<s>("count", &s::count, 1, 1, 64, "processes",
                "Front processes, each with an HTTP server: number 0 at `listen`, the others at the ports that follow; "
                "with port 0 each takes a free one. Keys, limits and counts below are those of each."),
       path<s>("api_keys", &s::api_keys,
               "File of API keys, each with tenant, cache salt and traffic class. Empty: no key is asked for."),
       size<s>("max_body", &s::max_body, 8ull << 20, 1ull << 10, 1ull << 30,
               "Largest request body; a larger one is answered with 413."),
       count<s>("max_connections", &s::max_connections, 2048, 1, 65536, "connections",
                "Further connections are answered with 503 and closed."),
       count<s>("max_requests", &s::max_requests, 512, 1, 65536, "requests",
                "Requests running or waiting at once; further ones are answered with 429."),
       count<s>("io_threads", &s::io_threads, 1, 1, 64, "threads", "Threads of the HTTP server."),
       count<s>("encode_threads", &s::encode_threads, 1, 1, 64, "threads", "Threads that turn prompts into tokens."),
       duration<s>("request_timeout", &s::request_timeout, 30s, 100ms, 1h,
                   "From the first byte of a request to its last; a slower client is answered with 408."),
       duration<s>("idle_timeout", &s::idle_timeout, 75s, 100ms, 1h,
                   "A connection without a request is closed after so long."),
       duration<s>("keep_alive", &s::keep_alive, 10s, 100ms, 1h, "Silence in a stream before a comment line is sent."),
       duration<s>(
           "slow_client_timeout", &s::slow_client_timeout, 30s, 100ms, 1h,
           "A client that takes no byte of its answer for so long is disconnected, and its request cancelled.")}};
  return table;
}

namespace {

// prefill and decode have the same keys with different defaults.
template <class S>
std::vector<field<S>> ranks_fields(uint32_t least, uint32_t slots, uint32_t max_chunk, uint32_t redundant,
                                   uint32_t every, uint32_t split, std::chrono::nanoseconds budget) {
  using r = ranks_section;
  return {
      count<S, r>("ranks", &r::ranks, 1, least, 64, "processes",
                  least == 0 ? "Ranks of this role, each its own process. With 0 prompts are run by the decode ranks."
                             : "Ranks of this role, each its own process."),
      count<S, r>(
          "ep", &r::ep, 1, 1, 64, "ranks",
          "Ranks of one expert-parallel group, which share the experts and step together. Must divide `ranks`."),
      count<S, r>("threads", &r::threads, 1, 1, 256, "threads", "Compute threads of one rank."),
      count<S, r>("slots", &r::slots, slots, 1, 4096, "sequences",
                  "Sequences that one rank runs at once; more wait in its queue."),
      count<S, r>("pages", &r::pages, 1024, 1, 16777216, "pages",
                  "KV pages of one rank; a page holds as many tokens as the model's sliding window."),
      count<S, r>("max_chunk", &r::max_chunk, max_chunk, 1, 65536, "tokens",
                  "Prompt tokens that one step of a rank runs at most, over all sequences."),
      duration<S, r>(
          "step_budget", &r::step_budget, budget, 0s, 1h,
          "A step runs as many prompt tokens, up to `max_chunk`, as fit this time by what steps before took. "
          "0s: no limit."),
      count<S, r>("max_context", &r::max_context, 4096, 16, 1048576, "tokens",
                  "Longest sequence, prompt and answer together. At least one such sequence must fit into `pages`."),
      count<S, r>(
          "handoffs", &r::handoffs, 16, 0, 4096, "sequences",
          "Sequences that a rank hands over or takes over at once, each with room for its windows in memory that "
          "peers read. With 0, or when all are in use, the decode side computes the prompt again."),
      count<S, r>("redundant_experts", &r::redundant_experts, redundant, 0, 1024, "slots",
                  "Expert slots per rank and layer beyond the rank's share, for further copies of busy experts. Only "
                  "with `ep` above 1."),
      count<S, r>(
          "rebalance_every", &r::rebalance_every, every, 0, 1000000000, "steps",
          "After so many steps of a group its experts are placed anew, from what was counted in them. 0: never. "
          "The answers do not change."),
      count<S, r>(
          "split_window", &r::split_window, split, 0, 1000000, "steps",
          "How the rows of a step are spread over the copies of an expert: by the group's counts of the last so "
          "many steps, 0: evenly."),
      count<S, r>("micro_batch_rows", &r::micro_batch_rows, 0, 0, 65536, "rows",
                  "A step in which some rank of an expert-parallel group has at least so many rows runs in two "
                  "micro-batches: one computes while the rows of the other are on their way. 0: never.")};
}

}  // namespace

const section<prefill_section>& prefill_table() {
  static const section<prefill_section> table{"prefill", "Ranks that run prompts.",
                                              ranks_fields<prefill_section>(0, 16, 256, 4, 1000, 0, 300ms)};
  return table;
}

const section<decode_section>& decode_table() {
  static const section<decode_section> table{"decode", "Ranks that write answers.",
                                             ranks_fields<decode_section>(1, 64, 256, 1, 10000, 16, 100ms)};
  return table;
}

const section<engine_section>& engine_table() {
  using s = engine_section;
  static const section<s> table{
      "engine",
      "How engines compute.",
      {choice<s>(
           "kind", &s::kind, "cpu", {"cpu", "cost"},
           "cpu: the model runs on the CPU. cost: no weights are needed (config.json and tokenizer are); tokens come "
           "from a hash of prompt and seed, and time from `cost_model`, for clusters larger than the machine."),
       path<s>("cost_model", &s::cost_model,
               "File of configs/sim/cost that says what steps take. Needed where `kind` is cost."),
       choice<s>("isa", &s::isa, "auto", {"auto", "portable", "avx2", "avx512"},
                 "Vector instructions of the CPU operators. The answers are bitwise the same with all of them; auto "
                 "takes the fastest."),
       choice<s>("replay", &s::replay, "exact", {"exact", "bounded"},
                 "How lost window state is rebuilt: exact gives the bytes of an undisturbed run, bounded costs less "
                 "and is approximate."),
       flag<s>("speculation", &s::speculation, true,
               "Draft tokens with the model's drafter, where it has one. The answers do not change."),
       count<s>("max_draft", &s::max_draft, 5, 1, 16, "tokens", "Longest draft per sequence and step."),
       flag<s>("plan_ahead", &s::plan_ahead, true,
               "Plan the next step while one runs. false: when its result is there, so that ranks wait in between; to "
               "compare. The answers do not change.")}};
  return table;
}

const section<eplb_section>& eplb_table() {
  using s = eplb_section;
  static const section<s> table{
      "eplb",
      "How the ranks of an expert-parallel group move their experts when `rebalance_every` steps are over.",
      {count<s>("loads_per_step", &s::loads_per_step, 4, 1, 100000, "experts",
                "Experts that a rank loads between two steps, until it holds all that the new placement wants of it."),
       count<s>("max_moves", &s::max_moves, 1000000, 1, 1000000, "experts",
                "Experts loaded for one new placement, over all ranks and layers."),
       count<s>("min_gain", &s::min_gain, 1, 0, 100, "percent",
                "A new placement must take this much of the busiest ranks' rows away, or everything stays."),
       duration<s>("move_timeout", &s::move_timeout, 30s, 100ms, 1h,
                   "A rank that has not loaded its experts by then is reported, and the move is given up.")}};
  return table;
}

const section<transport_section>& transport_table() {
  using s = transport_section;
  static const section<s> table{
      "transport",
      "The data plane between ranks.",
      {flag<s>("shared_memory", &s::shared_memory, true,
               "Ranks on one host meet in shared memory; false: over TCP, as between hosts."),
       duration<s>(
           "step_deadline", &s::step_deadline, 5s, 10ms, 10min,
           "A rank that does not show up in an exchange for so long is reported as lost, and the step is abandoned."),
       duration<s>("peer_deadline", &s::peer_deadline, 5s, 10ms, 10min,
                   "An operation that takes longer ends the connection to its peer.")}};
  return table;
}

const section<storage_section>& storage_table() {
  using s = storage_section;
  static const section<s> table{
      "storage",
      "The KV block store: `troupe kv -c FILE` works on the store that is described here.",
      {path<s>("path", &s::path, "Directory of the store. Empty: none; `troupe kv --dir` names one."),
       count<s>("data", &s::data, 2, 1, 32, "shards",
                "Data shards of an extent, k. Any k of k + m shards give back everything."),
       count<s>("parity", &s::parity, 1, 0, 8, "shards", "Parity shards of an extent, m: so many targets may be lost."),
       count<s>("targets", &s::targets, 0, 0, 255, "targets",
                "Storage targets; each extent puts one shard on k + m of them. 0, or fewer than k + m: k + m."),
       size<s>("chunk", &s::chunk, 64ull << 20, 1ull << 20, 16ull << 30,
               "Size of the files of a target, a multiple of 4KiB; space is taken from the file system in this unit."),
       size<s>("capacity", &s::capacity, 64ull << 30, 1ull << 20, 1ull << 60,
               "Most that one target may take; less where the file system has less."),
       count<s>("high_mark", &s::high_mark, 90, 1, 100, "percent",
                "A target fuller than this makes the store evict, earliest expiry first."),
       count<s>("low_mark", &s::low_mark, 85, 0, 100, "percent", "Eviction ends here. Not above `high_mark`."),
       duration<s>("agent_ttl", &s::agent_ttl, 72h, 1s, 87600h,
                   "How long blocks of agents live after a write or read."),
       duration<s>("chatbot_ttl", &s::chatbot_ttl, 168h, 1s, 87600h, "The same of chatbots."),
       duration<s>("ttl_step", &s::ttl_step, 1h, 1s, 24h,
                   "Expiries are rounded up to multiples of this, so that hot blocks are not rewritten all the time."),
       duration<s>("hedge_after", &s::hedge_after, 0s, 0s, 1min,
                   "A shard that has not come after so long is rebuilt from others instead; 0s: wait. Targets on one "
                   "disk gain nothing by it."),
       size<s>("window", &s::window, 64ull << 20, 1ull << 20, 1ull << 40,
               "Bytes being read, and being written, at once."),
       count<s>("io_threads", &s::io_threads, 16, 1, 256, "threads", "Threads that wait for disks."),
       choice<s>("durability", &s::durability, "process", {"process", "power"},
                 "What an acknowledged write survives: the end of the process, or a power cut too."),
       count<s>(
           "nodes", &s::nodes, 0, 0, 255, "processes",
           "Storage nodes of a cluster, each its own process with its own part of `path`. 0: the cluster has none."),
       count<s>("disks", &s::disks, 1, 1, 64, "targets",
                "Storage targets of one node, PATH/node-0000/disk-01 and on; mount a disk there, or link to one."),
       count<s>("block_tokens", &s::block_tokens, 0, 0, 65536, "tokens",
                "Tokens of a block in a new store of a cluster. 0: the model's sliding window."),
       text<s>("fingerprint", &s::fingerprint, "",
               "What the blocks of a cluster's store belong to. Empty: the model, by its weights."),
       size<s>("staging", &s::staging, 32ull << 20, 1ull << 20, 1ull << 34,
               "Memory of a storage target for shards on their way over the network."),
       size<s>("scrub_rate", &s::scrub_rate, 64ull << 20, 1ull << 10, 1ull << 40,
               "Bytes per second that a node's own scrub reads at most."),
       duration<s>("repair_after", &s::repair_after, 10min, 1s, 24h,
                   "When storage nodes come or go, each node scrubs its extents after so long, and again."),
       duration<s>("scrub_every", &s::scrub_every, 168h, 0s, 87600h,
                   "Time between two scrubs of a node by itself. 0s: only when asked."),
       size<s>("snapshots", &s::snapshots, 32ull << 20, 0, 1ull << 40,
               "Memory of a storage node for window snapshots. Less than one of the model's: it keeps none."),
       duration<s>("snapshot_ttl", &s::snapshot_ttl, 5min, 1s, 24h,
                   "How long a window snapshot stays after it was written or read.")}};
  return table;
}

const section<cache_section>& cache_table() {
  using s = cache_section;
  static const section<s> table{
      "cache",
      "Reuse of earlier prompts' keys and values. Takes effect where the cluster has storage nodes (`storage.nodes`).",
      {flag<s>("enabled", &s::enabled, true,
               "Look for each prompt's beginning in the block store, and write finished blocks into it."),
       duration<s>(
           "match_timeout", &s::match_timeout, 200ms, 1ms, 10s,
           "A store that has not said by then what it holds of a prompt is not waited for: the prompt is computed."),
       duration<s>("read_at_least", &s::read_at_least, 100ms, 0s, 10min,
                   "Blocks that have not come within the time that computing them would take are computed. A read gets "
                   "at least so long,"),
       duration<s>("read_at_most", &s::read_at_most, 5s, 1ms, 8s,
                   "and at most so long; below the lease of a read, 10 s."),
       count<s>("writes", &s::writes, 32, 1, 4096, "puts",
                "Puts of one rank under way; blocks beyond that, or beyond a quarter of `pages`, are not written."),
       count<s>("snapshots", &s::snapshots, 16, 0, 65536, "snapshots",
                "Window snapshots of one rank on their way to and from storage nodes, each in memory of its own; more "
                "are not taken. 0: none are taken or used.")}};
  return table;
}

const section<log_section>& log_table() {
  using s = log_section;
  static const section<s> table{"log",
                                "What the processes write about themselves.",
                                {choice<s>("level", &s::level, "info", {"debug", "info", "warning", "error", "off"},
                                           "Lines below this level are left out.")}};
  return table;
}

}  // namespace troupe::config
