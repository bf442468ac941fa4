#pragma once
// Descriptors that came with a message of a Unix socket.

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

#include "troupe/unique_fd.h"

namespace troupe {

// Appends what recvmsg() put into the message's control buffer to `out`, a container of UniqueFd,
// which owns them from then on.
template <typename Container>
void take_passed_fds(msghdr& message, Container& out) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace troupe
