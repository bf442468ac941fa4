#include "scheduler/node/log_service.h"

#include <cstdio>
#include <utility>

namespace troupe::scheduler {
namespace {

// The oldest goes when there are more; it may ask again.
constexpr std::size_t kConnectionsMax = 64;

}  // namespace

void DaemonLog::write(LogLevel level, std::string_view line) {
  {
    MutexLock lock(mutex_);
    tail_.append(line);
  }
  if (sink_) return sink_(level, line);
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

std::string DaemonLog::text(std::size_t bytes_max) {
  MutexLock lock(mutex_);
  return tail_.text(bytes_max);
}

LogService::~LogService() {
  alive_.reset();
  for (auto& [id, connection] : connections_) connection->close();
}

void LogService::serve(UniqueFd socket, const std::string& peer) {
  if (connections_.size() >= kConnectionsMax) {
    connections_.begin()->second->close();
    connections_.erase(connections_.begin());
  }
  const std::uint64_t id = next_++;
  auto connection = net::make_connection(loop_, std::move(socket), peer);
  connections_[id] = connection;
  const std::weak_ptr<bool> alive = alive_;
  connection->start({.on_frame =
                         [this, id, alive](std::span<const std::byte> frame) {
                           if (!alive.expired()) received(id, frame);
                         },
                     .on_close =
                         [this, id, alive](Status) {
                           if (!alive.expired()) connections_.erase(id);
                         }});
}

void LogService::received(std::uint64_t id, std::span<const std::byte> frame) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = found->second;
  const auto message = wire::decode_control(frame);
  const auto* request = message.ok() ? std::get_if<wire::ReadLogs>(&*message) : nullptr;
  if (request == nullptr) {
    connections_.erase(found);
    connection->close();
    return;
  }
  auto text = read_(request->actor_id, request->bytes_max);
  wire::LogText answer;
  answer.request_id = request->request_id;
  answer.status = text.status();
  if (text.ok()) answer.text = std::move(*text);
  (void)connection->send(wire::encode(answer));
}

}  // namespace troupe::scheduler
