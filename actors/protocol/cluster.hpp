// Membership: how processes join, get roles, report, and learn who else is there.
//
//   node_agent                                director
//     | join_request{name, address, ...}         |
//     |----------------------------------------->|  gives node number, incarnation, role
//     |<------------------------- join_reply ----|
//     | heartbeat{epoch, inc, role reports}      |   every heartbeat_ms, and at once when a role changes
//     |----------------------------------------->|
//     |<-------------------- heartbeat_reply ----|   `stale`: the director gave this incarnation up; drop roles, join
//     again
//     |<----------------------- cluster_view ----|   whenever it changed, and when a heartbeat shows an old version
//     |<----------------------- assign_roles ----|   a spare node takes the seat of a lost one
//     | suspect_report{group, epoch, ranks}      |   ranks that did not show up in a step
//     |----------------------------------------->|
//     | pool_load{role, rate, queued}            |   of the active balancers' node, every second
//     |----------------------------------------->|
//     |<-------------- assign_roles{retire} -----|   the role is wanted less than another: drain it, join again
//     | leave_request                            |
//     |----------------------------------------->|
//
// A director holds soft state only. When another one answers at its address (it was started again, or took over), the
// nodes go on with their roles and tell it what there is:
//
//   node_agent                            new director, of a higher term
//     | heartbeat                                |
//     |----------------------------------------->|  knows nobody
//     |<--------- heartbeat_reply{stale, term} --|
//     | rejoin_request{identity, roles, view}    |
//     |----------------------------------------->|  keeps number, incarnation, seat and group epochs
//     |<------------------------- join_reply ----|
//
// What an older director still says is told by its term and not obeyed. The cluster epoch stays: it names the life of
// the cluster, in which incarnations are comparable, and changes only when all begins anew.
//
// The director's node_agent, entrypoints and ranks get the view from their own node_agent. A view is a whole, so losing
// one or getting it twice does no harm; an older version is ignored.
#pragma once

#include "actors/protocol/common.hpp"

namespace troupe::actors {

/// Counts directors: of two, the one with the higher term leads. Tenths of a second of Unix time at its start.
using director_term = strong_id<struct director_term_tag>;

/// What a process has to offer.
struct node_resources {
  uint32_t cpus = 0;
  uint64_t memory_bytes = 0;
  std::vector<std::string> gpus;  // name, and fabric domain where known
  bool operator==(const node_resources&) const = default;
};
TROUPE_FIELDS(node_resources, cpus, memory_bytes, gpus)

/// A place in the cluster that one process fills: front process, or one rank of a group.
struct role_assignment {
  role what = role::none;
  std::string group;   // "front", "prefill-0", "decode-0"
  uint32_t index = 0;  // rank in the group
  uint32_t ranks = 1;  // of the group
  /// "<group>/<index>", the prefix of its actors' names.
  std::string seat() const { return group + "/" + std::to_string(index); }
  bool operator==(const role_assignment&) const = default;
};
TROUPE_FIELDS(role_assignment, what, group, index, ranks)

struct join_request {
  std::string cluster;  // both sides must agree
  std::string name;     // of the process, unique in the cluster; keeps its node number over restarts
  std::string host;     // where other nodes dial it
  uint16_t port = 0;
  int32_t pid = 0;
  std::string wanted_seat;  // "decode-0/1", or a group "decode-0"; empty: any; "none": this process takes no seat
  node_resources resources;
  bool operator==(const join_request&) const = default;
};
TROUPE_FIELDS(join_request, cluster, name, host, port, pid, wanted_seat, resources)

struct join_reply {
  status outcome;
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
  int64_t heartbeat_ms = 0;
  std::vector<role_assignment> roles;  // empty: a spare
  director_term term{};
  bool operator==(const join_reply&) const = default;
};
TROUPE_FIELDS(join_reply, outcome, epoch, node, inc, heartbeat_ms, roles, term)

/// How a role of this node stands.
struct role_report {
  role_assignment assignment;
  role_state state = role_state::starting;
  std::string ep_address;  // of a rank: where its group reaches it on the data plane, once known; of a front: its HTTP
  group_epoch group;       // of a rank: the group view it runs, 0 before the first
  std::string text;        // why it is not ready, for people
  bool operator==(const role_report&) const = default;
};
TROUPE_FIELDS(role_report, assignment, state, ep_address, group, text)

struct heartbeat {
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
  uint64_t view_version = 0;  // the newest view this node has
  std::vector<role_report> roles;
  bool operator==(const heartbeat&) const = default;
};
TROUPE_FIELDS(heartbeat, epoch, node, inc, view_version, roles)

struct heartbeat_reply {
  status outcome;  // stale: this incarnation was given up, or, when the term is a newer one, is not known yet
  cluster_epoch epoch;
  director_term term{};
  bool operator==(const heartbeat_reply&) const = default;
};
TROUPE_FIELDS(heartbeat_reply, outcome, epoch, term)

struct assign_roles {
  cluster_epoch epoch;
  incarnation inc;  // of the node it is meant for
  std::vector<role_assignment> roles;
  director_term term{};
  int64_t retire_ms = 0;  // > 0: instead, the roles that the node has are drained within so long; then it joins again
  bool operator==(const assign_roles&) const = default;
};
TROUPE_FIELDS(assign_roles, epoch, inc, roles, term, retire_ms)

/// What there is to do for all ranks of a role, as the active balancer of the role sees it. In unit-seconds, a unit being
/// a rank: policies/role_plan.hpp.
struct pool_load {
  cluster_epoch epoch;
  node_number node;  // of the balancer; identity and epoch are filled in by its node agent
  incarnation inc;
  balancer_term term;
  role what = role::none;
  double rate = 0;    // prefill: work placed per second; decode: ranks' worth of slots or pages in use
  double queued = 0;  // prefill: work that was placed and is not done
  bool operator==(const pool_load&) const = default;
};
TROUPE_FIELDS(pool_load, epoch, node, inc, term, what, rate, queued)

/// Ranks that did not take part in a step of the group.
struct suspect_report {
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
  std::string group;
  group_epoch view;  // the group view in which it was seen; an older one is stale
  std::vector<uint32_t> ranks;
  bool operator==(const suspect_report&) const = default;
};
TROUPE_FIELDS(suspect_report, epoch, node, inc, group, view, ranks)

struct leave_request {
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
  bool operator==(const leave_request&) const = default;
};
TROUPE_FIELDS(leave_request, epoch, node, inc)

/// A member as everybody sees it.
struct node_entry {
  node_number node;
  incarnation inc;
  std::string name, host;
  uint16_t port = 0;
  int32_t pid = 0;
  bool draining = false;
  node_resources resources;
  std::vector<role_report> roles;
  bool operator==(const node_entry&) const = default;
};
TROUPE_FIELDS(node_entry, node, inc, name, host, port, pid, draining, resources, roles)

struct group_member {
  uint32_t rank = 0;  // its index for good; a view without a lost rank has a gap
  node_number node;
  incarnation inc;
  std::string ep_address;
  bool operator==(const group_member&) const = default;
};
TROUPE_FIELDS(group_member, rank, node, inc, ep_address)

/// Who steps together. Issued only by the director: the first one when all ranks have reported an address, a new one
/// (higher epoch) when a member is lost or comes back.
struct group_view {
  std::string group;
  role what = role::none;
  group_epoch epoch;
  uint32_t ranks = 0;                 // that the group is meant to have
  std::vector<group_member> members;  // ascending rank
  bool operator==(const group_view&) const = default;
};
TROUPE_FIELDS(group_view, group, what, epoch, ranks, members)

/// Whose balancers are active (balance.hpp): one front's. Node 0: nobody's, there is no front.
struct balancer_seat {
  balancer_term term;  // grows with every change, over restarts of the director too
  node_number node;
  incarnation inc;
  std::string seat;
  bool operator==(const balancer_seat&) const = default;
};
TROUPE_FIELDS(balancer_seat, term, node, inc, seat)

struct cluster_view {
  cluster_epoch epoch;
  uint64_t version = 0;
  std::vector<node_entry> nodes;  // ascending node number
  std::vector<group_view> groups;
  balancer_seat balancer;
  director_term term{};
  bool operator==(const cluster_view&) const = default;
};
TROUPE_FIELDS(cluster_view, epoch, version, nodes, groups, balancer, term)

/// From a node that runs to a director that does not know it: what it is, and the newest view that it has. Answered by
/// a join_reply with the same identity; refused with `stale` (the cluster has begun anew: end the roles and join), or
/// with `unavailable` (this director is older than one that has led the node: look for another).
struct rejoin_request {
  join_request self;
  cluster_epoch epoch;
  node_number node;
  incarnation inc;
  director_term term;  // of the newest director that it has obeyed
  std::vector<role_report> roles;
  cluster_view view;
  bool operator==(const rejoin_request&) const = default;
};
TROUPE_FIELDS(rejoin_request, self, epoch, node, inc, term, roles, view)

/// For `troupe status`: the view, who is missing, and since when each node was heard.
struct status_query {
  bool operator==(const status_query&) const = default;
};
TROUPE_NO_FIELDS(status_query)

struct status_report {
  cluster_view view;
  std::vector<int64_t> heard_ms_ago;  // per node of the view
  std::vector<role_assignment> empty_seats;
  std::vector<std::string> events;  // the last things that happened, oldest first, at most 64
  bool complete = false;            // every seat is filled and ready
  bool operator==(const status_report&) const = default;
};
TROUPE_FIELDS(status_report, view, heard_ms_ago, empty_seats, events, complete)

/// Asks a node to dial another one. CAF 0.17.6 does not stand two nodes that dial each other at the same moment: each
/// side takes its own connection for the redundant one and closes it, and sometimes a connection stays on which one
/// side does not know the other any more, so that its questions are never answered. Therefore of two members the one
/// with the higher number dials, and the other one asks for it:
///
///   directory of `node` --> director --> agent of `to` --> directory of `to` -- dials --> door of `node`: greeting
struct dial_request {
  node_number to;    // the higher number
  node_number node;  // who asks, and where it is reached
  incarnation inc;
  std::string host;
  uint16_t port = 0;
  bool operator==(const dial_request&) const = default;
};
TROUPE_FIELDS(dial_request, to, node, inc, host, port)

/// From a node to the door of one that it has dialled: this is who I am, and my door, over this connection.
struct greeting {
  node_number node;
  incarnation inc;
  any_handle door;
  bool operator==(const greeting&) const = default;
};
TROUPE_FIELDS(greeting, node, inc, door)

using director_actor = actor_type<takes<dial_request>, answers<join_request, join_reply>,
                                  answers<rejoin_request, join_reply>,
                                  answers<heartbeat, heartbeat_reply>, answers<suspect_report, ack>,
                                  answers<leave_request, ack>, takes<pool_load>,
                                  answers<status_query, status_report>, takes<tick>>;

// -- inside a node ------------------------------------------------------------------------------------------------
//
//   rank, entrypoint ... --- role_update ---> node_agent --- cluster_view ---> rank, entrypoint, directory
//   rank ---------------- suspects_found ---> node_agent
//   balancer ------------------ pool_load --> node_agent
//   runtime ---------------- stop_request --> node_agent   (drains its roles, leaves, answers; the runtime then exits)
//   another node's directory - lookup_request -> node_agent -> handle of a role actor by name

/// From a role's actor to its node agent: the state of its seat changed.
struct role_update {
  std::string seat;
  role_state state = role_state::starting;
  std::string ep_address;
  group_epoch group;
  std::string text;
  bool operator==(const role_update&) const = default;
};
TROUPE_FIELDS(role_update, seat, state, ep_address, group, text)

struct suspects_found {
  std::string group;
  group_epoch view;
  std::vector<uint32_t> ranks;
  bool operator==(const suspects_found&) const = default;
};
TROUPE_FIELDS(suspects_found, group, view, ranks)

struct lookup_request {
  incarnation inc;  // 0 = whatever runs there
  std::string name;
  bool operator==(const lookup_request&) const = default;
};
TROUPE_FIELDS(lookup_request, inc, name)

/// A handle sent by the node that owns it, over the connection that the asker dialled: it is good for that connection.
struct lookup_reply {
  status outcome;  // not_found, or stale when the incarnation is another
  any_handle handle;
  bool operator==(const lookup_reply&) const = default;
};
TROUPE_FIELDS(lookup_reply, outcome, handle)

struct stop_request {
  int64_t grace_ms = 0;  // for running requests to finish
  bool operator==(const stop_request&) const = default;
};
TROUPE_FIELDS(stop_request, grace_ms)

struct stop_reply {
  status outcome;
  uint32_t left = 0;  // requests cut off at the end of the grace time
  bool operator==(const stop_reply&) const = default;
};
TROUPE_FIELDS(stop_reply, outcome, left)

struct agent_query {
  bool operator==(const agent_query&) const = default;
};
TROUPE_NO_FIELDS(agent_query)

struct agent_report {
  bool joined = false;
  node_number node;
  incarnation inc;
  std::vector<role_report> roles;
  std::string text;
  bool operator==(const agent_report&) const = default;
};
TROUPE_FIELDS(agent_report, joined, node, inc, roles, text)

using node_agent_actor = actor_type<takes<cluster_view>, takes<assign_roles>, takes<role_update>, takes<suspects_found>,
                                    answers<lookup_request, lookup_reply>, answers<stop_request, stop_reply>,
                                    answers<agent_query, agent_report>, takes<dial_request>, takes<pool_load>,
                                    takes<tick>>;

// -- directory ----------------------------------------------------------------------------------------------------
//
// The only source of handles to actors of other nodes. One per node, made by the runtime: live it dials the node of the
// view and looks the name up there; in a simulation it answers with a proxy that leads through the simulated network.

/// Asks the directory of the asker's own node for a handle.
struct resolve_request {
  actor_key key;  // node 0, name "director": the director at the join address
  bool operator==(const resolve_request&) const = default;
};
TROUPE_FIELDS(resolve_request, key)

/// Answers stay inside the node.
struct resolve_reply {
  status outcome;
  any_handle handle;
  bool operator==(const resolve_reply&) const = default;
};
TROUPE_FIELDS(resolve_reply, outcome, handle)

/// Contract: answers every request within the asker's timeout or not at all, never with a handle of another
/// incarnation; takes node addresses from the views it is told.
using directory_actor = actor_type<answers<resolve_request, resolve_reply>, takes<cluster_view>, takes<dial_request>,
                                   takes<greeting>, takes<tick>>;

}  // namespace troupe::actors
