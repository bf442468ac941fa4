#pragma once
// Either end of the Unix socket between a node and the process of an actor: frames of
// wire::HostMessage, some with a descriptor.

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"

namespace troupe::process {

class HostChannel {
 public:
  // Each message with its descriptor (invalid where it carries none). Loop thread.
  using OnMessage = std::function<void(wire::HostMessage, UniqueFd)>;
  // The other end is gone, or sent what cannot be read. Loop thread; last.
  using OnEnd = std::function<void(Status)>;

  // When a message leaves the socket: before it is delivered, or after, so that a reader that is
  // killed meanwhile leaves it to the next one. What is delivered just then comes twice.
  enum class Take { kBefore, kAfter };

  HostChannel(net::EventLoop& loop, UniqueFd socket, int send_timeout_ms = 10'000,
              Take take = Take::kBefore)
      : loop_(loop), socket_(std::move(socket)), send_timeout_ms_(send_timeout_ms), take_(take) {}

  // Begins to read. Loop thread.
  void start(OnMessage on_message, OnEnd on_end);
  // Takes what has arrived: after the other end's process has ended, before stop(). Loop thread.
  void drain() { on_readable(); }
  // Stops reading. Loop thread.
  void stop();
  // Sends a message, with a descriptor where `fd` is not -1. Waits while the socket is full, up to
  // `send_timeout_ms` a piece: both ends always read. Any thread.
  Status send(const wire::HostMessage& message, int fd = -1) TROUPE_EXCLUDES(send_mutex_);

 private:
  void on_readable();
  // False when there is nothing more to read now, or ever.
  bool read_once();
  ssize_t receive(std::size_t bytes_max, int flags);
  // How many bytes of the buffer were whole frames.
  std::size_t deliver_frames();
  void discard(std::size_t bytes);
  void look_again_soon();
  void end(Status why);

  net::EventLoop& loop_;
  const UniqueFd socket_;
  const int send_timeout_ms_;
  const Take take_;
  Mutex send_mutex_;
  OnMessage on_message_;  // this and the following: loop thread
  OnEnd on_end_;
  std::vector<std::byte> buffer_;
  // Descriptors arrive with the first byte of their frame, in the order of the frames.
  std::deque<UniqueFd> descriptors_;
  std::size_t look_bytes_ = 64u << 10;  // kAfter: how much is looked at
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::process
