#pragma once
// A connected stream of bytes: a socket and, where its peer is on another machine, what encrypts
// them. Whoever reads and writes needs not know which of the two it is.
//
// Nothing here waits. Reading and writing may go on at the same time in two threads, each in one.

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "troupe/clock.h"
#include "troupe/status.h"
#include "troupe/unique_fd.h"

namespace troupe {

// What was done now.
struct StreamIo {
  enum class State {
    kOpen,
    kEnded,   // the peer has ended its side, and everything that it wrote has been read
    kBroken,  // ByteStream::why()
  };
  std::size_t count = 0;
  State state = State::kOpen;
  int error_number = 0;  // of a plain socket that is broken
};

// What stands between the bytes and their socket. As ByteStream, whose calls these are; safe for
// one reading and one writing thread at a time.
class StreamCipher {
 public:
  virtual ~StreamCipher() = default;
  virtual StreamIo read(std::span<std::byte> space) = 0;
  virtual StreamIo write(std::span<const iovec> pieces) = 0;
  virtual bool unsent() const = 0;
  virtual bool has_read_ahead() const = 0;
  virtual void end_writing() = 0;
  virtual std::string why() const = 0;
};

class ByteStream {
 public:
  ByteStream() = default;
  // Plain.
  ByteStream(UniqueFd socket) : socket_(std::move(socket)) {}  // NOLINT: a socket is a stream
  ByteStream(UniqueFd socket, std::unique_ptr<StreamCipher> cipher)
      : socket_(std::move(socket)), cipher_(std::move(cipher)) {}

  bool valid() const { return socket_.valid(); }
  bool encrypted() const { return cipher_ != nullptr; }
  // To wait for: readable before read(), writable before write(). Only of a plain stream it is the
  // bytes' own descriptor.
  int fd() const { return socket_.get(); }
  void reset();
  // The socket of a plain stream, which has none afterwards; invalid of an encrypted one, which is
  // more than its socket.
  UniqueFd take_socket();

  // Fills `space` as far as bytes have come. Where it was not filled, further ones make fd()
  // readable; where it was, has_read_ahead() says whether more of them are here already.
  StreamIo read(std::span<std::byte> space);
  bool has_read_ahead() const { return cipher_ && cipher_->has_read_ahead(); }
  // Takes as many bytes of the pieces, in order, as there is room for. fd() becomes writable when
  // there is room for more.
  StreamIo write(std::span<const iovec> pieces);
  StreamIo write(std::span<const std::byte> bytes);
  // Of what was taken some waits for the socket: it leaves with the next write(), of nothing, too.
  bool unsent() const { return cipher_ && cipher_->unsent(); }
  // The peer reads an end. Only where nothing is unsent.
  void end_writing();
  // Of a result that is kBroken.
  std::string why(const StreamIo& io) const;

 private:
  UniqueFd socket_;
  std::unique_ptr<StreamCipher> cipher_;  // goes before the socket
};

// Sends all of `bytes`, or fills them. kDeadlineExceeded; kUnavailable when the peer has gone.
Status send_all(ByteStream& stream, std::span<const std::byte> bytes, Deadline deadline);
Status receive_all(ByteStream& stream, std::span<std::byte> bytes, Deadline deadline);

}  // namespace troupe
