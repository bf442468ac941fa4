#pragma once
// The processes of this node that have a connection with the object store: two packet sockets of
// each, one for what it says and what is answered at once, one for what comes later.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/object_messages.h"
#include "scheduler/objects/object_memory.h"
#include "scheduler/objects/object_store.h"
#include "scheduler/objects/object_transfer.h"
#include "troupe/log.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// What a process says when it comes over the node's local socket.
struct StoreGreeting {
  wire::ObjectHello hello;
  UniqueFd requests;
  UniqueFd notices;
};
// Waits for it; not on a loop's thread. `open` ends the waiting.
Result<StoreGreeting> receive_greeting(const UniqueFd& socket, OpenStreams& open);

// On the loop's thread, but for what is said to be otherwise.
class StoreProcesses {
 public:
  struct Options {
    wire::ObjectWelcome welcome;  // what a process is told that may stay
    std::string node_name;
    Logger log;
    // The store's: a process is there, has said something (an error: it is disconnected), has gone.
    std::function<void(ProcessKey process, const std::string& name)> joined;
    std::function<Status(ProcessKey process, const wire::ObjectMessage& message)> on_message;
    std::function<void(ProcessKey process)> gone;
    // Called when the store was told something: its effects are to be carried out.
    std::function<void()> told;
  };
  StoreProcesses(net::EventLoop& loop, Options options)
      : loop_(loop), options_(std::move(options)) {}
  ~StoreProcesses();
  StoreProcesses(const StoreProcesses&) = delete;
  StoreProcesses& operator=(const StoreProcesses&) = delete;

  void join(ProcessKey process, StoreGreeting greeting);
  // What came meanwhile; told() follows for each process.
  void read_all();
  // Nothing happens where the process has gone. `notice`: on the socket for those; else on that for
  // requests. The descriptor of `memory` goes with it, where there is one.
  void send(ProcessKey process, bool notice, wire::Bytes bytes,
            std::shared_ptr<ObjectMemory> memory = nullptr);

 private:
  // Packets that wait until the other end has read some.
  struct Outbox {
    struct Packet {
      wire::Bytes bytes;
      std::shared_ptr<ObjectMemory> memory;
    };
    UniqueFd socket;
    std::deque<Packet> waiting;
  };
  struct Client {
    std::string name;
    Outbox requests;  // what it sends comes by this one's socket, too
    Outbox notices;
  };
  void read(ProcessKey process, int packets_max);
  void disconnect(ProcessKey process);
  void flush(ProcessKey process, bool notices);

  net::EventLoop& loop_;
  const Options options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<ProcessKey, std::shared_ptr<Client>> clients_;
};

}  // namespace troupe::scheduler
