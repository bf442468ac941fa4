#pragma once
// Pools of actors whatever their class: what the templates of actor_pool.h ask of one.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "troupe/detail/call_sink.h"
#include "troupe/detail/future_core.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/verbs.h"
#include "troupe/options.h"
#include "troupe/status.h"

namespace troupe {

struct PoolOptions;
struct PoolStatus;

namespace detail {

class PoolCall;

// Thread-safe. Once it goes its members end, and the calls that wait; those that members have keep
// it.
class Pool {
 public:
  static Result<std::shared_ptr<Pool>> create(ClientPtr client, const PoolOptions& options,
                                              const ActorInterface& interface,
                                              PackedArguments constructor_arguments);
  virtual ~Pool() = default;
  // Makes the call, which ends in any case.
  virtual void submit(const std::shared_ptr<PoolCall>& call) = 0;
  virtual PoolStatus status() const = 0;
  // Of the members that run.
  virtual std::vector<ChannelPtr> channels() const = 0;
  // How many calls its members have at once, when all of them are there.
  virtual std::size_t capacity() const = 0;
  virtual Status stop(const StopOptions& options) = 0;
  virtual const ClientPtr& client() const = 0;
  // For continuations where the caller is an actor.
  virtual FutureOptions future_options() const = 0;

  // Asked by calls.
  virtual void cancel(PoolCall& call) = 0;
  virtual Status late(const PoolCall& call) const = 0;
  // Before a thread sleeps for it: reads answers of the member that has it, where it can.
  virtual void help(const PoolCall& call, Deadline deadline) = 0;
};

struct PoolTicket;  // what the pool knows of a call: actors/groups/pool.h

// A call, from when it is made until it ends.
class PoolCall {
 public:
  virtual ~PoolCall() = default;
  // Once. `line`: the call that brought the result; null where there is none.
  virtual void end(const Status& status, std::span<const std::byte> result, const CallLine* line,
                   Continuations* later) = 0;
  virtual FutureCore& future() = 0;

  std::uint32_t method = 0;
  PackedArguments arguments;
  CallOptions options;
  bool counts = true;  // against PoolOptions::waiting_max
  std::weak_ptr<Pool> pool;
  std::shared_ptr<PoolTicket> ticket;

 protected:
  PoolCall() = default;
  void cancel_in_pool() {
    if (const auto alive = pool.lock()) alive->cancel(*this);
  }
};

Status empty_pool_error(std::string_view type);

}  // namespace detail
}  // namespace troupe
