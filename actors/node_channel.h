#pragma once
// The actor process's end of the Unix socket to its node: frames of wire::HostMessage, some with a
// descriptor.

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"

namespace troupe::detail {

class NodeChannel {
 public:
  // Each message with its descriptor (invalid where it carries none). Loop thread.
  using OnMessage = std::function<void(wire::HostMessage, UniqueFd)>;
  // The node is gone, or sent what cannot be read. Loop thread; last.
  using OnEnd = std::function<void(Status)>;

  NodeChannel(net::EventLoop& loop, UniqueFd socket) : loop_(loop), socket_(std::move(socket)) {}

  // Begins to read. Loop thread.
  void start(OnMessage on_message, OnEnd on_end);
  // Stops reading. Loop thread.
  void stop();
  // Sends a message, with a descriptor where `fd` is not -1. Waits while the socket is full: the
  // node always reads. Any thread.
  Status send(const wire::HostMessage& message, int fd = -1) TROUPE_EXCLUDES(send_mutex_);

 private:
  void on_readable();
  // False when there is nothing more to read now, or ever.
  bool read_once();
  void cut_frames();
  void end(Status why);

  net::EventLoop& loop_;
  const UniqueFd socket_;
  Mutex send_mutex_;
  OnMessage on_message_;  // this and the following: loop thread
  OnEnd on_end_;
  std::vector<std::byte> buffer_;
  // Descriptors arrive with the first byte of their frame, in the order of the frames.
  std::deque<UniqueFd> descriptors_;
};

}  // namespace troupe::detail
