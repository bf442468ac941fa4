#include "runtime/net/frame_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::net {
namespace {

constexpr std::size_t kFrameHeaderBytes = 4;
constexpr std::size_t kBufferBytes = 32u << 10;
constexpr std::size_t kLargeStepBytes = 256u << 10;

}  // namespace

FrameReader::FrameReader(std::size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

std::span<std::byte> FrameReader::space() {
  if (large_length_ > 0) {
    if (large_have_ == large_.size()) {
      large_.resize(std::min(large_length_, std::max(kLargeStepBytes, 2 * large_.size())));
    }
    return std::span(large_).subspan(large_have_);
  }
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  return std::span(buffer_).subspan(end_);
}

Status FrameReader::filled(std::size_t count,
                           const std::function<bool(std::span<const std::byte>)>& on_frame) {
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
  on_frame(frame);
  return {};
}

void FrameReader::begin_large(std::size_t length, std::span<const std::byte> first) {
  large_length_ = length;
  large_have_ = first.size();
  large_.resize(std::min(length, std::max(kLargeStepBytes, 2 * first.size())));
  std::copy(first.begin(), first.end(), large_.begin());
}

Status FrameReader::cut(const std::function<bool(std::span<const std::byte>)>& on_frame) {
  std::size_t begin = 0;
  bool go_on = true;
  while (go_on && end_ - begin >= kFrameHeaderBytes) {
    std::uint32_t length = 0;
    std::memcpy(&length, buffer_.data() + begin, kFrameHeaderBytes);
    if (length > frame_bytes_max_) {
      return error(Code::kProtocol, "a frame of {} bytes; at most {} are allowed", length,
                   frame_bytes_max_);
    }
    const auto rest = std::span<const std::byte>(buffer_).subspan(begin + kFrameHeaderBytes,
                                                                  end_ - begin - kFrameHeaderBytes);
    if (rest.size() < length) {
      if (kFrameHeaderBytes + length <= buffer_.size()) break;
      begin_large(length, rest);
      begin = end_;
      break;
    }
    begin += kFrameHeaderBytes + length;
    go_on = on_frame(rest.first(length));
  }
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin),
            buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin;
  return {};
}

}  // namespace troupe::net
