#pragma once
// Socket addresses and options. Private to this folder: it shows the system's socket types.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/transport.h"
#include "troupe/unique_fd.h"

namespace troupe::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// "10.0.0.1:7000", "[fe80::1]:7000", "local"
std::string to_string(const SocketAddress& address);
std::uint16_t port_of(const SocketAddress& address);

// Nobody outside this machine is there: 127.0.0.0/8, ::1, or the first as an IPv6 address.
bool is_loopback(const SocketAddress& address);
// Whether a connection with this other side is encrypted.
bool is_encrypted(Security security, const SocketAddress& other);

// An abstract Unix socket's address; kInvalidArgument for a name that is empty or too long.
Result<SocketAddress> local_address(const std::string& name);
// Numeric hosts only: never asks a name server.
Result<SocketAddress> numeric_address(const std::string& host, std::uint16_t port);
// Any host; asks name servers, and blocks meanwhile.
Result<std::vector<SocketAddress>> resolve(const std::string& host, std::uint16_t port);

// A stream socket, closed at exec.
Result<UniqueFd> make_socket(int family, bool non_blocking);
// For a socket that is connected, or will be. No delay for small frames; a silent peer is noticed
// within about 30 s even where nothing is sent (control connections have heartbeats besides, which
// are much faster).
void set_stream_options(int fd, int family);
// For one that is connected: within a machine it is not paced. Measured over loopback on a system
// with BBR, in six pairs: calls with an argument of 1 MiB 14 % faster in the mean (0 to 28 %),
// small ones as before.
void set_near_options(int fd);
// Room for megabytes on their way in a Unix socket, which has 200 KiB otherwise (TCP finds its
// own): for so many bytes both sides would wake each other hundreds of times.
void set_large_send_buffer(int fd);
// The peer sends nothing any more.
bool has_ended(int fd);
// Before closing on a peer that was just told why: ends this side and throws away what it has sent,
// since closing with unread bytes would destroy the answer on its way.
void end_refused(int fd);
// The user at the other end of a Unix socket, or -1.
long peer_uid(int fd);
void set_blocking(int fd, bool blocking);
// Readable only when so many bytes are there, or the end.
void set_low_water(int fd, std::size_t bytes);

}  // namespace troupe::net
