#pragma once
// Finds calls that would wait for each other for ever, and ends one of them by an error that names
// the others.
//
// A method that waits in get() for a call, and has for kLongWait, sends a probe along that call.
// The process that has the call passes it on: where the call's method waits for a call in its turn,
// along that one; where the call waits behind a method of its lane (one call at a time) that waits
// itself, along the call for which that one waits. A probe that comes back to where it began has
// gone round a cycle of waits, all of which last; the wait that began it ends with
// kFailedPrecondition. Whoever began to wait last finds all others waiting, so every cycle is found
// by somebody; two that began at once may both find it.
//
// Not found: cycles through asynchronous methods, and through groups with a limit above one, whose
// other calls may still make room. The deadline ends those.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/call_messages.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

// A call for which a method waits.
class AwaitedCall {
 public:
  // Sends the probe to the actor that has the call; its `sequence` is filled in.
  virtual void send_probe(wire::CallProbe probe) = 0;
  // Ends the call, and with it the wait.
  virtual void give_up(Status why) = 0;

 protected:
  ~AwaitedCall() = default;
};

// Of one actor. Thread-safe.
class CallCycles {
 public:
  struct Waiting {
    ClientId caller;  // and number of the call whose method waits
    std::uint64_t sequence = 0;
    int lane = -1;      // of which it is the only one that runs; -1: none
    std::string label;  // as errors name it
  };
  // Sends the first probe. `awaited` lives until end_wait().
  void begin_wait(Waiting waiting, AwaitedCall& awaited) TROUPE_EXCLUDES(mutex_);
  void end_wait(ClientId caller, std::uint64_t sequence) TROUPE_EXCLUDES(mutex_);
  // A probe along the call `probe.sequence` of `caller`, which waits in `lane` if it does.
  void arrived(ClientId caller, const wire::CallProbe& probe, std::optional<int> lane)
      TROUPE_EXCLUDES(mutex_);
  // Whether the call's method waits.
  bool waits(ClientId caller, std::uint64_t sequence) TROUPE_EXCLUDES(mutex_);

 private:
  using Key = std::pair<ClientId, std::uint64_t>;
  struct Entry {
    Waiting waiting;
    AwaitedCall* awaited;
  };
  Mutex mutex_;
  std::map<Key, Entry> waiting_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::detail
