#include "actors/tasks/lease_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "runtime/base/canary.h"

namespace troupe::detail {
namespace {

using State = QueuedTask::State;

constexpr int kBackoffDoublingsMax = 6;

double us_of(Duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

}  // namespace

// --- tasks ---------------------------------------------------------------------------------------

void LeaseQueue::submit(TaskPtr task) {
  task->state = State::kWaiting;
  task->order = ++next_order_;
  if (!first_end_ || task->ends_by < *first_end_) first_end_ = task->ends_by;
  ++waiting_count_;
  waiting_.push_back(std::move(task));
}

bool LeaseQueue::take(QueuedTask& task) {
  if (task.state != State::kWaiting) return false;
  task.state = State::kOver;
  --waiting_count_;
  return true;
}

void LeaseQueue::drop(QueuedTask& task) {
  if (take(task) || task.state == State::kOver) return;
  task.state = State::kOver;
  Lease* const lease = find(task.lease);
  if (lease == nullptr) return;
  lease->closing = true;
  if (std::erase_if(lease->at, [&](const TaskPtr& t) { return t.get() == &task; }) > 0) {
    --at_leases_;
  }
}

bool LeaseQueue::answered(QueuedTask& task, std::uint64_t number, TimePoint now) {
  Lease* const lease = find(number);
  if (lease == nullptr || task.state != State::kAtLease || task.lease != number) return false;
  if (lease->at.front().get() == &task && !task.alone) learn(*lease, now);
  task.state = State::kOver;
  remove(*lease, task, now);
  failures_ = start_failures_ = 0;
  trouble_ = Status();
  return true;
}

// How long tasks take there: of one that was sent to an idle worker this has the way of two
// messages in it, and tells no more than an upper bound.
void LeaseQueue::learn(Lease& lease, TimePoint now) {
  const double took = us_of(now - lease.head_since);
  if (lease.mean_us < 0) {
    lease.mean_us = took;
  } else if (lease.head_waited || took < lease.mean_us ||
             took > lease.mean_us + us_of(limits_.latency)) {
    lease.mean_us = 0.9 * lease.mean_us + 0.1 * took;
  }
}

bool LeaseQueue::given_back(QueuedTask& task, std::uint64_t number, TimePoint now) {
  Lease* const lease = find(number);
  if (lease == nullptr || task.state != State::kAtLease || task.lease != number) return false;
  const auto found = std::find_if(lease->at.begin(), lease->at.end(),
                                  [&](const TaskPtr& t) { return t.get() == &task; });
  TaskPtr kept = *found;
  remove(*lease, task, now);
  if (TROUPE_CANARY("forgets-what-is-given-back")) return true;
  // What runs there takes long: nothing is sent behind the next ones before they are known. And
  // where nothing is known to be there, it is what its caller has given up: others go elsewhere.
  lease->mean_us = std::max(lease->mean_us, 2 * us_of(limits_.latency));
  lease->closing = lease->closing || lease->at.empty();
  roomy_ = 0;
  to_front(std::move(kept));
  return true;
}

void LeaseQueue::remove(Lease& lease, const QueuedTask& task, TimePoint now) {
  const bool first = lease.at.front().get() == &task;
  std::erase_if(lease.at, [&](const TaskPtr& t) { return t.get() == &task; });
  --at_leases_;
  if (first) lease.head_since = now;
  lease.head_waited = !lease.at.empty();
  if (lease.at.empty()) lease.idle_since = now;
  roomy_ = lease.number;
  full_ = false;
}

// Those that come back are few: each finds its place from the front.
void LeaseQueue::to_front(TaskPtr task) {
  task->state = State::kWaiting;
  task->lease = 0;
  if (!first_end_ || task->ends_by < *first_end_) first_end_ = task->ends_by;
  ++waiting_count_;
  const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const TaskPtr& other) { return other->order > task->order; });
  waiting_.insert(place, std::move(task));
}

void LeaseQueue::lose_task(TaskPtr task, bool first, const Status& why, Todo& todo) {
  --at_leases_;
  // The first one was running, or was to be next: only that it is sure to have been there.
  task->alone = true;
  if (first && !TROUPE_CANARY("counts-no-tries")) ++task->tries;
  const bool again = task->retries > 0 && task->tries <= task->retries;
  if (again || TROUPE_CANARY("runs-again-unasked")) {
    ++again_;
    return to_front(std::move(task));
  }
  task->state = State::kOver;
  Status end = why;
  if (task->retries > 0) end.with("tries", task->tries);
  todo.ended.emplace_back(std::move(task), std::move(end));
}

// --- leases --------------------------------------------------------------------------------------

void LeaseQueue::runs(std::uint64_t number, NodeId node, TimePoint now) {
  Lease* const lease = find(number);
  if (lease == nullptr || lease->running) return;
  if (!std::exchange(lease->no_room, false)) {
    ask_for_ = std::min(2 * ask_for_, limits_.asked_max);
  }
  lease->running = true;
  lease->node = node;
  lease->idle_since = now;
  full_ = false;
  failures_ = start_failures_ = 0;
}

void LeaseQueue::has_no_room(std::uint64_t number) {
  Lease* const lease = find(number);
  if (lease == nullptr || lease->running) return;
  lease->no_room = true;
  ask_for_ = 1;
}

void LeaseQueue::closing(std::uint64_t number) {
  if (Lease* const lease = find(number)) lease->closing = true;
}

void LeaseQueue::lost(std::uint64_t number, const Status& why, bool refused, TimePoint now) {
  Lease* const found = find(number);
  if (found == nullptr) return;
  Lease lease = std::move(*found);
  leases_.erase(leases_.begin() + (found - leases_.data()));
  // From behind, so that they stand in their order again.
  while (!lease.at.empty() && !TROUPE_CANARY("forgets-tasks-of-the-dead")) {
    TaskPtr task = std::move(lease.at.back());
    lease.at.pop_back();
    lose_task(std::move(task), lease.at.empty(), why, later_);
  }
  if (lease.ending || lease.closing) return;
  trouble_ = why;
  if (lease.running) return;
  if (refused) return end_all_waiting(why);
  // Those that were asked for before the last failure have failed with it: their node has gone, or
  // its disk is full.
  if (number <= failed_to_) return;
  failed_to_ = next_lease_;
  ask_at_ = now + limits_.backoff * (1 << std::min(failures_++, kBackoffDoublingsMax));
  // While others run there is who does the tasks; and how a node ends says nothing of workers.
  if (running_leases() > 0 || why.code() == Code::kUnavailable) return;
  if (++start_failures_ < limits_.start_failures_max) return;
  start_failures_ = 0;
  end_all_waiting(why);
}

void LeaseQueue::end_all_waiting(const Status& why) {
  for (TaskPtr& task : waiting_) {
    if (take(*task)) later_.ended.emplace_back(std::move(task), why);
  }
  waiting_.clear();
}

std::vector<LeaseQueue::TaskPtr> LeaseQueue::take_all() {
  end_all_waiting(Status());
  std::vector<TaskPtr> taken;
  for (auto& [task, why] : std::exchange(later_.ended, {})) taken.push_back(std::move(task));
  return taken;
}

bool LeaseQueue::has_tasks(std::uint64_t number) {
  const Lease* const lease = find(number);
  return lease != nullptr && !lease->at.empty();
}

void LeaseQueue::give_up_idle() {
  for (Lease& lease : leases_) {
    if (!lease.at.empty() || lease.ending || waiting_count_ > 0) continue;
    lease.ending = true;
    later_.ends.push_back(lease.number);
  }
}

std::size_t LeaseQueue::running_leases() const {
  return static_cast<std::size_t>(
      std::count_if(leases_.begin(), leases_.end(), [](const Lease& l) { return l.open(); }));
}

std::size_t LeaseQueue::running() const {
  return static_cast<std::size_t>(
      std::count_if(leases_.begin(), leases_.end(), [](const Lease& l) { return !l.at.empty(); }));
}

bool LeaseQueue::starved() const {
  return waiting_count_ > 0 && std::any_of(leases_.begin(), leases_.end(),
                                           [](const Lease& l) { return l.no_room && !l.ending; });
}

// --- what follows --------------------------------------------------------------------------------

LeaseQueue::Todo LeaseQueue::plan(TimePoint now) {
  Todo todo = std::exchange(later_, Todo());
  next_.reset();
  end_late(now, todo);
  hand_out(now, todo);
  grow(now, todo);
  shrink(now, todo);
  return todo;
}

void LeaseQueue::look_at(TimePoint time) {
  if (!next_ || time < *next_) next_ = time;
}

void LeaseQueue::end_late(TimePoint now, Todo& todo) {
  if (waiting_count_ == 0) {
    waiting_.clear();
    first_end_.reset();
  }
  if (!first_end_) return;
  if (*first_end_ <= now) {
    first_end_.reset();
    std::erase_if(waiting_, [&](const TaskPtr& task) {
      if (task->state != State::kWaiting) return true;
      if (task->ends_by <= now) {
        (void)take(*task);
        todo.ended.emplace_back(
            task,
            Status(Code::kDeadlineExceeded,
                   trouble_.ok()
                       ? "the task waited for a worker until its deadline (TaskOptions::timeout)"
                       : "the task waited for a worker until its deadline "
                         "(TaskOptions::timeout); the last one was lost: " +
                             trouble_.to_string()));
        return true;
      }
      if (!first_end_ || task->ends_by < *first_end_) first_end_ = task->ends_by;
      return false;
    });
  }
  if (first_end_ && *first_end_ != TimePoint::max()) look_at(*first_end_);
}

std::size_t LeaseQueue::depth(const Lease& lease) const {
  if (lease.mean_us < 0 || lease.mean_us > us_of(limits_.latency)) return 1;
  if (lease.mean_us > us_of(limits_.short_task)) return 2;
  const double many = us_of(limits_.ahead) / std::max(lease.mean_us, 1.0);
  return std::clamp<std::size_t>(static_cast<std::size_t>(many), 1, limits_.at_lease_max);
}

bool LeaseQueue::has_room(const Lease& lease, const QueuedTask& task) const {
  if (!lease.open()) return false;
  if (lease.at.empty()) return true;
  // Beside others only what may run twice: how far the worker came is not known where it dies.
  return task.retries > 0 && !task.alone && !lease.at.back()->alone &&
         lease.at.size() < depth(lease);
}

// On the task's own node if there is room; else the one that has just had some; else an empty one;
// else who has fewest.
LeaseQueue::Lease* LeaseQueue::choose(const QueuedTask& task) {
  if (!full_ && !task.prefers.empty()) {
    if (Lease* const lease = choose_of(task, true)) return lease;
  }
  if (Lease* const lease = find(std::exchange(roomy_, 0))) {
    if (has_room(*lease, task)) {
      roomy_ = lease->number;
      return lease;
    }
  }
  if (full_) return nullptr;
  Lease* const best = choose_of(task, false);
  full_ = best == nullptr && task.retries > 0 && !task.alone;
  return best;
}

LeaseQueue::Lease* LeaseQueue::choose_of(const QueuedTask& task, bool on_its_node) {
  Lease* best = nullptr;
  for (Lease& lease : leases_) {
    if (!has_room(lease, task) || (on_its_node && lease.node != task.prefers)) continue;
    if (best == nullptr || lease.at.size() < best->at.size()) best = &lease;
    if (best->at.empty()) break;
  }
  return best;
}

void LeaseQueue::hand_out(TimePoint now, Todo& todo) {
  while (waiting_count_ > 0) {
    TaskPtr& front = waiting_.front();
    if (front->state == State::kWaiting) {
      Lease* const lease = choose(*front);
      if (lease == nullptr) return;
      front->state = State::kAtLease;
      front->lease = lease->number;
      --waiting_count_;
      ++at_leases_;
      if (lease->at.empty()) {
        lease->head_since = now;
        lease->head_waited = false;
      }
      lease->at.push_back(front);
      todo.sends.push_back(std::move(front));
    }
    waiting_.pop_front();
  }
}

void LeaseQueue::grow(TimePoint now, Todo& todo) {
  std::size_t asked = 0;
  bool no_room = false;
  double mean_us = -1;
  std::size_t running = 0;
  std::optional<TimePoint> longest;  // what runs now has begun
  for (const Lease& lease : leases_) {
    if (lease.ending || lease.closing) continue;
    if (lease.running) {
      ++running;
      mean_us = std::max(mean_us, lease.mean_us);
      if (lease.mean_us >= 0 && !lease.at.empty()) {
        mean_us = std::max(mean_us, us_of(now - lease.head_since));
        longest = longest ? std::min(*longest, lease.head_since) : lease.head_since;
      }
    } else {
      ++asked;
      no_room = no_room || lease.no_room;
    }
  }
  std::size_t wanted = std::min(waiting_count_, ask_for_);
  if (running > 0 && mean_us >= 0 &&
      mean_us * static_cast<double>(waiting_count_) / static_cast<double>(running) <
          us_of(limits_.worth_a_start)) {
    wanted = 0;
    // (Unless it turns out to take longer.)
    if (waiting_count_ > 0 && longest) look_at(*longest + limits_.worth_a_start * running);
  }
  // Of those that have no room one is enough.
  for (Lease& lease : leases_) {
    if (!no_room || asked <= std::max<std::size_t>(wanted, 1)) break;
    if (lease.running || lease.ending) continue;
    lease.ending = true;
    todo.ends.push_back(lease.number);
    --asked;
  }
  if (asked >= wanted) return;
  if (ask_at_ > now) return look_at(ask_at_);
  // Each for one of those that wait.
  auto task = waiting_.begin();
  for (; asked < wanted; ++asked) {
    Lease& lease = leases_.emplace_back();
    lease.number = ++next_lease_;
    lease.idle_since = now;
    todo.asks.emplace_back(lease.number, task == waiting_.end() ? NodeId() : (*task)->prefers);
    if (task != waiting_.end()) ++task;
  }
}

void LeaseQueue::shrink(TimePoint now, Todo& todo) {
  for (Lease& lease : leases_) {
    if (lease.ending || !lease.at.empty() || TROUPE_CANARY("keeps-idle-workers")) continue;
    const TimePoint patience_ends = lease.idle_since + limits_.idle_after;
    if (!lease.closing && (waiting_count_ > 0 || patience_ends > now)) {
      if (waiting_count_ == 0) look_at(patience_ends);
      continue;
    }
    lease.ending = true;
    todo.ends.push_back(lease.number);
  }
}

LeaseQueue::Lease* LeaseQueue::find(std::uint64_t number) {
  // (By number: they are made in that order.)
  const auto found =
      std::lower_bound(leases_.begin(), leases_.end(), number,
                       [](const Lease& lease, std::uint64_t n) { return lease.number < n; });
  return found == leases_.end() || found->number != number ? nullptr : &*found;
}

}  // namespace troupe::detail
