#include "runtime/net/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/large_buffers.h"

namespace troupe::net {
namespace {

constexpr std::size_t kLargeStepBytes = 256u << 10;
// One read does not take more, so that a fast sender does not keep others waiting.
constexpr std::size_t kReadBytesMax = 1u << 20;

// Room for everything at once: the system gives it memory only where something was written.
bool reserve_all(std::vector<std::byte>& bytes, std::uint64_t length) try {
  bytes = take_large_buffer(length);
  if (bytes.size() > length) bytes.resize(length);
  return true;
} catch (const std::exception&) {  // more than there is, or than there can be
  return false;
}

}  // namespace

FrameReader::FrameReader(std::size_t frame_bytes_max, std::uint64_t attachment_bytes_max)
    : frame_bytes_max_(frame_bytes_max), attachment_bytes_max_(attachment_bytes_max) {}

std::span<std::byte> FrameReader::space() {
  if (large_length_ > 0) {
    if (large_have_ == large_.size()) {
      large_.resize(std::min(large_length_, std::max(kLargeStepBytes, 2 * large_.size())));
    }
    return std::span(large_).subspan(large_have_);
  }
  if (buffer_.empty()) buffer_.resize(kFrameBufferBytes);
  if (attachment_left_ == 0) return std::span(buffer_).subspan(end_);
  if (attachment_.refused_bytes) {
    return std::span(buffer_).first(std::min<std::uint64_t>(buffer_.size(), attachment_left_));
  }
  std::vector<std::byte>& bytes = attachment_.bytes;
  if (attachment_have_ == bytes.size()) {
    bytes.resize(attachment_have_ + std::min<std::uint64_t>(attachment_left_, kLargeStepBytes));
  }
  const auto space = std::span(bytes).subspan(attachment_have_);
  return space.first(std::min(space.size(), kReadBytesMax));
}

Status FrameReader::filled(std::size_t count, const OnFrame& on_frame) {
  if (attachment_left_ > 0) {
    attachment_filled(count, on_frame);
    return {};
  }
  if (large_length_ == 0) {
    end_ += count;
    TROUPE_CHECK(end_ <= buffer_.size());
    return cut(on_frame);
  }
  large_have_ += count;
  TROUPE_CHECK(large_have_ <= large_.size());
  if (large_have_ < large_length_) return {};
  const auto frame = std::exchange(large_, {});
  large_have_ = large_length_ = 0;
  on_frame(frame, {});
  return {};
}

void FrameReader::begin_large(std::size_t length, std::span<const std::byte> first) {
  large_length_ = length;
  large_have_ = first.size();
  large_.resize(std::min(length, std::max(kLargeStepBytes, 2 * first.size())));
  std::copy(first.begin(), first.end(), large_.begin());
}

void FrameReader::begin_attachment(std::uint64_t length, std::span<const std::byte> first) {
  attachment_left_ = length - first.size();
  if (length > attachment_bytes_max_ || !reserve_all(attachment_.bytes, length)) {
    attachment_.refused_bytes = length;
    return;
  }
  if (attachment_.bytes.size() < first.size()) attachment_.bytes.resize(first.size());
  std::copy(first.begin(), first.end(), attachment_.bytes.begin());
  attachment_have_ = first.size();
}

void FrameReader::attachment_filled(std::size_t count, const OnFrame& on_frame) {
  TROUPE_CHECK(count <= attachment_left_);
  attachment_left_ -= count;
  if (!attachment_.refused_bytes) attachment_have_ += count;
  if (attachment_left_ > 0) return;
  const auto frame = std::exchange(large_, {});
  attachment_have_ = 0;
  on_frame(frame, std::exchange(attachment_, {}));
}

Result<std::optional<FrameReader::Header>> FrameReader::header(
    std::span<const std::byte> bytes) const {
  std::uint32_t length = 0;
  if (bytes.size() < kFrameLengthBytes) return std::optional<Header>();
  std::memcpy(&length, bytes.data(), kFrameLengthBytes);
  Header header{kFrameLengthBytes, length, 0};
  const bool attached = attachment_bytes_max_ > 0 && (length & kAttachmentFlag) != 0;
  std::size_t frame_bytes_max = frame_bytes_max_;
  if (attached) {
    header.bytes += kAttachmentLengthBytes;
    header.frame_bytes = length & ~kAttachmentFlag;
    frame_bytes_max = std::min(frame_bytes_max, kAttachedFrameBytesMax);
  }
  if (header.frame_bytes > frame_bytes_max) {
    return error(Code::kProtocol, "a frame of {} bytes; at most {} are allowed", header.frame_bytes,
                 frame_bytes_max);
  }
  if (bytes.size() < header.bytes) return std::optional<Header>();
  if (attached) {
    std::memcpy(&header.attachment_bytes, bytes.data() + kFrameLengthBytes, kAttachmentLengthBytes);
  }
  return std::optional<Header>(header);
}

Status FrameReader::cut(const OnFrame& on_frame) {
  std::size_t begin = 0;
  bool go_on = true;
  while (go_on) {
    const auto unread = std::span<const std::byte>(buffer_).subspan(begin, end_ - begin);
    const std::optional<Header> found = TROUPE_TRY(header(unread));
    if (!found) break;
    const auto rest = unread.subspan(found->bytes);
    if (rest.size() < found->frame_bytes) {
      if (found->bytes + found->frame_bytes <= buffer_.size()) break;
      begin_large(found->frame_bytes, rest);
      begin = end_;
      break;
    }
    begin += found->bytes + found->frame_bytes;
    const auto frame = rest.first(found->frame_bytes);
    if (found->attachment_bytes == 0) {
      go_on = on_frame(frame, {});
      continue;
    }
    const auto behind = rest.subspan(found->frame_bytes);
    const auto first =
        behind.first(std::min<std::uint64_t>(behind.size(), found->attachment_bytes));
    begin += first.size();
    begin_attachment(found->attachment_bytes, first);
    if (attachment_left_ == 0) {
      attachment_have_ = 0;
      go_on = on_frame(frame, std::exchange(attachment_, {}));
    } else {
      large_.assign(frame.begin(), frame.end());
      break;
    }
  }
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin),
            buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin;
  return {};
}

}  // namespace troupe::net
