#include "scheduler/objects/object_transfer.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/wire/object_messages.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(3);
constexpr std::uint32_t kRequestBytesMax = 4096;
constexpr std::uint32_t kErrorBytesMax = 4096;
constexpr std::uint64_t kPieceBytes = 1u << 20;

struct ReplyHeader {
  std::int32_t code = 0;
  std::uint32_t text_bytes = 0;
  std::uint64_t bytes = 0;  // of the object
};

template <typename T>
std::span<const std::byte> raw(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> raw(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Status refuse(ByteStream& stream, const Status& why) {
  std::string text = why.to_string().substr(0, kErrorBytesMax);
  const ReplyHeader header{.code = static_cast<std::int32_t>(why.code()),
                           .text_bytes = static_cast<std::uint32_t>(text.size())};
  const Deadline deadline = Deadline::after(kTransferPatience);
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(header), deadline));
  return send_all(stream, std::as_bytes(std::span(text)), deadline);
}

}  // namespace

void OpenStreams::add(int fd) {
  const std::lock_guard lock(mutex_);
  fds_.insert(fd);
  if (shut_) ::shutdown(fd, SHUT_RDWR);
}

void OpenStreams::remove(int fd) {
  const std::lock_guard lock(mutex_);
  fds_.erase(fd);
}

void OpenStreams::shut_all() {
  const std::lock_guard lock(mutex_);
  shut_ = true;
  for (const int fd : fds_) ::shutdown(fd, SHUT_RDWR);
}

Status fetch_object(const net::Address& from, const net::Token& token, ObjectId object,
                    std::uint64_t bytes, ObjectMemory& memory, std::uint64_t* have,
                    OpenStreams& streams) {
  const Deadline deadline = Deadline::after(kTransferPatience);
  ByteStream stream = TROUPE_TRY(net::connect_blocking(from, wire::kObjectBytesTarget, token,
                                                       Deadline::after(kConnectPatience)));
  const OpenStreams::Entry entry(streams, stream.fd());
  const wire::Bytes request =
      wire::encode(wire::ObjectMessage(wire::ReadObject{.object_id = object, .offset = *have}));
  const auto length = static_cast<std::uint32_t>(request.size());
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(length), deadline));
  TROUPE_RETURN_IF_ERROR(send_all(stream, request, deadline));
  ReplyHeader header;
  TROUPE_RETURN_IF_ERROR(receive_all(stream, raw(header), deadline));
  if (header.code != 0) {
    std::string text(std::min(header.text_bytes, kErrorBytesMax), ' ');
    TROUPE_RETURN_IF_ERROR(receive_all(stream, std::as_writable_bytes(std::span(text)), deadline));
    return Status(code_from_number(header.code), std::move(text));
  }
  if (header.bytes != bytes || bytes > memory.size()) {
    return error(Code::kProtocol, "object {} has {} bytes on the node at {}, and {} elsewhere",
                 object.brief(), header.bytes, from.to_string(), bytes);
  }
  const std::span<std::byte> into = memory.mapped();
  while (*have < bytes) {
    if (memory.abandoned()) return Status(Code::kCancelled, "the object is not wanted any more");
    const std::uint64_t piece = std::min(kPieceBytes, bytes - *have);
    // All of its pages at once, where the kernel can: one by one they take longer than the bytes.
    (void)::madvise(into.data() + *have, piece, MADV_POPULATE_WRITE);
    TROUPE_RETURN_IF_ERROR(
        receive_all(stream, into.subspan(*have, piece), Deadline::after(kTransferPatience)));
    *have += piece;
    memory.arrived(*have);
  }
  return {};
}

Status serve_object(ByteStream stream, const std::function<Result<ReadableObject>(ObjectId)>& find,
                    OpenStreams& streams) {
  const OpenStreams::Entry entry(streams, stream.fd());
  const Deadline deadline = Deadline::after(kTransferPatience);
  std::uint32_t length = 0;
  TROUPE_RETURN_IF_ERROR(receive_all(stream, raw(length), deadline));
  if (length == 0 || length > kRequestBytesMax) {
    return Status(Code::kProtocol, "not a request for an object's bytes");
  }
  wire::Bytes request(length);
  TROUPE_RETURN_IF_ERROR(receive_all(stream, request, deadline));
  const auto message = TROUPE_TRY(wire::decode_object(request));
  const auto* read = get_if<wire::ReadObject>(&message);
  if (read == nullptr) return Status(Code::kProtocol, "not a request for an object's bytes");
  const auto found = find(read->object_id);
  if (!found.ok()) return refuse(stream, found.status());
  if (read->offset > found->bytes) {
    return refuse(stream, Status(Code::kProtocol, "an offset beyond the object's end"));
  }
  const std::span<std::byte> all = found->memory->mapped();
  if (all.empty()) return refuse(stream, Status(Code::kOutOfMemory, "it cannot be mapped"));
  const ReplyHeader header{.bytes = found->bytes};
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(header), deadline));
  std::uint64_t sent = read->offset;
  while (sent < found->bytes) {
    const std::uint64_t there = TROUPE_TRY(
        found->memory->wait_beyond(found->offset + sent, Deadline::after(kTransferPatience)));
    const std::uint64_t end = std::min(there - found->offset, found->bytes);
    const std::uint64_t piece = std::min(kPieceBytes, end - sent);
    TROUPE_RETURN_IF_ERROR(send_all(stream, all.subspan(found->offset + sent, piece),
                                    Deadline::after(kTransferPatience)));
    sent += piece;
  }
  return {};
}

}  // namespace troupe::scheduler
