#include "troupe/codec.h"

#include <algorithm>
#include <utility>

#include "runtime/base/large_buffers.h"
#include "runtime/base/status.h"

namespace troupe {

bool Decoder::fail(std::string_view what) {
  if (status_.ok()) {
    status_ =
        error(Code::kProtocol, "cannot decode: {} at byte {} of {}", what, offset_, bytes_.size());
  }
  return false;
}

bool Decoder::fail(Status why) {
  if (status_.ok()) status_ = std::move(why);
  return false;
}

// Room for `size` bytes more. Who has appended much may go on to: then for twice as much.
void Encoder::grow(std::size_t size) {
  if (size < kLargeBufferBytesMin) return;  // as a vector grows by itself
  const std::size_t used = bytes_.size();
  const std::size_t wanted = used < kLargeBufferBytesMin ? used + size : 2 * used + size;
  wire::Bytes larger = take_large_buffer(wanted);
  larger.assign(bytes_.begin(), bytes_.end());
  give_back_large_buffer(std::exchange(bytes_, std::move(larger)));
}

// Room is taken for what is there, what comes and as much again, so that a container of large
// pieces does not move at each of them; where there is none the heap has to do.
void Encoder::append_large(const std::byte* bytes, std::size_t size) {
  const std::size_t used = this->size();
  if (room_.empty() || room_.size() - room_used_ < size) {
    const std::span<const std::byte> before =
        room_.empty() ? std::span<const std::byte>(bytes_)
                      : std::span<const std::byte>(room_).first(room_used_);
    const std::size_t slack = room_.empty() ? kLargeBytesMin : used + size;
    std::span<std::byte> room = large_->take(used + size + slack);
    if (room.empty()) {
      if (!room_.empty()) bytes_.assign(before.begin(), before.end());
      room_ = {};
      large_ = nullptr;
      append_to_heap(bytes, size);
      return;
    }
    if (!before.empty()) std::memcpy(room.data(), before.data(), before.size());
    bytes_.clear();
    room_ = room;
    room_used_ = used;
  }
  std::memcpy(room_.data() + room_used_, bytes, size);
  room_used_ += size;
}

namespace detail {

Status decode_threw(std::size_t bytes) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return error(Code::kResourceExhausted, "there is no memory for a value of {} bytes", bytes);
  } catch (const std::exception& e) {
    return error(Code::kProtocol, "the type's Codec threw at {} bytes: {}", bytes, e.what());
  } catch (...) {
    return error(Code::kProtocol,
                 "the type's Codec threw at {} bytes: something that is no std::exception", bytes);
  }
}

}  // namespace detail

}  // namespace troupe
