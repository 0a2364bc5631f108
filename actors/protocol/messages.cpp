#include "actors/protocol/messages.hpp"

#include "actors/protocol/storage.hpp"
#include "actors/protocol/tier.hpp"

namespace troupe::actors {

void register_messages(caf::actor_system_config& config) {
  config.add_message_types<caf::id_block::troupe>();
  config.add_message_types<caf::id_block::troupe_tier>();
}

const char* to_string(role r) {
  switch (r) {
    case role::none:
      return "none";
    case role::director:
      return "director";
    case role::front:
      return "front";
    case role::prefill:
      return "prefill";
    case role::decode:
      return "decode";
    case role::storage:
      return "storage";
  }
  return "unknown";
}

const char* to_string(role_state s) {
  switch (s) {
    case role_state::starting:
      return "starting";
    case role_state::waiting:
      return "waiting";
    case role_state::ready:
      return "ready";
    case role_state::draining:
      return "draining";
    case role_state::drained:
      return "drained";
    case role_state::failed:
      return "failed";
  }
  return "unknown";
}

}  // namespace troupe::actors
