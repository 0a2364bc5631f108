// What arrives at the simulated cluster: requests with their times, lengths and shared prefixes, from a recorded trace
// or drawn from a seed. Nothing here has a clock or a queue; the world asks for the next request and plays it at its
// time.
//
// Prefixes are ids of blocks: two requests whose block i has the same id have the same first (i + 1) blocks. What an id
// stands for in tokens or hashes: kv::trace_prompt (kv/replay/prompt.hpp) and chain_hashes below.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/types.hpp"
#include "policies/ttl.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/sim/workload/ratio.hpp"

namespace troupe::sim {

/// One request as a client would send it.
struct workload_request {
  uint64_t index = 0;         // from 0, in the order of arrival
  nanoseconds arrival{0};     // after the start of the run; never before that of the request above
  uint64_t conversation = 0;  // turns of one conversation share it; a recorded trace gives each request its own
  uint32_t turn = 0;          // of the conversation, from 0
  uint32_t tenant = 0;        // prefixes are shared inside a tenant only
  policies::traffic_class traffic = policies::traffic_class::chatbot;
  uint32_t input_tokens = 0;     // >= 1
  uint32_t output_tokens = 0;    // >= 1
  std::vector<uint64_t> blocks;  // ids, ceil(input_tokens / block_tokens), the last one may be of a partial block;
                                 // empty: shares nothing with any other request
  std::vector<uint64_t> grown;   // ids of further complete blocks once the output is there; empty where nobody knows
  bool operator==(const workload_request&) const = default;
};

/// Hands out requests in the order of their arrival. One thread.
class workload_source {
 public:
  virtual ~workload_source() = default;
  /// The next request; nothing at the end, and then for ever. Errors name the file and line, and end the source.
  virtual result<std::optional<workload_request>> next() = 0;
  /// Tokens of a block of `blocks`.
  virtual uint32_t block_tokens() const = 0;
  /// What it plays, for reports: the file or the generator, with every scale.
  virtual std::string text() const = 0;
};

/// How sessions begin. Rates are per hour, so that whole numbers serve.
struct arrival_options {
  enum class kind : uint8_t { poisson, bursts, diurnal } how = kind::poisson;
  uint64_t per_hour = 3'600;                           // mean, > 0
  nanoseconds burst_every{std::chrono::minutes(10)};   // bursts: mean time from one burst's end to the next one
  nanoseconds burst_length{std::chrono::seconds(30)};  // bursts: mean length
  uint32_t burst_factor = 8;  // bursts: rate inside one over the rate outside; the mean is kept
  uint32_t day_percent[24] = {
      45,  35,  30,  28,  30,  38,  55,  80,  110, 135, 145, 148,
      140, 145, 150, 148, 140, 130, 125, 130, 135, 125, 95,  68};  // diurnal: rate by the hour,
                                                                   // of the mean, linear between
  nanoseconds day_start{std::chrono::hours(8)};                    // diurnal: time of day at the start of the run
  bool operator==(const arrival_options&) const = default;
};

/// Conversations of one kind. Lengths and gaps are log-normal: median, and sigma of the logarithm in hundredths.
struct conversation_options {
  uint32_t mean_turns = 4;       // geometric, >= 1
  uint32_t prompt_tokens = 400;  // median that a turn adds to what is there
  uint32_t prompt_sigma = 100;
  uint32_t answer_tokens = 300;  // median
  uint32_t answer_sigma = 80;
  nanoseconds gap{std::chrono::seconds(45)};  // median from a turn to the next one of the same sitting
  uint32_t gap_sigma = 90;
  uint32_t return_permille = 150;  // of turns after which the client comes back later instead
  nanoseconds return_least{std::chrono::minutes(10)}, return_most{std::chrono::hours(72)};  // then log-uniform in these
  uint32_t system_tokens = 1'200;  // of the prompt that all conversations of a tenant and kind begin with
  bool operator==(const conversation_options&) const = default;
};

/// Drawn conversations. Everything is a function of the seed.
struct generator_options {
  arrival_options arrivals;
  uint32_t agent_permille = 200;  // of sessions; the others are chats
  conversation_options chat;
  conversation_options agent{
      12,   900, 110, 180, 70, std::chrono::seconds(6), 120, 40, std::chrono::minutes(30), std::chrono::hours(120),
      6'000};
  uint32_t tenants = 8;            // a session's is drawn, the first ones more often
  uint32_t max_context = 131'072;  // a conversation ends before prompt and answer exceed it
  uint32_t max_answer = 8'192;     // tokens
  uint32_t max_open = 1'000'000;   // conversations that wait for a turn; beyond it a new one has one turn only
  bool operator==(const generator_options&) const = default;
};

/// What to play and how. Scales apply in this order: loop, length, rate, first, duration.
struct workload_options {
  std::string trace;            // *.jsonl: Mooncake format; *.csv: Azure format; empty: the generator
  generator_options generator;  // without a trace
  uint32_t block_tokens = 128;  // of `blocks`; divides 512. A trace id becomes 512 / block_tokens blocks
  uint64_t loops = 1;       // of a trace, each with ids of its own; 0: without end (then `first` or `duration` ends it)
  ratio length;             // of inputs and outputs; ids are of scaled blocks, so what is shared scales too
  ratio rate;               // 2: everything arrives in half the time
  bool spread = true;       // a trace's requests of one instant (it has 3 s bins) are spread evenly up to the next one
  uint64_t first = 0;       // so many requests only; 0: all
  nanoseconds duration{0};  // none arrives at or after it; 0: no limit
  uint64_t seed = 1;        // of the generator
};

/// Opens it. Errors: io and invalid_argument with file and line or with the option's name; a workload without end
/// (generator or loops 0, and neither first nor duration) is refused. A trace is read whole.
result<std::unique_ptr<workload_source>> open_workload(const workload_options& options);

/// Stands for the block hashes of a request's complete blocks: the same ids give the same chain, different tenants
/// different ones. Hash i carries the token count (i + 1) * block_tokens. For runs that carry descriptors, not bytes.
std::vector<kv::block_hash> chain_hashes(const workload_request& r, uint32_t block_tokens);

}  // namespace troupe::sim
