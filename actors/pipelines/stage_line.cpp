#include "actors/pipelines/stage_line.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/memory/unix_socket.h"

namespace troupe::detail {
namespace {

constexpr Duration kMessageTimeout = std::chrono::milliseconds(100);
constexpr std::uint64_t kStageMessageMagic = 0x314547415354524f;
constexpr std::uint32_t kMessageBytesMax = 256u << 10;

struct StageMessageHead {
  std::uint64_t magic = kStageMessageMagic;
  std::uint32_t kind = 0;
  std::uint32_t stage = 0;
  std::uint32_t actor = 0;
  std::uint32_t bytes = 0;
};

}  // namespace

Status send_stage_message(int socket, const StageMessage& message, int fd) {
  StageMessageHead head;
  head.kind = static_cast<std::uint32_t>(message.kind);
  head.stage = message.stage;
  head.actor = message.actor;
  head.bytes = static_cast<std::uint32_t>(message.bytes.size());
  wire::Bytes all(sizeof head + message.bytes.size());
  std::memcpy(all.data(), &head, sizeof head);
  if (!message.bytes.empty()) {
    std::memcpy(all.data() + sizeof head, message.bytes.data(), message.bytes.size());
  }
  return memory::send_with_fds(socket, all, std::span<const int>(&fd, 1),
                               Deadline::after(kMessageTimeout));
}

Result<ArrivedStageMessage> receive_stage_message(int socket) {
  const Deadline deadline = Deadline::after(kMessageTimeout);
  StageMessageHead head;
  auto fds = TROUPE_TRY(
      memory::receive_with_fds(socket, std::as_writable_bytes(std::span(&head, 1)), 1, deadline));
  if (head.magic != kStageMessageMagic || head.bytes > kMessageBytesMax) {
    return error(Code::kProtocol, "the other side of a pipeline is of another version");
  }
  ArrivedStageMessage arrived;
  arrived.message = {static_cast<StageMessage::Kind>(head.kind), head.stage, head.actor,
                     wire::Bytes(head.bytes)};
  arrived.fd = std::move(fds.front());
  TROUPE_RETURN_IF_ERROR(memory::receive_all(socket, arrived.message.bytes, deadline));
  return arrived;
}

}  // namespace troupe::detail
