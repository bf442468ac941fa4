#pragma once
// The parent of the actors' processes: the daemon's own process (an embedded cluster: its end is
// the end of everything), or the node's keeper, which outlives the daemon.

#include <functional>
#include <map>
#include <memory>

#include "runtime/process/child.h"
#include "runtime/process/keeper_client.h"
#include "scheduler/node/node_events.h"

namespace troupe::scheduler {

// The node's ends of what a host speaks and writes through.
struct HostEnds {
  UniqueFd channel;
  UniqueFd out;
  UniqueFd err;
};

// Loop thread only.
class HostParent {
 public:
  // Once, never from within a call: the process has ended.
  using OnExit = std::function<void(wire::ExitStatus)>;

  virtual ~HostParent() = default;
  // Starts a process that ends when the parent ends. What survives the daemon with this parent is
  // `ends`.
  virtual Result<pid_t> spawn(HostId host, process::SpawnOptions options, const HostEnds& ends,
                              OnExit on_exit) = 0;
  // One that runs already, or has ended meanwhile: of a daemon before this one.
  virtual void adopt(HostId host, OnExit on_exit) = 0;
  // Waits for the end; on_exit does not follow.
  virtual bool wait_exit(HostId host, Deadline deadline) = 0;
  // Its end was dealt with: nothing of it is held any more.
  virtual void release(HostId host) = 0;
};

// The daemon's own process is the parent.
class OwnChildren final : public HostParent {
 public:
  explicit OwnChildren(net::EventLoop& loop) : loop_(loop) {}
  Result<pid_t> spawn(HostId host, process::SpawnOptions options, const HostEnds& ends,
                      OnExit on_exit) override;
  void adopt(HostId, OnExit) override {}
  bool wait_exit(HostId host, Deadline deadline) override;
  void release(HostId host) override { children_.erase(host); }

 private:
  net::EventLoop& loop_;
  std::map<HostId, process::Child> children_;
};

// Names of what the keeper holds of a process.
std::string channel_key(HostId host);
std::string out_key(HostId host);
std::string err_key(HostId host);

// The keeper is the parent. When it is lost, every process that was not seen to end has ended.
class KeeperChildren final : public HostParent {
 public:
  // `keeper` outlives it; contents().children are the ones to adopt.
  KeeperChildren(net::EventLoop& loop, process::KeeperClient& keeper);
  Result<pid_t> spawn(HostId host, process::SpawnOptions options, const HostEnds& ends,
                      OnExit on_exit) override;
  void adopt(HostId host, OnExit on_exit) override;
  bool wait_exit(HostId host, Deadline deadline) override;
  void release(HostId host) override;

  // The keeper's words.
  void ended(HostId host, wire::ExitStatus exit);
  // It is lost; the one that came after it; what ran under it has ended.
  void use_none() { keeper_ = nullptr; }
  void use(process::KeeperClient& keeper) { keeper_ = &keeper; }
  void end_all();

 private:
  net::EventLoop& loop_;
  process::KeeperClient* keeper_;  // null: lost
  std::map<HostId, OnExit> waiting_;
  std::map<HostId, wire::ExitStatus> ended_before_;  // when the daemon came
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::scheduler
