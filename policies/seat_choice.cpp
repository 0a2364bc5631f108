#include "policies/seat_choice.hpp"

#include <fmt/format.h>

#include <set>

namespace troupe::policies {
namespace {

std::optional<uint32_t> first_empty(const std::vector<seat_state>& seats, const std::string& wanted) {
  for (uint32_t i = 0; i < seats.size(); ++i) {
    const auto& s = seats[i];
    if (s.holder == 0 && (wanted.empty() ? !s.by_name : wanted == s.name || wanted == s.group)) return i;
  }
  return std::nullopt;
}

}  // namespace

result<seat_choice> choose_seat(const seat_choice_input& in) {
  std::set<std::string> names;
  for (const auto& s : in.seats) {
    if (s.name.empty() || !names.insert(s.name).second)
      return fail(errc::invalid_argument, "seat_choice: a seat's name '{}' is empty or stands twice", s.name);
  }
  seat_choice out;
  for (uint32_t i = 0; i < in.seats.size(); ++i) {
    const auto& s = in.seats[i];
    if (s.name != in.wanted || s.holder == 0 || s.holder_wanted == in.wanted) continue;
    const auto other = first_empty(in.seats, s.holder_wanted);
    if (!other) continue;
    out.take = out.clear = i;
    out.reason =
        fmt::format("{} is asked for by name; its holder {} may have {}", s.name, s.holder, in.seats[*other].name);
    return out;
  }
  out.take = first_empty(in.seats, in.wanted);
  out.reason = out.take ? fmt::format("{} is empty", in.seats[*out.take].name) : "no seat that it may have is empty";
  return out;
}

}  // namespace troupe::policies
