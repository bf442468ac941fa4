#pragma once
// Which task goes to which worker, when workers are asked for and let go: a pure state machine that
// its pool (task_pool.h) tells of events, and asks what follows. The simulator runs it, too.
//
// A lease is a worker process that the head has placed for these tasks. Short tasks lie at a lease
// several at a time, so that it need not wait for the next one; where the first of them turns out
// to be long, the worker gives back those that it has not begun.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "troupe/clock.h"
#include "troupe/detail/queued_task.h"

namespace troupe::detail {

struct LeaseLimits {
  std::size_t asked_max = 16;  // that the head is asked for at once, while it has room for them
  std::size_t at_lease_max = 64;
  // So many tasks lie at a lease as it does in this time; one alone where tasks take longer.
  Duration ahead = std::chrono::milliseconds(1);
  Duration short_task = std::chrono::microseconds(200);
  // What a message takes at most, to be told from a task: one more may wait meanwhile.
  Duration latency = std::chrono::milliseconds(2);
  // What waits will be done before another worker has started.
  Duration worth_a_start = std::chrono::milliseconds(10);
  Duration idle_after = std::chrono::milliseconds(500);
  // Workers that end before they run, each asked for after the one before had ended, while no other
  // one runs: then those that wait end as well. (That of a node that was lost does not count.)
  int start_failures_max = 3;
  Duration backoff = std::chrono::milliseconds(100);  // after the first of them; then twice that
};

class LeaseQueue {
 public:
  using TaskPtr = std::shared_ptr<QueuedTask>;
  struct Todo {
    std::vector<TaskPtr> sends;                          // each to its `lease`
    std::vector<std::pair<std::uint64_t, NodeId>> asks;  // and which node would be best
    std::vector<std::uint64_t> ends;
    std::vector<std::pair<TaskPtr, Status>> ended;
    bool empty() const { return sends.empty() && asks.empty() && ends.empty() && ended.empty(); }
  };

  explicit LeaseQueue(const LeaseLimits& limits) : limits_(limits) {}

  void submit(TaskPtr task);
  // Takes a task that waits out of the line, to be run otherwise. False: it is elsewhere.
  bool take(QueuedTask& task);
  // Its caller has given it up. Where it may run, its worker ends; what else lies there is done or
  // comes back.
  void drop(QueuedTask& task);
  // The worker has done it, however it ended. False: it is no longer that one's.
  bool answered(QueuedTask& task, std::uint64_t lease, TimePoint now);
  // The worker has not begun it.
  bool given_back(QueuedTask& task, std::uint64_t lease, TimePoint now);

  // --- what becomes of leases: those that Todo::asks named, until lost() or Todo::ends and lost()
  void runs(std::uint64_t lease, NodeId node, TimePoint now);
  // The head has no room for it now.
  void has_no_room(std::uint64_t lease);
  // Its worker takes no more, and its end is near: its tasks end one by one, or with lost().
  void closing(std::uint64_t lease);
  // The worker has gone. `refused`: the head will not have it, so that no other one will come.
  // kUnavailable: with its node.
  void lost(std::uint64_t lease, const Status& why, bool refused, TimePoint now);
  // Ends workers that have nothing to do: others wait for their resources.
  void give_up_idle();

  bool has_tasks(std::uint64_t lease);
  // Those that wait or are about to end: nothing is planned any more.
  std::vector<TaskPtr> take_all();

  Todo plan(TimePoint now);
  // When there is something to plan that no event brings.
  std::optional<TimePoint> next() const { return next_; }

  std::size_t waiting() const { return waiting_count_; }
  std::size_t at_leases() const { return at_leases_; }
  // Those among them that are the first at their worker.
  std::size_t running() const;
  // How often a task has been put back since its worker was lost.
  std::uint64_t again() const { return again_; }
  std::size_t running_leases() const;
  // Whether tasks wait for room that the head does not have.
  bool starved() const;
  const Status& trouble() const { return trouble_; }

 private:
  struct Lease {
    std::uint64_t number = 0;
    NodeId node;  // once it runs
    bool running = false;
    bool no_room = false;
    bool closing = false;  // gets no more
    bool ending = false;   // its end was asked for
    std::deque<TaskPtr> at;
    TimePoint head_since{};    // of the first of them
    bool head_waited = false;  // there, while the one before it ran
    double mean_us = -1;       // of a task; negative: none was done yet
    TimePoint idle_since{};
    bool open() const { return running && !closing && !ending; }
  };

  void to_front(TaskPtr task);
  void learn(Lease& lease, TimePoint now);
  void remove(Lease& lease, const QueuedTask& task, TimePoint now);
  void lose_task(TaskPtr task, bool first, const Status& why, Todo& todo);
  void end_late(TimePoint now, Todo& todo);
  void hand_out(TimePoint now, Todo& todo);
  void grow(TimePoint now, Todo& todo);
  void shrink(TimePoint now, Todo& todo);
  bool has_room(const Lease& lease, const QueuedTask& task) const;
  std::size_t depth(const Lease& lease) const;
  Lease* choose(const QueuedTask& task);
  Lease* choose_of(const QueuedTask& task, bool on_its_node);
  Lease* find(std::uint64_t number);
  void look_at(TimePoint time);
  void end_all_waiting(const Status& why);

  const LeaseLimits limits_;
  std::vector<Lease> leases_;
  std::deque<TaskPtr> waiting_;  // by their order; some may be over
  std::size_t waiting_count_ = 0;
  std::size_t at_leases_ = 0;
  std::uint64_t again_ = 0;
  std::uint64_t next_order_ = 0;
  std::uint64_t next_lease_ = 0;
  std::uint64_t roomy_ = 0;             // a lease that has had room last
  bool full_ = false;                   // none had, and none has come since
  std::optional<TimePoint> first_end_;  // of those that wait, or earlier
  std::size_t ask_for_ = 2;      // at once: twice as many each time that there was room at once
  int start_failures_ = 0;       // LeaseLimits::start_failures_max
  int failures_ = 0;             // one after the other
  std::uint64_t failed_to_ = 0;  // the last lease that had been asked for at the last of them
  TimePoint ask_at_{};
  Status trouble_;
  Todo later_;  // what events have brought
  std::optional<TimePoint> next_;
};

}  // namespace troupe::detail
