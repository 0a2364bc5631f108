// Which seat of the cluster a node gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::policies {

/// One seat: a rank or a front process that the configuration asks for.
struct seat_state {
  std::string name;           // e.g. "decode-0/1"; different for all
  std::string group;          // e.g. "decode-0"
  bool by_name = false;       // only for nodes that ask for it: a front serves HTTP, a storage node has its disks
  uint64_t holder = 0;        // node; 0: empty
  std::string holder_wanted;  // what the holder asked for when it joined
};

/// A node without a seat. `wanted`: a seat's name, a group's, or empty for any.
struct seat_choice_input {
  std::vector<seat_state> seats;  // in the order in which they are to be filled
  std::string wanted;
};

/// The decision; nothing set: the node is a spare.
struct seat_choice {
  std::optional<uint32_t> take;   // index into seats
  std::optional<uint32_t> clear;  // this one is taken from its holder first, who goes to another; equals take
  std::string reason;
};

/// The first empty seat that the node may have. A seat that it asks for by name is cleared when its holder did not ask
/// for it by name and may have another that is empty. Errors: a name twice or empty.
result<seat_choice> choose_seat(const seat_choice_input& in);

}  // namespace troupe::policies
