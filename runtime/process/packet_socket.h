#pragma once
// Packets with descriptors over a Unix socket of type SOCK_SEQPACKET, under a name in the abstract
// namespace: how a node's daemon and its keeper talk.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::process {

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> descriptors;
};

// kAlreadyExists where somebody listens under this name.
Result<UniqueFd> listen_packets(const std::string& name);
// kUnavailable where nobody does.
Result<UniqueFd> connect_packets(const std::string& name);
// The next connection of a process of the same user; nothing where none waits. Others are closed.
Result<std::optional<UniqueFd>> accept_packets(int listener);

// Sends one packet of at most limits::kKeeperPacketBytesMax (kInvalidArgument); waits while the
// socket is full. kUnavailable when the other end has gone. The descriptors stay the caller's.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                   Deadline deadline);
// The same without waiting. False: the socket is full.
Result<bool> try_send_packet(int socket, std::span<const std::byte> bytes,
                             std::span<const int> descriptors);
// What has arrived, without waiting; nothing where nothing has. kUnavailable at the end of the
// connection, kProtocol for a packet that is too large.
Result<std::optional<Packet>> receive_packet(int socket);
// The same, waiting. kDeadlineExceeded.
Result<Packet> receive_packet(int socket, Deadline deadline);

}  // namespace troupe::process
