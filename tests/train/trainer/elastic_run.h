#pragma once
// A run of machines that come, leave and are lost, as its state machine sees it.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/run_state.h"

namespace troupe::train::run_state_test {

using Commands = std::vector<RunCommand>;

// Up to three machines of two trainers each; machine m has the trainers 2m and 2m + 1.
class ElasticRun {
 public:
  explicit ElasticRun(std::vector<int> first, int machines_min = 1,
                      std::optional<int> restarts_max = {})
      : settings_{.world_size = 6,
                  .restarts_max = restarts_max,
                  .ranks_per_machine = 2,
                  .machines_min = machines_min,
                  .first_machines = first},
        run(settings_) {
    tell(TrainersPlaced{});
    for (const int machine : first) begun = come_on_new_node(machine);
  }

  template <typename Input>
  Commands tell(Input input) {
    return run.apply(input, now);
  }
  // Both of its trainers, with a process that is newer than any before.
  Commands come_on_new_node(int machine) {
    nodes_[machine] = fmt::format("n{}-{}", machine, incarnation_);
    return come_again(machine);
  }
  // The same where it was before.
  Commands come_again(int machine) {
    ++incarnation_;
    Commands all = tell(TrainerAlive{2 * machine, incarnation_, name(machine)});
    for (auto& command : tell(TrainerAlive{2 * machine + 1, incarnation_, name(machine)}))
      all.push_back(std::move(command));
    return all;
  }
  Commands die(int machine) {
    Commands all = tell(TrainerDied{2 * machine, incarnation_, name(machine), killed()});
    for (auto& command : tell(TrainerDied{2 * machine + 1, incarnation_, name(machine), killed()}))
      all.push_back(std::move(command));
    return all;
  }
  // No node that is there can take its trainers.
  void nowhere(int machine) {
    for (const int i : {0, 1}) tell(TrainerWaiting{2 * machine + i, "waits for a node"});
  }
  // The ranks of the present generation that run leave it.
  template <typename Leave>
  Commands all_leave(Leave leave) {
    Commands all;
    for (const int rank : run.running_ranks()) {
      for (auto& command : run.apply(leave(rank), now)) all.push_back(std::move(command));
    }
    return all;
  }
  Commands all_pause(std::int64_t step) {
    tell(StepFinished{run.generation(), step});
    return all_leave([&](int rank) { return TrainerPaused{rank, run.generation(), step}; });
  }
  Commands all_stop() {
    return all_leave([&](int rank) {
      return TrainerStopped{rank, run.generation(), error(Code::kAborted, "peer")};
    });
  }
  Commands later(Duration time) {
    now += time;
    return tell(TimePassed{});
  }
  std::vector<int> trainers() const {
    const World world = run.world();
    return {world.trainers.begin(), world.trainers.end()};
  }

 private:
  const std::string& name(int machine) { return nodes_[machine]; }
  const RunSettings settings_;
  std::uint64_t incarnation_ = 0;
  std::map<int, std::string> nodes_;  // by machine

 public:
  RunState run;
  TimePoint now{};
  Commands begun;
};

inline void check_resize(const Commands& commands, std::int64_t world_size,
                         const std::string& cause) {
  const auto* resize = record(commands, "resize");
  REQUIRE(resize);
  CHECK(std::ssize(resize->world.value().trainers) == world_size);
  CHECK(resize->cause == cause);
}

}  // namespace troupe::train::run_state_test
