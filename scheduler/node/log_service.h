#pragma once
// Answers ReadLogs on the node's own port (target "node"), and keeps the daemon's own last lines.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/net/connection.h"
#include "runtime/process/output.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// Passes the daemon's lines on and remembers the last ones. Thread-safe.
class DaemonLog {
 public:
  // An empty sink: standard error.
  explicit DaemonLog(LogSink sink) : sink_(std::move(sink)) {}
  void write(LogLevel level, std::string_view line);
  std::string text(std::size_t bytes_max);

 private:
  const LogSink sink_;
  Mutex mutex_;
  process::LogTail tail_ TROUPE_GUARDED_BY(mutex_);
};

// Loop thread only.
class LogService {
 public:
  // The output of an actor, or the daemon's own where the id is empty.
  using Read = std::function<Result<std::string>(ActorId, std::size_t bytes_max)>;
  LogService(net::EventLoop& loop, Read read) : loop_(loop), read_(std::move(read)) {}
  ~LogService();
  LogService(const LogService&) = delete;
  LogService& operator=(const LogService&) = delete;

  void serve(UniqueFd socket, const std::string& peer);

 private:
  void received(std::uint64_t id, std::span<const std::byte> frame);

  net::EventLoop& loop_;
  const Read read_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::shared_ptr<net::Connection>> connections_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::scheduler
