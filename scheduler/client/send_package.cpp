#include "scheduler/client/send_package.h"

#include <algorithm>

#include "runtime/base/limits.h"
#include "scheduler/client/ask_node.h"

namespace troupe::scheduler {

Status send_package(net::EventLoop& loop, const net::Address& node, const net::Token& token,
                    const wire::Package& package, std::span<const std::byte> bytes,
                    Duration patience, const std::function<bool()>& go_on) {
  const auto connection =
      TROUPE_TRY(NodeConnection::open(loop, node, "packages", token, Deadline::after(patience)));
  const auto say = [&](std::uint64_t offset, std::span<const std::byte> piece) -> Status {
    const auto answer = TROUPE_TRY(
        connection->ask(wire::WritePackage{offset, package, offset, {piece.begin(), piece.end()}},
                        Deadline::after(patience)));
    const auto* reply = get_if<wire::Reply>(&answer);
    const Status status =
        reply == nullptr ? Status(Code::kProtocol, "it answers something else") : reply->status;
    return status.ok() ? status : status.prefixed("node at " + node.to_string());
  };
  TROUPE_RETURN_IF_ERROR(say(0, {}));  // whether it is wanted
  for (std::uint64_t offset = 0; offset < bytes.size(); offset += limits::kPackagePieceBytes) {
    if (!go_on()) return Status(Code::kCancelled, "the sending was interrupted");
    TROUPE_RETURN_IF_ERROR(say(offset, bytes.subspan(offset, std::min(limits::kPackagePieceBytes,
                                                                      bytes.size() - offset))));
  }
  return {};
}

}  // namespace troupe::scheduler
