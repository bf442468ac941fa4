#pragma once
// Answers ReadLogs, ReadSegment, ReadSavedState, ReadGpus and FollowOutput on the node's own port
// (target "node").

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/connection.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// Loop thread only.
class NodeService {
 public:
  struct Sources {
    // The output of an actor, or the daemon's own where the id is empty.
    std::function<Result<std::string>(ActorId, std::size_t bytes_max)> logs;
    // The descriptor of a kept segment; it stays the owner's.
    std::function<Result<int>(JobId, const std::string& name)> segment;
    // The descriptor of what an actor saved last, for the node where it starts next; it stays the
    // owner's. And what follows when a piece of it has been sent.
    std::function<Result<int>(ActorId)> saved_state;
    std::function<void()> on_state_read;
    // The lines that are kept, of a job's actors, or of one actor where its id is not empty.
    std::function<std::vector<wire::OutputLine>(JobId, ActorId)> kept_output;
    std::function<std::vector<wire::GpuStatus>()> gpus;
    // Reads and publishes what the actors' processes have written by now.
    std::function<void()> drain_output;
  };
  // `queue_bytes_max`: OutputLimits::queue_bytes; more than a piece of a segment.
  NodeService(net::EventLoop& loop, Sources sources, std::size_t queue_bytes_max)
      : loop_(loop), sources_(std::move(sources)), queue_bytes_max_(queue_bytes_max) {}
  ~NodeService();
  NodeService(const NodeService&) = delete;
  NodeService& operator=(const NodeService&) = delete;

  void serve(ByteStream socket, const std::string& peer);
  // To those who follow this actor's output, or that of its job.
  void publish(const wire::OutputLine& line, const JobId& job_id);

 private:
  struct Follower {
    JobId job_id;
    ActorId actor_id;
  };
  void follow(std::uint64_t id, const wire::FollowOutput& request);
  void drop(std::uint64_t id);
  // False: the connection did not take it and is dropped. It may come back and ask again.
  bool send(std::uint64_t id, const wire::ControlMessage& message);
  void received(std::uint64_t id, std::span<const std::byte> frame);
  wire::ControlMessage answer(const wire::ReadLogs& request) const;
  wire::ControlMessage answer(const wire::ReadSegment& request) const;
  wire::ControlMessage answer(const wire::ReadSavedState& request) const;

  net::EventLoop& loop_;
  const Sources sources_;
  const std::size_t queue_bytes_max_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::shared_ptr<net::Connection>> connections_;
  std::map<std::uint64_t, Follower> followers_;  // by connection
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::scheduler
