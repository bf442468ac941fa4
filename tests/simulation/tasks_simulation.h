#pragma once
// Tasks that are submitted, cancelled and late; workers that start, are refused, die, take long,
// and end. In one thread, all from one seed.
//
// Real: who decides which task goes where (actors/tasks/lease_queue.h). Simulated: the head's room,
// workers, and what they say, each in order.

#include <cstdint>
#include <string>

namespace troupe::simulation {

struct TasksOptions {
  std::uint64_t seed = 1;
  int tasks = 400;
  int faults = -1;     // of 1,000 tasks so many kill their worker; -1: some, by the seed
  std::string canary;  // canaries.h; empty: none
  bool trace = false;
};

struct TasksResult {
  std::string violation;  // what was wrong, as a sentence; empty: nothing
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::int64_t virtual_ms = 0;
  std::uint64_t submitted = 0;
  std::uint64_t begun = 0;
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t late = 0;
  std::uint64_t given_back = 0;
  std::uint64_t workers = 0;
  std::uint64_t deaths = 0;

  TasksResult& operator+=(const TasksResult& other);
};
TasksResult simulate_tasks(const TasksOptions& options);

}  // namespace troupe::simulation
