#pragma once
// What is behind an actor's context.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "actors/client.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/byte_stream.h"
#include "troupe/context.h"
#include "troupe/log.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// The host's side of the context.
class HostServices {
 public:
  using OnConnection = std::function<void(ByteStream, std::string target, bool same_node)>;
  virtual ~HostServices() = default;
  virtual Status save_now() = 0;
  virtual void accept_connections(const std::string& purpose, OnConnection on_connection) = 0;
  virtual std::stop_token stop_token() const = 0;
  virtual void request_exit() = 0;
  virtual Status keep_segment(const std::string& name, int fd) = 0;
  virtual Result<UniqueFd> attach_segment(const std::string& name, Deadline deadline) = 0;
};

struct ContextState {
  wire::ActorSpec spec;
  std::uint64_t generation = 0;
  NodeId node_id;
  std::map<std::string, std::string> node_labels;
  std::shared_ptr<ActorClient> client;
  std::shared_ptr<Executor> executor;
  HostServices& host;
  Logger log;
  std::uint32_t light_number = kNoLightNumber;
  std::uint64_t light_index = 0;
};

}  // namespace troupe::detail
