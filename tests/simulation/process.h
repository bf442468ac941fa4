#pragma once
// A simulated process of an actor: what the node started, until it dies.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "runtime/wire/host_messages.h"
#include "scheduler/node/node_events.h"
#include "world.h"

namespace troupe::simulation {

class Cluster;

// Memory behind a descriptor: it lives as long as a process or a node holds it.
struct Memory {
  virtual ~Memory() = default;
};
using MemoryPtr = std::shared_ptr<Memory>;

class Process {
 public:
  struct Place {
    std::uint64_t pid = 0;
    int node = 0;
    scheduler::HostId host = 0;
    wire::ActorSpec spec;
    std::uint64_t incarnation = 0;  // the generation of its actor's process
  };
  Process(Cluster& cluster, Place place);
  virtual ~Process() = default;

  const Place& place() const { return place_; }
  bool alive() const { return alive_; }
  bool started() const { return started_; }
  bool ready() const { return alive_ && ready_; }
  bool stopped() const { return stopped_; }
  const std::string& label() const { return label_; }

  // What it does later, unless it is dead by then; a stopped one does it when it goes on.
  void later(Duration delay, std::function<void()> what);
  // From its node. `memory` where the message came with a descriptor.
  void told(const wire::HostMessage& message, MemoryPtr memory);
  void stop();
  void go_on();
  // It writes nothing and says nothing from here on.
  void die();

 protected:
  // The node's HostStart; `saved`: what the process before saved, or null.
  virtual void start(MemoryPtr saved) = 0;
  virtual void attached(std::uint64_t request_id, const Status& status, MemoryPtr memory) = 0;
  // The node asks it to finish within so long.
  virtual void asked_to_stop(Duration) {}
  // … and what it does not come to is for its actor's next process.
  virtual void asked_to_move(Duration grace) { asked_to_stop(grace); }
  // The head knows that there is saved state.
  virtual void state_known() {}
  // A caller's connection is its own from here on.
  virtual void connected(MemoryPtr) {}
  virtual void on_death() = 0;
  // It answers calls from now on.
  void become_ready();

  Cluster& cluster_;
  World& world_;

 private:
  void run(std::function<void()> what);

  const Place place_;
  const std::string label_;
  bool alive_ = true;
  bool started_ = false;
  bool ready_ = false;
  bool stopped_ = false;
  std::deque<std::function<void()>> held_;  // while it is stopped
};

}  // namespace troupe::simulation
