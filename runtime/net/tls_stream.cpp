#include "runtime/net/tls_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "troupe/detail/mutex.h"

namespace troupe::net {
namespace {

// The plain bytes of one TLS record at most.
constexpr std::size_t kRecordBytes = 16u << 10;
// What is encrypted before it goes to the kernel in one call: few enough to stay in the cache.
constexpr std::size_t kBatchBytes = 8 * kRecordBytes;

// The position in a list of pieces.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const iovec> pieces) : pieces_(pieces) { skip_empty(); }
  bool at_end() const { return index_ == pieces_.size(); }
  // Of the piece that it stands in.
  std::span<const std::byte> rest() const {
    const iovec& piece = pieces_[index_];
    return {static_cast<const std::byte*>(piece.iov_base) + offset_, piece.iov_len - offset_};
  }
  void advance(std::size_t count) {
    offset_ += count;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (!at_end() && offset_ == pieces_[index_].iov_len) {
      ++index_;
      offset_ = 0;
    }
  }
  const std::span<const iovec> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

// OpenSSL's sessions are for one thread at a time: reading and writing take turns, record by
// record.
class TlsCipher final : public StreamCipher {
 public:
  explicit TlsCipher(std::unique_ptr<TlsSession> session) : session_(std::move(session)) {
    session_->read_ahead();
  }

  StreamIo read(std::span<std::byte> space) override {
    std::size_t have = 0;
    {
      MutexLock lock(mutex_);
      session_->look_again();
    }
    while (have < space.size()) {
      MutexLock lock(mutex_);
      const TlsIo io = session_->read(space.subspan(have));
      if (io.state == TlsState::kDone) {
        have += io.count;
        continue;
      }
      // An end or a failure comes again when what came before it has gone.
      if (have > 0 || io.state == TlsState::kWaitRead || io.state == TlsState::kWaitWrite) break;
      return {0, io.state == TlsState::kClosed || session_->end_of_file()
                     ? StreamIo::State::kEnded
                     : StreamIo::State::kBroken};
    }
    return {have};
  }

  StreamIo write(std::span<const iovec> pieces) override {
    PieceCursor cursor(pieces);
    std::size_t taken = 0;
    while (true) {
      MutexLock lock(mutex_);
      const TlsState sent = session_->flush();
      if (sent == TlsState::kBroken) return {taken, StreamIo::State::kBroken};
      if (sent != TlsState::kDone || cursor.at_end()) return {taken};
      for (std::size_t batch = 0; batch < kBatchBytes && !cursor.at_end();) {
        const std::size_t count = encrypt_next(cursor);
        if (count == 0) return {taken, StreamIo::State::kBroken};
        batch += count;
        taken += count;
      }
    }
  }

  bool unsent() const override {
    MutexLock lock(mutex_);
    return session_->unsent();
  }
  bool has_read_ahead() const override {
    MutexLock lock(mutex_);
    return session_->has_read_ahead();
  }
  void end_writing() override {
    MutexLock lock(mutex_);
    session_->end_writing();
  }
  std::string why() const override {
    MutexLock lock(mutex_);
    return session_->failure("the peer").message();
  }

 private:
  // 0: it failed. Small pieces are put together, so that each does not need a record of its own.
  std::size_t encrypt_next(PieceCursor& cursor) TROUPE_REQUIRES(mutex_) {
    const auto large = cursor.rest();
    if (large.size() >= kRecordBytes) {
      const auto part = large.first(std::min(large.size(), kBatchBytes));
      const TlsIo io = session_->encrypt(part);
      cursor.advance(io.count);
      return io.count;
    }
    gathered_.clear();
    while (!cursor.at_end() && gathered_.size() < kRecordBytes) {
      const auto rest = cursor.rest();
      const auto part = rest.first(std::min(rest.size(), kRecordBytes - gathered_.size()));
      gathered_.insert(gathered_.end(), part.begin(), part.end());
      cursor.advance(part.size());
    }
    return session_->encrypt(gathered_).count;
  }

  mutable Mutex mutex_;
  const std::unique_ptr<TlsSession> session_ TROUPE_GUARDED_BY(mutex_);
  std::vector<std::byte> gathered_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace

ByteStream make_tls_stream(UniqueFd socket, std::unique_ptr<TlsSession> session) {
  return {std::move(socket), std::make_unique<TlsCipher>(std::move(session))};
}

}  // namespace troupe::net
