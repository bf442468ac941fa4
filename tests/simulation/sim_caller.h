#pragma once
// The calls of one simulated process: the real CallerSessions over simulated connections, as
// ActorChannel drives them.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/session/caller_session.h"
#include "call_wire.h"
#include "cluster.h"
#include "sim_head_client.h"

namespace troupe::simulation {

// The class that all actors of this simulation have.
extern const detail::ActorInterface kSimInterface;
// kLook changes nothing, and nothing is saved after it; kCount is a stream.
enum SimMethod : std::uint32_t { kAdd, kRelay, kCount, kLook };

// What a call carries, and what comes back.
struct SimArguments {
  std::uint64_t call = 0;    // the oracle's number of it
  std::uint64_t onward = 0;  // kRelay: the number of the call that it makes; kCount: how many items
  ActorId target;            // kRelay: whom
};
struct SimResult {
  std::uint64_t call = 0;
  // Of the state that answered: a new one where it began empty. 0: of kLook, before any was saved.
  std::uint64_t history = 0;
  std::uint64_t generation = 0;  // of the process
};
wire::Bytes to_bytes(const SimArguments& arguments);
wire::Bytes to_bytes(const SimResult& result);
SimArguments arguments_from(std::span<const std::byte> bytes);
SimResult result_from(std::span<const std::byte> bytes);

// The connection that a process was given (Process::connected): it is the process's from here on.
std::shared_ptr<CallWire> take_wire(const MemoryPtr& memory);

class SimCaller {
 public:
  struct Identity {
    ActorId self;  // empty: a driver
    std::uint64_t generation = 0;
    std::string name;
  };
  using OnEnd = std::function<void(troupe::Result<SimResult>)>;
  using OnItem = std::function<void(std::uint64_t index)>;
  // `after`: as SimHeadClient's. The client and the cluster outlive it.
  SimCaller(Cluster& cluster, SimHeadClient& head, Identity identity, SimHeadClient::After after);
  ~SimCaller();

  struct Call {
    ActorId target;
    SimMethod method = kAdd;
    SimArguments arguments;
    TimePoint deadline;
    bool retry = false;
    OnEnd on_end = {};  // once, unless it is cancelled
    OnItem on_item = {};
    std::uint64_t items = 0;  // of a stream, allowed at first
  };
  // The call's number in its session, 0 where it has ended.
  std::uint64_t call(Call call);
  void cancel(ActorId target, std::uint64_t sequence);
  void allow_items(ActorId target, std::uint64_t sequence, std::uint64_t items);
  // What another process of this actor has said: it has a successor.
  void set_on_superseded(std::function<void()> on_superseded) {
    on_superseded_ = std::move(on_superseded);
  }
  // A call has left; it has come back without having begun.
  struct Observer {
    std::function<void(std::uint64_t call)> on_sent;
    std::function<void(std::uint64_t call)> on_given_back;
  };
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // --- faults
  // Some connection of it, if there is one.
  std::shared_ptr<CallWire> any_wire();
  // Its process is gone. `told`: the other ends of its connections hear of it.
  void die(bool told);

 private:
  struct Channel;
  class Sink;
  void apply(const std::shared_ptr<Channel>& channel,
             const std::function<void(detail::CallerSession&, detail::CallerOutcome&)>& event);
  void carry_out(const std::shared_ptr<Channel>& channel, detail::CallerOutcome out);
  void connect(const std::shared_ptr<Channel>& channel, const detail::CallerOutcome::Connect& to);
  void arm(const std::shared_ptr<Channel>& channel);
  std::shared_ptr<Channel> channel(ActorId actor);

  Cluster& cluster_;
  World& world_;
  SimHeadClient& head_;
  const Identity identity_;
  const SimHeadClient::After after_;
  std::function<void()> on_superseded_;
  Observer observer_;
  std::map<ActorId, std::shared_ptr<Channel>> channels_;
  bool dead_ = false;
};

}  // namespace troupe::simulation
