#pragma once
// A stream of frames over an authenticated socket: u32 little-endian length, then the bytes.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"

namespace troupe::net {

using Bytes = std::vector<std::byte>;

class Connection {
 public:
  struct Handlers {
    // A complete frame; the bytes live only during the call. Loop thread.
    std::function<void(std::span<const std::byte>)> on_frame;
    // Once, last: why the connection ended (kUnavailable when the peer closed). Loop thread. Not
    // called after the owner's close().
    std::function<void(Status)> on_close;
    // More than `low_water_bytes` waited to be sent, and no longer does. Loop thread. May be null.
    std::function<void()> on_drained;
  };
  virtual ~Connection() = default;  // closes
  // Begins to read. Once; loop thread.
  virtual void start(Handlers handlers) = 0;
  // Queues a frame; any thread; frames of one thread keep their order. Where it fails the frame is
  // not sent, and the connection stays as it was: kInvalidArgument for one above `frame_bytes_max`,
  // kOverloaded when more than `queue_bytes_max` would wait (small frames have a little more room,
  // so that what tells of such a failure gets through), kUnavailable when closed: on_close comes.
  virtual Status send(Bytes frame) = 0;
  // As send(), but the frame may wait for company, of one's own or of others: it leaves with what
  // send() sends next, at flush(), when enough of them wait, or within about 200 µs. For streams of
  // small frames, whose every system call would cost more than what it carries.
  virtual Status send_soon(Bytes frame) = 0;
  // Sends what waits for company. Any thread.
  virtual void flush() = 0;
  // What waits to be sent. Any thread.
  virtual std::size_t queued_bytes() const = 0;
  // Sends what is queued (bounded by `flush_ms`), then closes. Any thread. `closed`, if given,
  // once, in the loop's thread: the peer has read it and gone, or the time is over. (Until then the
  // loop must run: what is encrypted leaves by it.)
  virtual void close(std::int64_t flush_ms = 0, std::function<void()> closed = nullptr) = 0;
  virtual const std::string& peer() const = 0;
};

struct ConnectionOptions {
  std::size_t frame_bytes_max;  // default: limits::kFrameBytesMax
  std::size_t queue_bytes_max;  // default: limits::kConnectionQueueBytesMax
  std::size_t low_water_bytes;  // default: half of limits::kUnreadAnswerBytesMax
  ConnectionOptions();
};

// Takes over a connected stream socket (TCP or Unix). The loop must outlive the connection. A frame
// sent from another thread leaves at once; those sent in the loop's thread leave together at the
// end of the current work.
std::shared_ptr<Connection> make_connection(EventLoop& loop, UniqueFd socket, std::string peer,
                                            const ConnectionOptions& options = {});

}  // namespace troupe::net
