#include "scheduler/node/node_service.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"

namespace troupe::scheduler {
namespace {

// The oldest that only asks goes when there are more; it may ask again.
constexpr std::size_t kConnectionsMax = 64;
// Drivers and tools that follow the output.
constexpr std::size_t kFollowersMax = 256;

// By the descriptor, without mapping it: whatever its owner does meanwhile.
template <typename Request>
Status read_piece(int fd, const Request& request, const std::string& what,
                  wire::SegmentBytes& answer) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return errno_status(errno, "read", what);
  answer.size_bytes = static_cast<std::uint64_t>(status.st_size);
  if (request.offset >= answer.size_bytes) return {};
  const std::uint64_t wanted = std::min({request.bytes_max, answer.size_bytes - request.offset,
                                         std::uint64_t{limits::kSegmentReadBytesMax}});
  answer.bytes.resize(wanted);
  std::size_t have = 0;
  while (have < wanted) {
    const ssize_t count = ::pread(fd, answer.bytes.data() + have, wanted - have,
                                  static_cast<off_t>(request.offset + have));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "read", what);
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  answer.bytes.resize(have);
  return {};
}

}  // namespace

NodeService::~NodeService() {
  alive_.reset();
  for (auto& [id, connection] : connections_) connection->close();
}

void NodeService::serve(ByteStream socket, const std::string& peer) {
  if (connections_.size() - followers_.size() >= kConnectionsMax) {
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(),
                     [this](const auto& entry) { return !followers_.contains(entry.first); });
    drop(oldest->first);
  }
  const std::uint64_t id = next_++;
  net::ConnectionOptions options;
  options.queue_bytes_max = queue_bytes_max_;
  auto connection = net::make_connection(loop_, std::move(socket), peer, options);
  connections_[id] = connection;
  const std::weak_ptr<bool> alive = alive_;
  connection->start({.on_frame =
                         [this, id, alive](std::span<const std::byte> frame) {
                           if (!alive.expired()) received(id, frame);
                         },
                     .on_close =
                         [this, id, alive](Status) {
                           if (alive.expired()) return;
                           connections_.erase(id);
                           followers_.erase(id);
                         }});
}

void NodeService::drop(std::uint64_t id) {
  followers_.erase(id);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = found->second;
  connections_.erase(found);
  connection->close();
}

bool NodeService::send(std::uint64_t id, const wire::ControlMessage& message) {
  const auto found = connections_.find(id);
  if (found != connections_.end() && found->second->send(wire::encode(message)).ok()) return true;
  drop(id);
  return false;
}

void NodeService::follow(std::uint64_t id, const wire::FollowOutput& request) {
  wire::Reply reply{request.request_id, {}};
  if (!followers_.contains(id)) {
    if (followers_.size() >= kFollowersMax) {
      reply.status =
          error(Code::kOverloaded, "{} drivers and tools follow the output of this node already",
                followers_.size());
    } else if (request.job_id.empty() && request.actor_id.empty()) {
      reply.status = Status(Code::kInvalidArgument, "neither a job nor an actor to follow");
    } else {
      sources_.drain_output();
      for (auto& line : sources_.kept_output(request.job_id, request.actor_id)) {
        if (!send(id, std::move(line))) return;
      }
      followers_[id] = {request.job_id, request.actor_id};
    }
  } else {
    sources_.drain_output();
  }
  send(id, reply);
}

void NodeService::publish(const wire::OutputLine& line, const JobId& job_id) {
  std::optional<net::Bytes> frame;
  std::vector<std::uint64_t> unable;
  for (const auto& [id, follower] : followers_) {
    const bool wanted =
        follower.actor_id.empty() ? follower.job_id == job_id : follower.actor_id == line.actor_id;
    if (!wanted) continue;
    if (!frame) frame = wire::encode(line);
    const auto connection = connections_.find(id);
    if (connection == connections_.end()) continue;
    if (!connection->second->send(*frame).ok()) unable.push_back(id);
  }
  for (const std::uint64_t id : unable) drop(id);
}

wire::ControlMessage NodeService::answer(const wire::ReadLogs& request) const {
  auto text = sources_.logs(request.actor_id, request.bytes_max);
  wire::LogText answer;
  answer.request_id = request.request_id;
  answer.status = text.status();
  if (text.ok()) answer.text = std::move(*text);
  return answer;
}

wire::ControlMessage NodeService::answer(const wire::ReadSegment& request) const {
  wire::SegmentBytes answer;
  answer.request_id = request.request_id;
  const auto fd = sources_.segment(request.job_id, request.name);
  answer.status =
      fd.ok() ? read_piece(*fd, request, "segment " + request.name, answer) : fd.status();
  return answer;
}

wire::ControlMessage NodeService::answer(const wire::ReadSavedState& request) const {
  wire::SegmentBytes answer;
  answer.request_id = request.request_id;
  const auto fd = sources_.saved_state(request.actor_id);
  answer.status = fd.ok() ? read_piece(*fd, request, "a saved state", answer) : fd.status();
  return answer;
}

void NodeService::received(std::uint64_t id, std::span<const std::byte> frame) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto message = wire::decode_control(frame);
  std::optional<wire::ControlMessage> reply;
  if (message.ok()) {
    if (const auto* logs = get_if<wire::ReadLogs>(&*message)) reply = answer(*logs);
    if (const auto* segment = get_if<wire::ReadSegment>(&*message)) reply = answer(*segment);
    if (const auto* state = get_if<wire::ReadSavedState>(&*message)) reply = answer(*state);
    if (const auto* gpus = get_if<wire::ReadGpus>(&*message)) {
      reply = wire::GpuList{gpus->request_id, sources_.gpus()};
    }
    if (const auto* request = get_if<wire::FollowOutput>(&*message)) {
      return follow(id, *request);
    }
  }
  if (!reply) return drop(id);
  send(id, *reply);
  if (holds_alternative<wire::ReadSavedState>(*message)) sources_.on_state_read();
}

}  // namespace troupe::scheduler
