#pragma once
// What must hold of the simulated calls.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/ids.h"
#include "sim_caller.h"
#include "world.h"

namespace troupe::simulation {

struct CallsResult;

class CallsOracle {
 public:
  CallsOracle(World& world, CallsResult& result) : world_(world), result_(result) {}
  void watch(const Cluster& cluster) { cluster_ = &cluster; }

  // Of an actor that runs each call once, and saves.
  void expect_once(ActorId actor) { once_.insert(actor); }
  bool runs_once(ActorId actor) const { return once_.contains(actor); }

  // --- at the caller
  struct Made {
    std::string caller;
    ActorId target;
    SimMethod method = kAdd;
    bool retry = false;
    TimePoint deadline;
    bool punctual = true;  // its process never stands still
  };
  // A call is about to be made: its number.
  std::uint64_t made(Made made);
  void ended(std::uint64_t call, const troupe::Result<SimResult>& result);
  void item(std::uint64_t call, std::uint64_t index, std::uint64_t allowed);
  // It has come back from a process that has not begun it: it is to go on to the next.
  void came_back(std::uint64_t call) { find(call).came_back = true; }
  void sent(std::uint64_t call) { find(call).came_back = false; }
  // Nothing more may be heard of it.
  void given_up(std::uint64_t call);

  // --- at the actor
  // A process has its state, and how many effects are in it; a new one has begun with none.
  void began(ActorId actor, std::uint64_t pid, std::uint64_t history, bool empty);
  // A call of this caller and number begins to run there.
  void runs(std::uint64_t call, std::uint64_t pid, ClientId caller, std::uint64_t sequence);
  // It has taken effect on the state.
  void took_effect(std::uint64_t call, ActorId actor, std::uint64_t history);

  SimCaller::Observer observer() {
    return {.on_sent = [this](std::uint64_t call) { sent(call); },
            .on_given_back = [this](std::uint64_t call) { came_back(call); }};
  }

  // Nothing, or what a call waits for that should have ended.
  std::string overdue() const;

 private:
  struct Call {
    Made made;
    bool over = false;
    bool came_back = false;          // and has not been sent since
    std::set<std::uint64_t> ran_in;  // processes
    std::uint64_t items = 0;
  };
  void check_result(std::uint64_t number, const Call& call, const SimResult& result);
  void check_error(const Call& call, const Status& status) const;
  Call& find(std::uint64_t call);

  World& world_;
  CallsResult& result_;
  const Cluster* cluster_ = nullptr;
  std::set<ActorId> once_;
  std::map<std::uint64_t, Call> calls_;
  std::set<std::uint64_t> open_;
  std::uint64_t next_ = 1;
  // The last number that a process began of a caller's.
  std::map<std::pair<std::uint64_t, ClientId>, std::uint64_t> last_begun_;
  std::map<std::uint64_t, std::set<std::uint64_t>> effects_;  // by history: calls
  std::map<ActorId, int> losses_;                             // of saved state
  std::set<ActorId> has_begun_;
  // What a caller knows of an actor's state: the history that answered last, from which of its
  // calls on it must have been told of a loss, and how often it was told.
  struct Known {
    std::uint64_t history = 0;
    std::uint64_t told_from = 0;
    int told = 0;
  };
  std::map<std::pair<std::string, ActorId>, Known> known_;
};

}  // namespace troupe::simulation
