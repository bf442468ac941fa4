#pragma once
// The call whose method runs on this thread: what the method sees of it (ActorContext::deadline,
// call_stop_token), and what the calls that it makes take over: its deadline and its cancellation.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "troupe/clock.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/interface.h"
#include "troupe/ids.h"

namespace troupe::detail {

inline Deadline earlier(Deadline a, Deadline b) { return a.time() < b.time() ? a : b; }

class AwaitedCall;
class RunningCall;

// Who runs the calls (call_runner.h). Thread-safe.
class CallHost {
 public:
  // Requested when the caller cancels the call, or has ended it at its deadline.
  virtual std::stop_token stop_token_of(ClientId caller, std::uint64_t sequence) = 0;
  // The method waits in get(), and has for a while; until end_wait() (call_cycles.h).
  virtual void begin_wait(const RunningCall& call, AwaitedCall& awaited) = 0;
  virtual void end_wait(const RunningCall& call) = 0;

 protected:
  ~CallHost() = default;
};

// How long a method waits in get() before it is asked whether it waits for itself: most waits are
// over long before.
inline constexpr Duration kLongWait = std::chrono::milliseconds(100);

// One thread at a time.
class RunningCall {
 public:
  // `host` outlives it. `lane`: of the calls of which one at a time may run, and this is it; -1:
  // others may run beside it. `asynchronous`: its thread is the actor's own and runs others
  // meanwhile, so it must not wait.
  RunningCall(CallHost& host, ClientId caller, std::uint64_t sequence, Deadline deadline,
              MethodLabel label, int lane, bool asynchronous)
      : host_(host),
        caller_(caller),
        sequence_(sequence),
        deadline_(deadline),
        label_(label),
        lane_(lane),
        asynchronous_(asynchronous) {}
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  // Of this thread; null outside of a call.
  static RunningCall* current() { return current_; }

  Deadline deadline() const { return deadline_; }
  const MethodLabel& label() const { return label_; }
  bool asynchronous() const { return asynchronous_; }
  ClientId caller() const { return caller_; }
  std::uint64_t sequence() const { return sequence_; }
  int lane() const { return lane_; }
  CallHost& host() const { return host_; }
  // Objects that its result refers to: kept until the caller has them.
  std::vector<std::shared_ptr<const void>>& lent() { return lent_; }
  // Made when it is first asked for: most methods never look.
  const std::stop_token& stop_token();

  // Makes a call this thread's current one, until the end of the scope.
  class Scope {
   public:
    explicit Scope(RunningCall* call) : before_(current_) { current_ = call; }
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RunningCall* const before_;
  };

 private:
  inline static thread_local constinit RunningCall* current_ = nullptr;

  CallHost& host_;
  const ClientId caller_;
  const std::uint64_t sequence_;
  const Deadline deadline_;
  const MethodLabel label_;
  const int lane_;
  const bool asynchronous_;
  bool asked_ = false;
  std::stop_token token_;
  std::vector<std::shared_ptr<const void>> lent_;
};

}  // namespace troupe::detail
