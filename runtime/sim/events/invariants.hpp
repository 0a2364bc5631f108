// What must hold in every run, checked event by event (design: "Simulation").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/sim/events/log.hpp"

namespace troupe::sim {

/// The invariants. Their sentences: sentence_of.
enum class invariant : uint8_t {
  pages_add_up,
  owners_live,
  transfers_keep_pages,
  one_decode_owner,
  ends_once,
  tokens_in_order,
  blocks_true,
  leases_unexpired,
  experts_live,
  epochs_grow,
  one_leader,
  queues_bounded,
  entries_have_shards,
  serves_again,
};
inline constexpr size_t invariants = 14;

/// One sentence, e.g. "tokens of a request are accepted in order, each once".
const char* sentence_of(invariant i);

/// The first broken one.
struct violation {
  invariant broken = invariant::pages_add_up;
  int64_t at = 0;                    // ns
  std::string what;                  // the values
  std::vector<actor_number> actors;  // involved
};

/// How strict, and how a report says that the run is repeated.
struct invariant_options {
  uint64_t seed = 0;
  std::string command;  // the one that repeats the run
  /// Pages may be owned for a request that ended at the front so long ago: the word of it travels, and a cut-off rank
  /// learns it only when its lease has run out.
  nanoseconds owner_grace{std::chrono::seconds(60)};
};

/// Checks events until the first violation; what comes after one is not judged. Memory: per open request, lease, pool,
/// transfer and extent; an ended request leaves about 40 bytes.
class invariant_checker : public event_sink {
 public:
  explicit invariant_checker(invariant_options options);
  ~invariant_checker() override;
  void on(const event& e) override;
  const std::optional<violation>& broken() const;
  /// Seed, virtual time, the sentence, the values, the last events of the actors involved, and the command.
  std::string report(const event_log& log) const;

 private:
  struct state;
  std::unique_ptr<state> s_;
  invariant_options options_;
};

}  // namespace troupe::sim
