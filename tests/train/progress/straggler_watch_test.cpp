#include "train/progress/straggler_watch.h"

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/train/progress/progress_helpers.h"

namespace troupe::train {
namespace {

// Steps of a rank as its recorder sums them up.
struct StragglerScene {
  explicit StragglerScene(int world) : watch(world), memories(static_cast<std::size_t>(world)) {
    for (RecordMemory& memory : memories) recorders.emplace_back(memory.record());
    for (int i = 0; i < world; ++i) look(i);
  }
  void look(int rank) {
    for (auto& report : watch.add(rank, memories[static_cast<std::size_t>(rank)].read()))
      reports.push_back(report.to_string());
  }
  // `of(rank, step)`: what a step takes.
  void run(int count, const std::function<StepSeconds(int, std::int64_t)>& of) {
    for (int i = 0; i < count; ++i) {
      ++step;
      for (std::size_t r = 0; r < recorders.size(); ++r) {
        recorders[r].step_seconds(step, of(static_cast<int>(r), step));
        look(static_cast<int>(r));
      }
    }
  }
  StragglerWatch watch;
  std::vector<RecordMemory> memories;
  std::deque<ProgressRecorder> recorders;
  std::int64_t step = 0;
  std::vector<std::string> reports;
};

StepSeconds usual(int rank, std::int64_t step) {
  // Some noise.
  const double noise =
      1 + 0.1 * static_cast<double>((static_cast<std::int64_t>(rank) * 7 + step) % 5);
  return {.data = 0.001, .forward = 0.1 * noise, .backward = 0.2 * noise, .communication = 0.05};
}

TEST_CASE("Totals of steps lie in the record") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  recorder.step_seconds(1, {.data = 0.25, .stall = 1});
  recorder.step_seconds(2, {.data = 0.5, .backward = 2});
  const ProgressSnapshot snapshot = memory.read();
  CHECK(snapshot.seconds == StepSeconds{.data = 0.75, .backward = 2, .stall = 1});
  CHECK(snapshot.timed_steps == 2);
  CHECK(snapshot.timed_step == 2);
}

TEST_CASE("A rank that is slower in a phase is told once, and once that it is over") {
  StragglerScene scene(4);
  scene.run(40, usual);
  CHECK(scene.reports.empty());
  scene.run(60, [](int rank, std::int64_t step) {
    StepSeconds seconds = usual(rank, step);
    if (rank == 2) seconds.backward *= 2.1;
    // The others wait for it: that does not make them slow.
    if (rank != 2) seconds.communication += 0.2;
    return seconds;
  });
  CHECK(scene.reports == std::vector<std::string>{
                             "rank 2 is 2.1 x slower than the others in backward since step 41"});
  scene.reports.clear();
  scene.run(60, usual);
  CHECK(scene.reports ==
        std::vector<std::string>{"rank 2 is as fast as the others again since step 101"});
}

TEST_CASE("Two of two: the slower is compared with the other") {
  StragglerScene scene(2);
  scene.run(30, [](int rank, std::int64_t) {
    return StepSeconds{.forward = rank == 0 ? 0.3 : 0.1, .stall = rank == 0 ? 0.2 : 0.0};
  });
  CHECK(scene.reports ==
        std::vector<std::string>{"rank 0 is 3.0 x slower than the others in forward, over 1000 x "
                                 "slower than the others in stall since step 1"});
}

TEST_CASE("What is a small share of a step, or one long step, or one rank alone, is no straggler") {
  StragglerScene small(3);
  small.run(100, [](int rank, std::int64_t step) {
    StepSeconds seconds = usual(rank, step);
    if (rank == 1) seconds.data *= 10;
    return seconds;
  });
  CHECK(small.reports.empty());
  StragglerScene once(3);
  once.run(100, [](int rank, std::int64_t step) {
    StepSeconds seconds = usual(rank, step);
    if (rank == 1 && step == 55) seconds.forward += 10;
    return seconds;
  });
  CHECK(once.reports.empty());
  StragglerScene alone(1);
  alone.run(100, usual);
  CHECK(alone.reports.empty());
}

TEST_CASE("A rank whose record is new goes on being compared") {
  StragglerScene scene(3);
  const auto slow = [](int rank, std::int64_t step) {
    StepSeconds seconds = usual(rank, step);
    if (rank == 0) seconds.forward *= 3;
    return seconds;
  };
  scene.run(35, usual);
  scene.memories[0] = RecordMemory();
  // The recorder holds the old memory: a new one takes the new.
  std::deque<ProgressRecorder> recorders;
  for (RecordMemory& memory : scene.memories) recorders.emplace_back(memory.record());
  scene.recorders.swap(recorders);
  scene.run(60, slow);
  REQUIRE(scene.reports.size() == 1);
  CHECK(scene.reports[0].starts_with("rank 0 is 3."));
  CHECK(scene.reports[0].find("in forward since step") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
