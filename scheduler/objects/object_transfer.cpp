#include "scheduler/objects/object_transfer.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "runtime/wire/object_messages.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(3);
constexpr std::uint32_t kRequestBytesMax = 4096;
constexpr std::uint32_t kErrorBytesMax = 4096;
constexpr std::uint64_t kPieceBytes = 1u << 20;
// A connection is used again for so long; the side that answers, which spends a thread on it, waits
// a little longer.
constexpr Duration kIdleTime = std::chrono::milliseconds(100);
constexpr Duration kNextRequestTime = std::chrono::milliseconds(200);
constexpr std::size_t kIdleOfAddressMax = 4;

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

// What the other side says to a request for the object's bytes from the offset on.
Result<ReplyHeader> ask(ByteStream& stream, const wire::ReadObject& what) {
  const Deadline deadline = Deadline::after(kTransferPatience);
  const wire::Bytes request = wire::encode(wire::ObjectMessage(what));
  const auto length = static_cast<std::uint32_t>(request.size());
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(length), deadline));
  TROUPE_RETURN_IF_ERROR(send_all(stream, request, deadline));
  ReplyHeader header;
  TROUPE_RETURN_IF_ERROR(receive_all(stream, raw(header), deadline));
  return header;
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

ByteStream IdleStreams::take(const std::string& address) {
  std::vector<Idle> old;  // ends without the lock
  const std::lock_guard lock(mutex_);
  auto& streams = idle_[address];
  while (!streams.empty()) {
    Idle last = std::move(streams.back());
    streams.pop_back();
    if (clock_.now() - last.since < kIdleTime) return std::move(last.stream);
    old.push_back(std::move(last));
  }
  return {};
}

void IdleStreams::give_back(const std::string& address, ByteStream stream) {
  const std::lock_guard lock(mutex_);
  auto& streams = idle_[address];
  if (streams.size() < kIdleOfAddressMax) streams.push_back({std::move(stream), clock_.now()});
}

namespace {

// Over a connection on which nothing else is under way. `refused`: why there is none, and the
// connection may be used again.
Status fetch_over(ByteStream& stream, const std::string& from, ObjectId object, std::uint64_t bytes,
                  const ReplyHeader& header, ObjectMemory& memory, std::uint64_t* have,
                  Status& refused) {
  if (header.code != 0) {
    std::string text(std::min(header.text_bytes, kErrorBytesMax), ' ');
    TROUPE_RETURN_IF_ERROR(receive_all(stream, std::as_writable_bytes(std::span(text)),
                                       Deadline::after(kTransferPatience)));
    refused = Status(code_from_number(header.code), std::move(text));
    return {};
  }
  if (header.bytes != bytes || bytes > memory.size()) {
    return error(Code::kProtocol, "object {} has {} bytes on the node at {}, and {} elsewhere",
                 object.brief(), header.bytes, from, bytes);
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

}  // namespace

Status fetch_object(const net::Address& from, const net::Token& token, wire::ReadObject what,
                    std::uint64_t bytes, ObjectMemory& memory, std::uint64_t* have,
                    OpenStreams& streams, IdleStreams& idle) {
  const std::string name = from.to_string();
  const ObjectId object = what.object_id;
  what.offset = *have;
  Status unanswered;
  // Nothing: the connection ended before the answer.
  const auto over = [&](ByteStream stream) -> std::optional<Status> {
    Status refused;
    {
      const OpenStreams::Entry entry(streams, stream.fd());
      const auto header = ask(stream, what);
      unanswered = header.status();
      if (!header.ok()) return std::nullopt;
      const Status fetched =
          fetch_over(stream, name, object, bytes, *header, memory, have, refused);
      if (!fetched.ok()) return fetched;
    }
    idle.give_back(name, std::move(stream));
    return refused;
  };
  if (ByteStream used = idle.take(name); used.valid()) {
    if (const auto done = over(std::move(used))) return *done;
  }
  const auto done = over(TROUPE_TRY(net::connect_blocking(from, wire::kObjectBytesTarget, token,
                                                          Deadline::after(kConnectPatience))));
  return done ? *done : unanswered;
}

namespace {

// The request was read.
Status serve_one(ByteStream& stream, const wire::ReadObject& read,
                 const std::function<Result<ReadableObject>(const wire::ReadObject&)>& find) {
  const Deadline deadline = Deadline::after(kTransferPatience);
  const auto found = find(read);
  if (!found.ok()) return refuse(stream, found.status());
  if (read.offset > found->bytes) {
    return refuse(stream, Status(Code::kProtocol, "an offset beyond the object's end"));
  }
  const std::span<std::byte> all = found->memory->mapped();
  if (all.empty()) return refuse(stream, Status(Code::kOutOfMemory, "it cannot be mapped"));
  const ReplyHeader header{.bytes = found->bytes};
  TROUPE_RETURN_IF_ERROR(send_all(stream, raw(header), deadline));
  std::uint64_t sent = read.offset;
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

}  // namespace

Status serve_objects(ByteStream stream,
                     const std::function<Result<ReadableObject>(const wire::ReadObject&)>& find,
                     OpenStreams& streams) {
  const OpenStreams::Entry entry(streams, stream.fd());
  for (Duration patience = kTransferPatience;; patience = kNextRequestTime) {
    std::uint32_t length = 0;
    const Status asked = receive_all(stream, raw(length), Deadline::after(patience));
    if (!asked.ok()) return patience == kNextRequestTime ? Status() : asked;
    if (length == 0 || length > kRequestBytesMax) {
      return Status(Code::kProtocol, "not a request for an object's bytes");
    }
    wire::Bytes request(length);
    TROUPE_RETURN_IF_ERROR(receive_all(stream, request, Deadline::after(kTransferPatience)));
    const auto message = TROUPE_TRY(wire::decode_object(request));
    const auto* read = get_if<wire::ReadObject>(&message);
    if (read == nullptr) return Status(Code::kProtocol, "not a request for an object's bytes");
    TROUPE_RETURN_IF_ERROR(serve_one(stream, *read, find));
  }
}

}  // namespace troupe::scheduler
