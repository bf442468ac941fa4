#include "runtime/net/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/net/frame_reader.h"
#include "runtime/net/socket.h"
#include "troupe/detail/mutex.h"

namespace troupe::net {
namespace {

static_assert(std::endian::native == std::endian::little, "frame lengths are little-endian");

constexpr std::size_t kHeaderBytesMax = kFrameLengthBytes + kAttachmentLengthBytes;
// Pieces given to the kernel in one call: its own limit is 1024.
constexpr std::size_t kPiecesMax = 128;
// Frames that wait for company leave when so many, or so many bytes, are there, and after this
// time.
constexpr std::size_t kCompanyFrames = 48;
constexpr std::size_t kCompanyBytes = 32u << 10;
constexpr Duration kCompanyTime = std::chrono::microseconds(200);
// A connection that sends an attachment of so many bytes gets a larger send buffer.
constexpr std::size_t kLargeAttachmentBytes = 1u << 20;
// Reads at one wake-up, so that a fast sender does not keep others waiting.
constexpr int kReadsPerWakeUp = 16;

struct OutgoingFrame {
  std::array<std::byte, kHeaderBytesMax> header;
  std::size_t header_bytes = kFrameLengthBytes;
  Bytes bytes;
  SharedBytes attachment;  // null: none

  OutgoingFrame(Bytes frame, SharedBytes beside)
      : bytes(std::move(frame)), attachment(std::move(beside)) {
    auto length = static_cast<std::uint32_t>(bytes.size());
    if (attachment) {
      length |= kAttachmentFlag;
      header_bytes += kAttachmentLengthBytes;
      const std::uint64_t attached = attachment->size();
      std::memcpy(header.data() + kFrameLengthBytes, &attached, sizeof attached);
    }
    std::memcpy(header.data(), &length, sizeof length);
  }
  std::size_t total() const {
    return header_bytes + bytes.size() + (attachment ? attachment->size() : 0);
  }
};

// What both the owner's handle and the loop's callbacks hold.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(EventLoop& loop, ByteStream socket, std::string peer, const ConnectionOptions& options)
      : peer(std::move(peer)),
        loop_(loop),
        options_(options),
        reader_(options.frame_bytes_max, options.attachment_bytes_max),
        socket_(std::move(socket)) {
    const int flags = ::fcntl(socket_.fd(), F_GETFL);
    ::fcntl(socket_.fd(), F_SETFL, flags | O_NONBLOCK);
  }

  void start(Connection::Handlers handlers) {
    TROUPE_CHECK(loop_.in_loop_thread());
    TROUPE_CHECK(!started_, "start() is called once");
    started_ = true;
    handlers_ = std::make_shared<Connection::Handlers>(std::move(handlers));
    const int fd = locked_fd();
    if (fd >= 0) watch(fd);
  }

  Status send(Bytes frame, SharedBytes attachment) {
    if (options_.attachment_bytes_max == 0 || !attachment || attachment->empty()) {
      return error(Code::kInvalidArgument, "a message to {} has no bytes beside it", peer);
    }
    MutexLock lock(mutex_);
    if (closing_ || !socket_.valid()) return closed_error();
    if (attachment->size() >= kLargeAttachmentBytes && !std::exchange(sends_large_, true)) {
      set_large_send_buffer(socket_.fd());
    }
    push(OutgoingFrame(std::move(frame), std::move(attachment)));
    if (!flush_is_due_) send_queue();
    return {};
  }

  Status send(Bytes frame, bool soon) {
    if (frame.size() > options_.frame_bytes_max) {
      return error(Code::kInvalidArgument,
                   "a message of {} bytes to {} is above the limit of {} for one message",
                   frame.size(), peer, options_.frame_bytes_max);
    }
    MutexLock lock(mutex_);
    if (closing_ || !socket_.valid()) return closed_error();
    const std::size_t room =
        options_.queue_bytes_max +
        (frame.size() <= limits::kSmallFrameBytesMax ? limits::kSmallFramesReserveBytes : 0);
    if (queued_bytes_ > 0 && queued_bytes_ + frame.size() > room) {
      return error(Code::kOverloaded, "{} does not read: {} bytes wait to be sent to it", peer,
                   queued_bytes_);
    }
    push(OutgoingFrame(std::move(frame), nullptr));
    if (flush_is_due_) return {};
    if (soon && queue_.size() < kCompanyFrames && queued_bytes_ < kCompanyBytes) {
      wait_for_company();
    } else {
      send_queue();
    }
    return {};
  }

  void flush_waiting() {
    MutexLock lock(mutex_);
    if (queue_.empty() || flush_is_due_ || closing_ || !socket_.valid()) return;
    send_queue();
  }

  std::uint64_t received_bytes() const { return received_bytes_; }  // loop thread
  std::size_t queued_bytes() {
    MutexLock lock(mutex_);
    return queued_bytes_;
  }

  void close(std::int64_t flush_ms, std::function<void()> closed) {
    bool already;
    {
      MutexLock lock(mutex_);
      already = std::exchange(closing_, true);
    }
    if (already) {
      if (closed) loop_.post(std::move(closed));
    } else if (loop_.in_loop_thread()) {
      begin_close(flush_ms, std::move(closed));
    } else {
      loop_.post([self = shared_from_this(), flush_ms, closed = std::move(closed)] {
        self->begin_close(flush_ms, closed);
      });
    }
  }

  const std::string peer;

 private:
  enum class Written { kAll, kSome, kFailed };

  Status closed_error() const {
    return error(Code::kUnavailable, "the connection to {} is closed", peer);
  }

  void push(OutgoingFrame frame) TROUPE_REQUIRES(mutex_) {
    queued_bytes_ += frame.total();
    if (queued_bytes_ > options_.low_water_bytes) above_low_water_ = true;
    queue_.push_back(std::move(frame));
  }

  int locked_fd() {
    MutexLock lock(mutex_);
    return socket_.fd();
  }

  void watch(int fd) {
    watching_ = true;
    loop_.watch_readable(fd, [self = shared_from_this()] { self->on_readable(); });
  }

  // --- reading: loop thread only -----------------------------------------------------------------

  void on_readable() {
    ByteStream* const socket = read_end();
    for (int i = 0; i < kReadsPerWakeUp; ++i) {
      if (!socket->valid()) return;
      const std::span<std::byte> space = reader_.space();
      const StreamIo io = socket->read(space);
      if (io.state == StreamIo::State::kBroken) {
        end(error(Code::kUnavailable, "the connection to {} broke: {}", peer, socket->why(io)));
        return;
      }
      if (io.state == StreamIo::State::kEnded) {
        end(reader_.in_frame() ? error(Code::kUnavailable,
                                       "{} closed the connection in the middle of a frame", peer)
                               : error(Code::kUnavailable, "{} closed the connection", peer));
        return;
      }
      received_bytes_ += io.count;
      // While closing what arrives is thrown away: only the peer's end is of interest.
      if (!is_closing() && io.count > 0 && !deliver(io.count)) return;
      if (io.count < space.size()) return;
    }
    if (!socket->has_read_ahead() || std::exchange(reads_on_, true)) return;
    // Nothing wakes anybody for what has left the socket already.
    loop_.post([self = shared_from_this()] {
      self->reads_on_ = false;
      self->on_readable();
    });
  }

  // The loop's thread alone reads, and alone lets go of the socket.
  ByteStream* read_end() TROUPE_NO_ANALYSIS { return &socket_; }

  // False when the connection ended meanwhile.
  bool deliver(std::size_t count) {
    const auto handlers = handlers_;  // on_frame may close, which lets go of them
    const auto on_frame = [&](std::span<const std::byte> frame, Attachment&& attachment) {
      if (is_closing()) return false;
      if (handlers->on_attached) {
        handlers->on_attached(frame, std::move(attachment));
      } else {
        handlers->on_frame(frame);
      }
      return !is_closing();
    };
    const Status status = reader_.filled(count, on_frame);
    if (!status.ok()) {
      end(Status(status).with("peer", peer));
      return false;
    }
    return locked_fd() >= 0;
  }

  bool is_closing() {
    MutexLock lock(mutex_);
    return closing_;
  }

  // --- writing -----------------------------------------------------------------------------------

  // In the loop's thread what is sent in one turn leaves in one call, after it. Other threads write
  // at once, which saves the way through the loop.
  void send_queue() TROUPE_REQUIRES(mutex_) {
    if (!loop_.in_loop_thread() && write_queue() == Written::kAll) return;
    flush_is_due_ = true;
    loop_.post([self = shared_from_this()] { self->flush(); });
  }

  // One timer for a stream of such frames: it goes on while more of them come.
  void wait_for_company() TROUPE_REQUIRES(mutex_) {
    company_came_ = true;
    if (!std::exchange(company_timer_, true)) start_company_timer();
  }

  void start_company_timer() {
    loop_.call_after(kCompanyTime, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->company_time_passed();
    });
  }

  // Loop thread.
  void company_time_passed() {
    {
      MutexLock lock(mutex_);
      company_timer_ = std::exchange(company_came_, false) && socket_.valid();
      if (company_timer_) start_company_timer();
      if (queue_.empty() || flush_is_due_) return;
      flush_is_due_ = true;
    }
    flush();
  }

  // Gives the queue to the kernel as far as it takes it.
  Written write_queue() TROUPE_REQUIRES(mutex_) {
    while (!queue_.empty() || socket_.unsent()) {
      std::array<iovec, kPiecesMax> pieces;
      const std::size_t piece_count = gather(pieces);
      const StreamIo io = socket_.write(std::span(pieces).first(piece_count));
      consume(io.count);
      if (io.state != StreamIo::State::kOpen) return Written::kFailed;
      if (socket_.unsent() || (io.count == 0 && !queue_.empty())) return Written::kSome;
    }
    return Written::kAll;
  }

  std::size_t gather(std::array<iovec, kPiecesMax>& pieces) TROUPE_REQUIRES(mutex_) {
    std::size_t piece_count = 0;
    std::size_t skip = front_sent_;
    for (OutgoingFrame& frame : queue_) {
      if (piece_count + 3 > kPiecesMax) break;
      // What of a part is not sent yet; sendmsg() does not write to it.
      const auto add = [&](const std::byte* part, std::size_t bytes) {
        const std::size_t sent = std::min(skip, bytes);
        skip -= sent;
        if (sent == bytes) return;
        pieces[piece_count++] = {const_cast<std::byte*>(part) + sent, bytes - sent};
      };
      add(frame.header.data(), frame.header_bytes);
      add(frame.bytes.data(), frame.bytes.size());
      if (frame.attachment) add(frame.attachment->data(), frame.attachment->size());
    }
    return piece_count;
  }

  void consume(std::size_t count) TROUPE_REQUIRES(mutex_) {
    queued_bytes_ -= count;
    front_sent_ += count;
    while (!queue_.empty() && front_sent_ >= queue_.front().total()) {
      front_sent_ -= queue_.front().total();
      queue_.pop_front();
    }
    if (!above_low_water_ || queued_bytes_ > options_.low_water_bytes) return;
    above_low_water_ = false;
    loop_.post([self = shared_from_this()] {
      const auto handlers = self->handlers_;
      if (handlers && handlers->on_drained && !self->is_closing()) handlers->on_drained();
    });
  }

  // Loop thread.
  void flush() {
    Written written;
    int fd;
    {
      MutexLock lock(mutex_);
      if (!socket_.valid()) return;
      fd = socket_.fd();
      written = write_queue();
      if (written == Written::kAll && closing_) socket_.end_writing();
      flush_is_due_ = written == Written::kSome;
    }
    if (written == Written::kSome) {
      loop_.when_writable(fd, [self = shared_from_this()] { self->flush(); });
    } else if (written == Written::kFailed) {
      write_failed();
    }
  }

  // What the peer said before it went may still be there to read; then reading tells the end. Who
  // does not read learns it here.
  void write_failed() {
    if (watching_) {
      MutexLock lock(mutex_);
      queue_.clear();
      queued_bytes_ = front_sent_ = 0;
      ::shutdown(socket_.fd(), SHUT_WR);
      return;
    }
    end(error(Code::kUnavailable, "the connection to {} broke while sending", peer));
  }

  // --- the end: loop thread only -----------------------------------------------------------------

  void begin_close(std::int64_t flush_ms, std::function<void()> closed) {
    bool nothing_to_send;
    bool ended;
    {
      MutexLock lock(mutex_);
      ended = !socket_.valid();
      nothing_to_send = queue_.empty() && !socket_.unsent();
    }
    if (ended) {
      if (closed) loop_.post(std::move(closed));
      return;
    }
    closed_ = std::move(closed);
    if (flush_ms <= 0 || nothing_to_send) {
      release();
      return;
    }
    // Stays until the peer has read everything and closes, since closing with unread bytes would
    // destroy what is on its way to it.
    if (!watching_) watch(locked_fd());
    close_timer_ = loop_.call_after(std::chrono::milliseconds(flush_ms),
                                    [self = shared_from_this()] { self->release(); });
    flush();
  }

  void end(const Status& why) {
    const bool by_owner = is_closing();
    const auto handlers = handlers_;
    release();
    if (!by_owner && handlers && handlers->on_close) handlers->on_close(why);
  }

  void release() {
    const auto self = shared_from_this();  // the loop's callbacks may be the last to hold it
    const int fd = locked_fd();
    if (fd < 0) return;
    loop_.unwatch(fd);
    if (close_timer_ != 0) loop_.cancel(std::exchange(close_timer_, 0));
    handlers_.reset();  // they often hold the owner, and so this connection
    if (closed_) loop_.post(std::exchange(closed_, nullptr));
    MutexLock lock(mutex_);
    socket_.reset();
    queue_.clear();
    queued_bytes_ = front_sent_ = 0;
  }

  EventLoop& loop_;
  const ConnectionOptions options_;
  std::shared_ptr<Connection::Handlers> handlers_;  // loop thread
  FrameReader reader_;                              // loop thread
  std::uint64_t received_bytes_ = 0;                // loop thread
  TimerId close_timer_ = 0;                         // loop thread
  std::function<void()> closed_;                    // loop thread
  bool started_ = false;                            // loop thread
  bool watching_ = false;                           // loop thread
  bool reads_on_ = false;                           // loop thread: on_readable() is posted

  Mutex mutex_;
  ByteStream socket_ TROUPE_GUARDED_BY(mutex_);
  std::deque<OutgoingFrame> queue_ TROUPE_GUARDED_BY(mutex_);
  std::size_t front_sent_ TROUPE_GUARDED_BY(mutex_) = 0;  // bytes of the first frame that are gone
  std::size_t queued_bytes_ TROUPE_GUARDED_BY(mutex_) = 0;
  bool above_low_water_ TROUPE_GUARDED_BY(mutex_) = false;
  // The loop's thread is going to write the queue, or waits until the socket takes more of it.
  bool flush_is_due_ TROUPE_GUARDED_BY(mutex_) = false;
  bool company_timer_ TROUPE_GUARDED_BY(mutex_) = false;  // it runs
  bool company_came_ TROUPE_GUARDED_BY(mutex_) = false;   // since it was started
  bool sends_large_ TROUPE_GUARDED_BY(mutex_) = false;    // its socket has room for it
  bool closing_ TROUPE_GUARDED_BY(mutex_) = false;
};

class StreamConnection final : public Connection {
 public:
  explicit StreamConnection(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~StreamConnection() override { core_->close(0, nullptr); }
  void start(Handlers handlers) override { core_->start(std::move(handlers)); }
  Status send(Bytes frame) override { return core_->send(std::move(frame), false); }
  Status send(Bytes frame, SharedBytes attachment) override {
    return core_->send(std::move(frame), std::move(attachment));
  }
  Status send_soon(Bytes frame) override { return core_->send(std::move(frame), true); }
  void flush() override { core_->flush_waiting(); }
  std::size_t queued_bytes() const override { return core_->queued_bytes(); }
  std::uint64_t received_bytes() const override { return core_->received_bytes(); }
  void close(std::int64_t flush_ms, std::function<void()> closed) override {
    core_->close(flush_ms, std::move(closed));
  }
  const std::string& peer() const override { return core_->peer; }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace

ConnectionOptions::ConnectionOptions()
    : frame_bytes_max(limits::kFrameBytesMax),
      queue_bytes_max(limits::kConnectionQueueBytesMax),
      low_water_bytes(limits::kUnreadAnswerBytesMax / 2) {}

std::shared_ptr<Connection> make_connection(EventLoop& loop, ByteStream socket, std::string peer,
                                            const ConnectionOptions& options) {
  TROUPE_CHECK(socket.valid());
  return std::make_shared<StreamConnection>(
      std::make_shared<Core>(loop, std::move(socket), std::move(peer), options));
}

}  // namespace troupe::net
