#include "tasks_simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/tasks/lease_queue.h"
#include "one_seed.h"

namespace troupe::simulation {
namespace {

using detail::LeaseQueue;
using detail::QueuedTask;
using namespace std::chrono_literals;

struct SimTask : QueuedTask {
  int number = 0;
  Duration takes{};
  int kills = 0;  // so many of its workers
  int begun = 0;
  int given_back = 0;
  bool given_up = false;
  bool ended = false;
};
using TaskPtr = std::shared_ptr<SimTask>;

// A worker: runs what it was sent, in that order.
struct Worker {
  std::uint64_t lease = 0;
  bool running = false;
  bool dead = false;
  bool draining = false;
  std::deque<TaskPtr> queue;
  TaskPtr current;
  std::uint64_t runs = 0;
  TimePoint says_at{};  // what it says comes in order
  TimePoint hears_at{};
};

class TasksWorld {
 public:
  TasksWorld(World& world, const TasksOptions& options, TasksResult& result)
      : world_(world), options_(options), result_(result), queue_(detail::LeaseLimits{}) {
    room_ = 1 + static_cast<int>(world_.random.below(5));
    kills_ = options.faults >= 0 ? options.faults : static_cast<int>(world_.random.below(4)) * 20;
    long_one_in_ = 2 + static_cast<int>(world_.random.below(60));
  }

  void run() {
    Duration at{};
    for (int i = 0; i < options_.tasks; ++i) {
      // Bursts, and times without any.
      at += world_.chance(40) ? world_.between(0, 900) : world_.between(0, 0.05);
      world_.timeline.after(at, [this, i] { submit(i); });
    }
    while (world_.timeline.step()) {
      require(world_.timeline.events() < 2'000'000, "it does not end");
    }
    for (const TaskPtr& task : tasks_) {
      require(task->ended, "task {} has not ended", task->number);
    }
    for (const auto& [lease, worker] : workers_) {
      require(worker->dead, "worker {} is left, with nothing to do", lease);
    }
    require(queue_.waiting() == 0 && queue_.at_leases() == 0, "{} tasks wait, {} are at leases",
            queue_.waiting(), queue_.at_leases());
  }

 private:
  using WorkerPtr = std::shared_ptr<Worker>;

  void submit(int number) {
    auto task = std::make_shared<SimTask>();
    task->number = number;
    task->retries = world_.chance(4) ? 0 : static_cast<std::uint32_t>(world_.random.below(4));
    task->takes = world_.chance(static_cast<std::uint64_t>(long_one_in_))
                      ? world_.between(1, 300)
                      : world_.between(0.001, 0.1);
    if (world_.random.below(1000) < static_cast<std::uint64_t>(kills_)) {
      task->kills = 1 + static_cast<int>(world_.random.below(4));
    }
    const Duration timeout = world_.chance(30) ? world_.between(1, 400) : Duration(1h);
    task->ends_by = world_.timeline.now() + timeout;
    task->alone = number % 17 == 3;  // as those that give streams
    tasks_.push_back(task);
    ++result_.submitted;
    queue_.submit(task);
    if (world_.chance(25)) {
      world_.timeline.after(world_.between(0, 40), [this, task] {
        if (task->ended) return;
        end(*task, "cancelled");
        ++result_.cancelled;
        queue_.drop(*task);
        if (const auto worker = workers_.find(task->lease); worker != workers_.end()) {
          hear(worker->second, [this, task, worker = worker->second] {
            std::erase(worker->queue, task);
            // Some look whether they were given up, some go on until their worker is ended.
            if (world_.chance(2)) task->given_up = true;
          });
        }
        go_on();
      });
    }
    go_on();
  }

  void end(SimTask& task, const char* how) {
    world_.note("task {} has ended: {}", task.number, how);
    require(!task.ended, "task {} has ended twice", task.number);
    task.ended = true;
  }

  void go_on() {
    for (;;) {
      LeaseQueue::Todo todo = queue_.plan(world_.timeline.now());
      if (todo.empty()) break;
      for (const auto& [task, why] : todo.ended) {
        const bool late = why.code() == Code::kDeadlineExceeded;
        ++(late ? result_.late : result_.failed);
        end(static_cast<SimTask&>(*task), late ? "late" : "failed");
      }
      for (const auto& task : todo.sends) send(std::static_pointer_cast<SimTask>(task));
      for (const auto& [lease, near] : todo.asks) ask(lease);
      for (const std::uint64_t lease : todo.ends) end_worker(lease);
    }
    const auto next = queue_.next();
    if (!next || (armed_ && *armed_ <= *next)) return;
    armed_ = next;
    world_.timeline.after(*next - world_.timeline.now(), [this, due = *next] {
      if (armed_ == due) armed_.reset();
      go_on();
    });
  }

  // --- the head's part

  void ask(std::uint64_t lease) {
    auto worker = std::make_shared<Worker>();
    worker->lease = lease;
    workers_.emplace(lease, worker);
    ++result_.workers;
    world_.timeline.after(world_.delay(), [this, worker] {
      if (worker->dead) return;
      place_.push_back(worker);
      place();
      if (!worker->running && !worker->dead) {
        say(worker, [this, lease = worker->lease] { queue_.has_no_room(lease); });
      }
    });
  }
  void place() {
    while (!place_.empty() && used_ < room_) {
      const WorkerPtr worker = place_.front();
      place_.pop_front();
      if (worker->dead) continue;
      ++used_;
      worker->running = true;
      world_.timeline.after(world_.between(2, 12), [this, worker] {
        if (worker->dead) return;
        if (kills_ > 0 && world_.chance(50)) return die(worker, "it does not start");
        say(worker,
            [this, lease = worker->lease] { queue_.runs(lease, NodeId(), world_.timeline.now()); });
      });
    }
  }
  void end_worker(std::uint64_t lease) {
    const WorkerPtr worker = workers_.at(lease);
    world_.timeline.after(world_.delay(), [this, worker] {
      if (worker->dead) return;
      worker->draining = true;
      if (!worker->running || (!worker->current && worker->queue.empty())) {
        return die(worker, "it is not needed");
      }
      world_.timeline.after(5s, [this, worker] { die(worker, "it does not end"); });
    });
  }
  void die(const WorkerPtr& worker, const char* why) {
    if (std::exchange(worker->dead, true)) return;
    world_.note("worker {} dies: {}", worker->lease, why);
    if (worker->running) {
      --used_;
      ++result_.deaths;
    }
    say(worker, [this, lease = worker->lease] {
      queue_.lost(lease, Status(Code::kActorDied, "the worker died"), false, world_.timeline.now());
    });
    place();
  }

  // --- a worker's part

  // In order.
  void say(const WorkerPtr& worker, std::function<void()> what) {
    worker->says_at = std::max(worker->says_at, world_.timeline.now() + world_.delay());
    world_.timeline.after(worker->says_at - world_.timeline.now(), [this, what = std::move(what)] {
      what();
      go_on();
    });
  }
  void hear(const WorkerPtr& worker, std::function<void()> what) {
    worker->hears_at = std::max(worker->hears_at, world_.timeline.now() + world_.delay());
    world_.timeline.after(worker->hears_at - world_.timeline.now(), std::move(what));
  }

  void send(TaskPtr task) {
    const WorkerPtr worker = workers_.at(task->lease);
    hear(worker, [this, worker, task] {
      if (worker->dead) return;
      worker->queue.push_back(task);
      run_next(worker);
    });
  }
  void run_next(const WorkerPtr& worker) {
    if (worker->dead || worker->current) return;
    if (worker->queue.empty()) {
      if (worker->draining) die(worker, "it has done all");
      return;
    }
    const TaskPtr task = worker->current = worker->queue.front();
    worker->queue.pop_front();
    ++task->begun;
    ++result_.begun;
    world_.note("worker {} begins task {}", worker->lease, task->number);
    require(task->begun <= 1 || task->retries > 0, "task {} runs twice, and may run once only",
            task->number);
    require(task->begun <= static_cast<int>(task->retries) + 1, "task {} runs {} times, {} tries",
            task->number, task->begun, task->retries + 1);
    const std::uint64_t number = ++worker->runs;
    if (task->kills > 0) {
      --task->kills;
      world_.timeline.after(world_.between(0, 1), [this, worker] { die(worker, "by its task"); });
      return;
    }
    // What waits behind a long one is given back.
    look(worker, number);
    world_.timeline.after(task->takes, [this, worker, task] {
      if (worker->dead || task->given_up) return;
      worker->current.reset();
      say(worker, [this, task, lease = worker->lease] {
        if (!queue_.answered(*task, lease, world_.timeline.now())) return;
        ++result_.answered;
        end(*task, "answered");
      });
      run_next(worker);
    });
  }
  void look(const WorkerPtr& worker, std::uint64_t number) {
    world_.timeline.after(5ms, [this, worker, number] {
      if (worker->dead || !worker->current || worker->runs != number) return;
      for (const TaskPtr& task : std::exchange(worker->queue, {})) {
        ++result_.given_back;
        require(++task->given_back < 20, "task {} is given back again and again", task->number);
        say(worker, [this, task, lease = worker->lease] {
          (void)queue_.given_back(*task, lease, world_.timeline.now());
        });
      }
      look(worker, number);
    });
  }

  World& world_;
  const TasksOptions& options_;
  TasksResult& result_;
  LeaseQueue queue_;
  int room_ = 1;
  int used_ = 0;
  int kills_ = 0;
  int long_one_in_ = 1;
  std::vector<TaskPtr> tasks_;
  std::map<std::uint64_t, WorkerPtr> workers_;
  std::deque<WorkerPtr> place_;
  std::optional<TimePoint> armed_;
};

}  // namespace

TasksResult& TasksResult::operator+=(const TasksResult& other) {
  events += other.events;
  virtual_ms += other.virtual_ms;
  submitted += other.submitted;
  begun += other.begun;
  answered += other.answered;
  failed += other.failed;
  cancelled += other.cancelled;
  late += other.late;
  given_back += other.given_back;
  workers += other.workers;
  deaths += other.deaths;
  return *this;
}

TasksResult simulate_tasks(const TasksOptions& options) {
  return run_seed<TasksResult>(options, options.canary, [&](World& world, TasksResult& result) {
    TasksWorld(world, options, result).run();
  });
}

}  // namespace troupe::simulation
