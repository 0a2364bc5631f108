// Strong ids: two numbers of different meaning cannot be swapped.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace troupe {

/// An integer with a meaning. `Tag` is any type, used as the name only.
template <class Tag, class Int = uint64_t>
struct strong_id {
  using value_type = Int;
  Int value = 0;
  constexpr strong_id() = default;
  constexpr explicit strong_id(Int v) : value(v) {}
  constexpr auto operator<=>(const strong_id&) const = default;
};

/// Lets CAF (or any visitor in CAF's style) serialise a strong id as its integer.
template <class Inspector, class Tag, class Int>
typename Inspector::result_type inspect(Inspector& f, strong_id<Tag, Int>& id) {
  return f(id.value);
}

/// Four epochs, four types (a message names the one it carries).
using cluster_epoch = strong_id<struct cluster_epoch_tag>;
using group_epoch = strong_id<struct group_epoch_tag>;
using storage_epoch = strong_id<struct storage_epoch_tag>;
using placement_version = strong_id<struct placement_version_tag>;

/// Counts the starts of a process; a message from an older incarnation is stale.
using incarnation = strong_id<struct incarnation_tag>;
/// A process of the cluster, given by the director.
using node_number = strong_id<struct node_number_tag, uint32_t>;
/// A request inside one front process.
using request_number = strong_id<struct request_number_tag>;
/// Counts who the cluster's balancers were: a message of an older term is stale.
using balancer_term = strong_id<struct balancer_term_tag>;
/// A place that a front process has asked for, given by the front. Grows, and never comes twice in an incarnation.
using lease_number = strong_id<struct lease_number_tag>;

}  // namespace troupe

/// Strong ids as keys of unordered containers.
template <class Tag, class Int>
struct std::hash<troupe::strong_id<Tag, Int>> {
  size_t operator()(const troupe::strong_id<Tag, Int>& id) const noexcept { return std::hash<Int>{}(id.value); }
};
