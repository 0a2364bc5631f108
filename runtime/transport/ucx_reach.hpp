// Whether a peer's host answers, found out before UCX connects to it.
//
// UCX 1.13.1 connects with a blocking connect(), which takes minutes when the peer's host is off or the link is cut,
// and the worker's thread serves nobody meanwhile. Its other way (CONN_NB) uses a connection after it has freed it when
// both sides connect at once (uct_tcp_cm_handle_conn_pkt). So the TCP handshake is tried first, here, with a limit.
// What is left: a host that goes away in the moment between.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::transport::ucx {

/// The address of a node: UCX's worker, and where it listens for TCP connections (socket addresses; none for shared
/// memory).
struct node_address {
  std::string worker;
  std::vector<std::string> listeners;
  std::string encode() const;
  /// corrupt for bytes that `encode` did not make.
  static result<node_address> decode(std::string_view bytes);
};

/// The TCP sockets that listen in this process: descriptor to address.
std::map<int, std::string> listeners();

/// The TCP sockets of this process that are connected to one of `where`: descriptor to its own address.
std::map<int, std::string> connected_to(const std::vector<std::string>& where);

/// True when one of the peer's hosts answers a handshake, with yes or no, in a fifth of a second; three tries, so that
/// a lost packet or two do no harm. True also for a peer that listens nowhere. Blocks.
bool reachable(const node_address& peer);

}  // namespace troupe::transport::ucx
