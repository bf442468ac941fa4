#pragma once
// A stream of frames over an authenticated socket (frame_reader.h: their bytes), each with an
// attachment where it has one: bytes of any number, which are neither copied nor encoded.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/frame_reader.h"
#include "troupe/byte_stream.h"

namespace troupe::net {

using Bytes = std::vector<std::byte>;
// Bytes to be sent beside a frame, shared with whoever may want to send them again.
using SharedBytes = std::shared_ptr<const Bytes>;

class Connection {
 public:
  struct Handlers {
    // A complete frame; the bytes live only during the call. Loop thread.
    std::function<void(std::span<const std::byte>)> on_frame;
    // In its place where frames may have attachments (ConnectionOptions): every frame comes here,
    // with what came beside it. Loop thread.
    std::function<void(std::span<const std::byte> frame, Attachment&& attachment)> on_attached = {};
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
  // A frame and what belongs to it. It is never refused for what waits already: who sends many of
  // them looks at queued_bytes(), and waits for on_drained. kInvalidArgument for an attachment
  // that is empty, or where the options allow none.
  virtual Status send(Bytes frame, SharedBytes attachment) = 0;
  // As send(), but the frame may wait for company, of one's own or of others: it leaves with what
  // send() sends next, at flush(), when enough of them wait, or within about 200 µs. For streams of
  // small frames, whose every system call would cost more than what it carries.
  virtual Status send_soon(Bytes frame) = 0;
  // Sends what waits for company. Any thread.
  virtual void flush() = 0;
  // What waits to be sent. Any thread.
  virtual std::size_t queued_bytes() const = 0;
  // All that has arrived, of frames that are not complete yet, too. Loop thread.
  virtual std::uint64_t received_bytes() const = 0;
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
  // Of one that arrives: what is above it is thrown away, and its frame comes without. 0, the
  // default: frames have no attachments, in either direction.
  std::uint64_t attachment_bytes_max = 0;
  ConnectionOptions();
};

// Takes over a connected stream socket (TCP or Unix). The loop must outlive the connection. A frame
// sent from another thread leaves at once; those sent in the loop's thread leave together at the
// end of the current work.
std::shared_ptr<Connection> make_connection(EventLoop& loop, ByteStream socket, std::string peer,
                                            const ConnectionOptions& options = {});

}  // namespace troupe::net
