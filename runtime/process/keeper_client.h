#pragma once
// The daemon's side of its keeper: connects to the one that is there, or starts one.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/timing.h"
#include "runtime/net/event_loop.h"
#include "runtime/process/child.h"
#include "runtime/process/packet_socket.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/keeper_messages.h"

namespace troupe::process {

struct KeeperOptions {
  std::string socket_name;  // abstract; one keeper each
  // How long a keeper lives without a daemon.
  Duration hold = kTiming.keeper_hold;
  std::string program;  // that the keeper runs, by keeper_main; empty: this one
};

// Loop thread only. What is said to the keeper is said when a call returns, whatever becomes of
// this process afterwards.
class KeeperClient {
 public:
  struct Entry {
    std::string key;
    wire::Bytes bytes;
    UniqueFd descriptor;  // may be invalid
  };
  // What the keeper had when this daemon connected.
  struct Contents {
    std::vector<Entry> entries;
    std::vector<wire::KeeperChild> children;
  };
  struct Handlers {
    std::function<void(std::uint64_t child_id, wire::ExitStatus)> on_exit;
    // Once, last: the keeper has ended, and with it every child.
    std::function<void(Status)> on_lost;
  };

  // kAlreadyExists while another daemon is connected to that keeper; kDeadlineExceeded.
  static Result<std::unique_ptr<KeeperClient>> open(net::EventLoop& loop, KeeperOptions options,
                                                    Deadline deadline);
  // The keeper lives on, for its hold time.
  ~KeeperClient();
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  Contents& contents() { return contents_; }
  // From now on handlers are called, and the keeper hears that the daemon runs.
  void start(Handlers handlers);
  // `child_id` was never used before. Waits for the keeper's answer; the death signal is the
  // keeper's own.
  Result<pid_t> spawn(std::uint64_t child_id, const SpawnOptions& options);
  // What a second call says replaces the first; without a descriptor the first's stays.
  Status put(const std::string& key, const wire::Bytes& bytes, int descriptor = -1);
  Status drop(const std::string& key);
  Status forget(std::uint64_t child_id);
  // What the keeper holds ends at `lease_end`, should this daemon be gone by then and no other one
  // have come; the clock's begin: after the hold time, and no sooner.
  void hold_until(TimePoint lease_end);
  // Waits for a child's end; no on_exit follows. For the end of the daemon.
  bool wait_exit(std::uint64_t child_id, Deadline deadline);
  // Ends every child and the keeper, and waits for that.
  Status quit(Deadline deadline);

 private:
  KeeperClient(net::EventLoop& loop, KeeperOptions options, UniqueFd socket,
               std::optional<Child> process, Contents contents);
  Status say(const wire::KeeperMessage& message, std::span<const int> descriptors = {});
  void on_readable();
  void took(wire::KeeperMessage message);
  void deliver();
  void lost(Status why);
  void stay_alive();

  net::EventLoop& loop_;
  const KeeperOptions options_;
  UniqueFd socket_;
  std::optional<Child> process_;  // where this daemon started it
  Contents contents_;
  Handlers handlers_;
  std::deque<wire::KeeperExited> exits_;  // not told yet
  std::optional<wire::KeeperSpawned> spawned_;
  std::optional<net::TimerId> timer_;
  std::int64_t lease_end_ns_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::process
