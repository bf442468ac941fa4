#pragma once
// Bytes and file descriptors over a connected stream socket, with a deadline on each call. Works on
// Unix sockets; the calls without descriptors on any stream socket. Descriptors arrive
// close-on-exec.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::memory {

// More descriptors than this in one message are refused (the kernel's own limit is 253).
inline constexpr std::size_t kPassedFdsMax = 64;

// Two connected Unix stream sockets, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> socket_pair();

// Sends all of `bytes`. kDeadlineExceeded, or kUnavailable when the peer has gone.
Status send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
// Fills `bytes`. kUnavailable when the peer closed first.
Status receive_all(int socket, std::span<std::byte> bytes, Deadline deadline);

// The same with descriptors attached to the first byte; `bytes` must not be empty. The descriptors
// stay the caller's.
Status send_with_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                     Deadline deadline);
// Fills `bytes` and returns the descriptors that came with them: exactly `fd_count`, kProtocol
// otherwise (surplus ones are closed).
Result<std::vector<UniqueFd>> receive_with_fds(int socket, std::span<std::byte> bytes,
                                               std::size_t fd_count, Deadline deadline);

}  // namespace troupe::memory
