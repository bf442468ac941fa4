#pragma once
// An actor's process in the simulation of calls: the real CalleeSession, a queue of what it admits,
// one call at a time, a state that is saved with every call, and calls of its own to other actors.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/session/callee_session.h"
#include "calls_oracle.h"
#include "process.h"
#include "sim_caller.h"
#include "sim_head_client.h"

namespace troupe::simulation {

// What lies in the node's memory: which effects, and who has been answered what.
struct CounterState final : Memory {
  std::uint64_t history = 0;
  std::vector<detail::AnsweredCalls> answered;  // by the saves since one of all
};

class CallActor final : public Process {
 public:
  CallActor(Cluster& cluster, Place place, CallsOracle& oracle, bool saves_may_fail);

  std::shared_ptr<CallWire> any_wire();

 private:
  struct Queued {
    ClientId caller;
    std::uint64_t sequence = 0;
    std::uint32_t method = 0;
    TimePoint deadline;
    wire::Bytes arguments;
  };
  struct Connection;
  // The call that runs.
  struct Running {
    Queued call;
    std::uint64_t items = 0;   // of a stream, sent so far
    bool begun = false;        // the method
    bool done = false;         // and its answer is about to leave
    std::uint64_t onward = 0;  // the call that it waits for
  };

  void start(MemoryPtr saved) override;
  void attached(std::uint64_t, const Status&, MemoryPtr) override {}
  void asked_to_stop(Duration grace) override;
  void asked_to_move(Duration grace) override;
  void state_known() override;
  void connected(MemoryPtr memory) override;
  void on_death() override;

  void on_message(const std::shared_ptr<Connection>& connection, wire::CallMessage message);
  void on_bind(const std::shared_ptr<Connection>& connection, const wire::Bind& bind);
  void on_call(const std::shared_ptr<Connection>& connection, wire::Call call);
  void on_cancel(ClientId caller, std::uint64_t sequence);
  void on_ended(const std::shared_ptr<Connection>& connection);
  void carry_out(const detail::CalleeSession::Change& change);
  void begin_next();
  void run();
  void relay(const SimArguments& arguments);
  void send_items();
  void finish(troupe::Result<wire::Bytes> result);
  void save(const Queued& call, const troupe::Result<wire::Bytes>& result);
  void answer(const Queued& call, troupe::Result<wire::Bytes> result);
  void move_on();

  CallsOracle& oracle_;
  const bool saves_may_fail_;
  const ActorId self_;
  SimHeadClient head_;
  SimCaller caller_;
  detail::CalleeSession session_;
  std::vector<MemoryPtr> arrived_;  // connections that came before it was ready
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Connection>> replaced_;  // whose ends have not been heard
  std::map<ActorId, std::uint64_t> newest_callers_;    // generations that have bound
  std::deque<Queued> queue_;
  std::optional<Running> running_;
  std::shared_ptr<CounterState> state_;
  bool state_known_ = false;
  bool saves_all_ = true;               // that was answered
  std::vector<std::uint64_t> unsaved_;  // calls whose effects are in no save yet
  // The answer that waits until the head knows that there is saved state.
  std::optional<troupe::Result<wire::Bytes>> unanswered_;
  bool moves_ = false;
};

}  // namespace troupe::simulation
