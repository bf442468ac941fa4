#include "actors/pipelines/remote_line.h"

#include <cstring>
#include <utility>

#include "actors/pipelines/pipeline_plan.h"

namespace troupe::detail {
namespace {

constexpr std::uint64_t kRemoteLineMagic = 0x3345504950525252;

struct RemoteHead {
  std::uint64_t magic = kRemoteLineMagic;
  std::uint64_t number = 0;
  std::uint64_t process = 0;
  std::uint32_t kind = 0;
  std::uint32_t channel = 0;
  std::uint32_t failed = 0;
  std::uint32_t reference_bytes = 0;
};

}  // namespace

Status send_stage_frame(net::Connection& connection, const RemoteStageFrame& frame,
                        std::span<const std::byte> bytes) {
  RemoteHead head;
  head.number = frame.number;
  head.process = frame.process;
  head.kind = static_cast<std::uint32_t>(frame.kind);
  head.channel = frame.channel;
  head.failed = frame.failed ? 1 : 0;
  head.reference_bytes = frame.reference_bytes;
  net::Bytes encoded(sizeof head);
  std::memcpy(encoded.data(), &head, sizeof head);
  if (bytes.empty()) return connection.send(std::move(encoded));
  return connection.send(std::move(encoded),
                         std::make_shared<const net::Bytes>(bytes.begin(), bytes.end()));
}

Result<RemoteStageFrame> decode_stage_frame(std::span<const std::byte> frame) {
  RemoteHead head;
  if (frame.size() == sizeof head) std::memcpy(&head, frame.data(), sizeof head);
  if (frame.size() != sizeof head || head.magic != kRemoteLineMagic) {
    return error(Code::kProtocol, "the other side of a pipeline is of another version");
  }
  return RemoteStageFrame{.kind = static_cast<RemoteStageFrame::Kind>(head.kind),
                          .channel = head.channel,
                          .number = head.number,
                          .process = head.process,
                          .failed = head.failed != 0,
                          .reference_bytes = head.reference_bytes};
}

std::shared_ptr<net::Connection> make_remote_line(net::EventLoop& loop, ByteStream stream,
                                                  std::string peer) {
  net::ConnectionOptions options;
  options.attachment_bytes_max = kItemBytesMost;
  return net::make_connection(loop, std::move(stream), std::move(peer), options);
}

}  // namespace troupe::detail
