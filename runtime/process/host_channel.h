#pragma once
// Either end of the Unix socket between a node and the process of an actor: frames of
// wire::HostMessage, some with a descriptor.

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"
#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

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

  HostChannel(net::EventLoop& loop, UniqueFd socket, Take take = Take::kBefore)
      : loop_(loop), socket_(std::move(socket)), take_(take) {}

  // Begins to read. Loop thread.
  void start(OnMessage on_message, OnEnd on_end);
  // Takes what has arrived: after the other end's process has ended, before stop(). Loop thread.
  void drain() { on_readable(); }
  // Stops reading. Loop thread.
  void stop();

  // The two ways to send a message, with a descriptor where `fd` is not -1, which stays the
  // caller's. Messages arrive in the order in which they were sent, whichever way that was.
  // kInvalidArgument for one above limits::kFrameBytesMax, kUnavailable where the other end is
  // gone.
  //
  // Waits until the socket has taken it, at most 10 s: what was said survives the process that said
  // it. The host's way: its node always reads. Any thread.
  Status send(const wire::HostMessage& message, int fd = -1) TROUPE_EXCLUDES(send_mutex_);
  // Never waits: what the socket does not take now is kept, and sent when there is room. The node's
  // way, whose loop serves others too. kOverloaded, and nothing is sent, when as much is kept as
  // may be: of connections limits::kHostQueueConnectionsMax, of everything else kHostQueueBytesMax
  // and kHostQueueMessagesMax. Between start() and stop(); loop thread.
  Status queue(const wire::HostMessage& message, int fd = -1) TROUPE_EXCLUDES(send_mutex_);
  // What queue() keeps.
  std::size_t queued_bytes() const TROUPE_EXCLUDES(send_mutex_);
  std::size_t queued_connections() const TROUPE_EXCLUDES(send_mutex_);
  // Called each time the socket has taken some of it, with what is left. Loop thread. Before
  // start().
  void set_on_taken(std::function<void(std::size_t left_bytes)> on_taken) {
    on_taken_ = std::move(on_taken);
  }

 private:
  struct Outgoing {
    std::uint32_t length = 0;
    wire::Bytes body;
    int fd = -1;    // the caller's, or that of `kept`
    UniqueFd kept;  // a copy, once the caller has returned
    bool connection = false;
    std::size_t left() const { return sizeof length + body.size() - sent; }
    std::size_t sent = 0;
  };
  // Messages that wait, whole or in part.
  struct Waiting {
    std::size_t messages = 0;
    std::size_t bytes = 0;
  };
  // What became of an attempt to write the queue: all is gone; the socket is full; the system is
  // out of room for descriptors on their way; the other end is gone.
  enum class Written { kAll, kFull, kLater, kGone };

  Status push_locked(const wire::HostMessage& message, int fd) TROUPE_REQUIRES(send_mutex_);
  Waiting& waiting_locked(const Outgoing& outgoing) TROUPE_REQUIRES(send_mutex_) {
    return outgoing.connection ? connections_ : others_;
  }
  std::size_t bytes_locked() const TROUPE_REQUIRES(send_mutex_) {
    return connections_.bytes + others_.bytes;
  }
  void drop_last_locked() TROUPE_REQUIRES(send_mutex_);
  void drop_all_locked() TROUPE_REQUIRES(send_mutex_);
  Written write_queue_locked() TROUPE_REQUIRES(send_mutex_);
  void write_later(Written written);
  void flush();
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
  const Take take_;
  mutable Mutex send_mutex_;
  std::deque<Outgoing> outgoing_ TROUPE_GUARDED_BY(send_mutex_);
  Waiting connections_ TROUPE_GUARDED_BY(send_mutex_);   // of outgoing_
  Waiting others_ TROUPE_GUARDED_BY(send_mutex_);        // of outgoing_
  bool cut_off_ TROUPE_GUARDED_BY(send_mutex_) = false;  // in the middle of a message
  OnMessage on_message_;                                 // this and the following: loop thread
  OnEnd on_end_;
  std::function<void(std::size_t)> on_taken_;
  bool writes_later_ = false;  // a flush() will come
  std::vector<std::byte> buffer_;
  // Descriptors arrive with the first byte of their frame, in the order of the frames.
  std::deque<UniqueFd> descriptors_;
  std::size_t look_bytes_ = 64u << 10;  // kAfter: how much is looked at
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::process
