// Runs whose ranks become more and fewer: the state of one world becomes that of the next.
#include "tests/train/trainer/judged_fixture.h"

namespace troupe::train::tests {
namespace {

// Machine m has one rank, wherever that stands in a world; its memory in each world is its own.
class Machines {
 public:
  Machines(std::string output_dir, const RunChange& change)
      : output_dir_(std::move(output_dir)), change_(change) {}

  // A generation in a world of these machines, which goes on from what the worlds before left. All
  // ranks leave after step `pause_after`; -1: they train to the end.
  std::vector<Status> run(const std::vector<int>& machines, std::int64_t pause_after) {
    const auto ranks = begin(machines, pause_after);
    const auto ended = run_generation(*ranks, ++generation_);
    loaded = ranks->observers[0].load;
    return ended;
  }
  // The same to the end, but that the machine is lost at that point of its run. How many points
  // it came to.
  std::int64_t run_and_lose(const std::vector<int>& machines, int lost, std::int64_t point) {
    const auto ranks = begin(machines, -1);
    std::vector<Killer> killers(machines.size());
    const auto rank =
        static_cast<std::size_t>(std::ranges::find(machines, lost) - machines.begin());
    killers[rank].kill_at = point;
    const auto died = run_killed(*ranks, ++generation_, killers);
    if (died[rank]) lose(lost);
    return killers[rank].count;
  }
  // What is left of the world before saves a checkpoint, and all leave.
  std::vector<Status> save(const std::vector<int>& machines) {
    const auto ranks = begin(machines, -1);
    ++generation_;
    return run_ranks(*ranks, generation_, [&](std::size_t rank, const RankWorld& world) {
      return run_rank(*ranks, rank, world, generation_, GenerationPurpose::kSave);
    });
  }
  // In a world of these machines a step stands, as their next plan says: whether each holds its
  // state of the first world yet.
  std::vector<bool> hold_first(const std::vector<int>& machines) {
    const auto ranks = begin(machines, -1);
    for (auto& run : ranks->runs) REQUIRE(run->come_from({}).ok());
    std::vector<bool> held;
    for (const int machine : machines)
      held.push_back(worlds_.front().memory.at(machine)->take("state").value().has_value());
    return held;
  }
  void lose(int machine) {
    for (World& world : worlds_) world.memory.erase(machine);
  }

  TrainerLoaded loaded;

 private:
  struct World {
    std::vector<int> machines;
    std::map<int, std::unique_ptr<ProcessMemory>> memory;  // by machine
  };

  std::unique_ptr<Ranks> begin(const std::vector<int>& machines, std::int64_t pause_after) {
    worlds_.push_back({machines, {}});
    World& world = worlds_.back();
    RunChange change = change_;
    change.world = static_cast<int>(machines.size());
    for (const int machine : machines) world.memory[machine] = std::make_unique<ProcessMemory>();
    auto made = std::make_unique<Ranks>();
    Ranks& ranks = *made;
    ranks.observers.resize(machines.size());
    ranks.runs.resize(machines.size());
    for (std::size_t rank = 0; rank < machines.size(); ++rank) {
      ranks.progress.push_back(std::make_unique<ProgressMemory>());
      ranks.recorders.push_back(
          std::make_unique<ProgressRecorder>(ranks.progress.back()->record()));
      ranks.machines.push_back(fmt::format("machine {}", machines[rank]));
      ranks.observers[rank].pause_after = pause_after;
      start(ranks, machines, rank, change);
    }
    return made;
  }

  void start(Ranks& ranks, const std::vector<int>& machines, std::size_t rank,
             const RunChange& change) {
    RunBundle bundle = bundle_for(output_dir_, change.batch, change.accumulation);
    if (change.change) change.change(bundle);
    auto run = TrainingRun::create(ranks.files, ranks.clock, Logger::discard(), std::move(bundle),
                                   {.run = "test",
                                    .world_size = change.world,
                                    .batch_world_size = change_.world,
                                    .ranks_per_node = 1,
                                    .threads = change.threads},
                                   *ranks.recorders[rank]);
    REQUIRE_MESSAGE(run.ok(), run.status().to_string());
    World& world = worlds_.back();
    REQUIRE((*run)->take_rank(static_cast<int>(rank), *world.memory.at(machines[rank])).ok());
    std::vector<FormerRanks> former;
    for (std::size_t i = worlds_.size() - 1; i-- > 0;) {
      World& before = worlds_[i];
      FormerRanks told{.world_size = static_cast<int>(before.machines.size())};
      for (const int machine : machines) {
        const auto at = std::ranges::find(before.machines, machine);
        const bool there = at != before.machines.end() && before.memory.contains(machine);
        told.ranks.push_back(there ? static_cast<int>(at - before.machines.begin()) : -1);
      }
      if (told.ranks[rank] >= 0) told.memory = before.memory.at(machines[rank]).get();
      former.push_back(std::move(told));
    }
    REQUIRE((*run)->come_from(std::move(former)).ok());
    ranks.runs[rank] = std::move(*run);
  }

  const std::string output_dir_;
  const RunChange change_;
  std::vector<World> worlds_;
  std::uint64_t generation_ = 0;
};

RunChange elastic_change(const std::string& strategy, const std::string& optim = "adamw_torch") {
  return {.world = 4, .batch = 1, .accumulation = 1, .change = [=](RunBundle& bundle) {
            auto& config = bundle.config;
            config.optimizer.use_badam = optim == "badam";
            config.optimizer.badam_switch_interval = 4;  // worlds end in the midst of a turn
            if (!config.optimizer.use_badam) config.training.optim = optim;
            config.sharding.strategy = strategy;
            config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
            config.training.max_steps = 12;
            config.training.logging_steps = 3;
            config.training.save_steps = 100;
          }};
}

// Loss and gradient norm of each step, which do not depend on the number of ranks.
std::vector<std::pair<double, double>> losses(const std::string& output_dir) {
  std::vector<std::pair<double, double>> all;
  for (const StepRecord& step : steps(output_dir)) all.emplace_back(step.loss, step.grad_norm);
  return all;
}

void check_paused(const std::vector<Status>& ended, std::int64_t step) {
  for (const Status& status : ended) {
    CAPTURE(status.to_string());
    CHECK(paused_step_of(status) == step);
  }
}

TEST_CASE("what a plan does not name any more is given back, whoever ended the first step") {
  troupe::tests::TemporaryDirectory dir;
  Machines machines(dir.file("run"), elastic_change("zero3"));
  check_paused(machines.run({0, 1, 2, 3}, 2), 2);
  CHECK(machines.hold_first({0, 2}) == std::vector<bool>{false, false});
}

TEST_CASE("worlds of 4, 2, 3 and 4 machines in one run: the bits of an undisturbed one") {
  for (const auto& [strategy, optim] : {std::pair{"ddp", "adamw_torch"},
                                        {"zero1", "adamw_torch"},
                                        {"zero2", "adafactor"},
                                        {"zero3", "adamw_8bit"},
                                        {"zero2", "badam"}}) {
    CAPTURE(strategy);
    troupe::tests::TemporaryDirectory dir;
    const RunChange change = elastic_change(strategy, optim);
    train(dir.file("oracle"), change);
    Machines machines(dir.file("run"), change);
    check_paused(machines.run({0, 1, 2, 3}, 2), 2);
    // Two machines that are not each other's buddies leave.
    check_paused(machines.run({0, 2}, 5), 5);
    CHECK(machines.loaded.how == LoadedFrom::kMemory);
    CHECK(machines.loaded.step == 2);
    check_paused(machines.run({0, 1, 2}, 8), 8);
    for (const Status& status : machines.run({0, 1, 2, 3}, -1))
      CHECK_MESSAGE(status.ok(), status.to_string());
    CHECK(machines.loaded.step == 8);
    CHECK(losses(dir.file("run")) == losses(dir.file("oracle")));
    CHECK(file(dir.file("run") + "/model.safetensors") ==
          file(dir.file("oracle") + "/model.safetensors"));
    const auto log = [](const std::string& folder) {
      PosixFileSystem files;
      const auto state = parse_trainer_state(file(folder + "/trainer_state.json"), "test").value();
      std::vector<std::string> lines;
      for (const auto& entry : state.log_history) {
        if (const auto loss = json::find(entry, "loss"))
          lines.push_back(json::write(*json::find(entry, "step")) + json::write(*loss));
      }
      return lines;
    };
    CHECK(log(dir.file("run")) == log(dir.file("oracle")));
  }
}

TEST_CASE("a loss that is divided by ranks, or asks what other samples have, is any world's") {
  const RunChange anchored{
      .world = 4, .batch = 1, .accumulation = 1, .change = [](RunBundle& bundle) {
        elastic_change("ddp").change(bundle);
        bundle.config.method.stage = TrainingStage::kSupervised;
        bundle.config.method.use_asft_loss = true;
        bundle.trainables.reference = Reference::kBase;
      }};
  RunChange judged = judged_change({.stage = TrainingStage::kKto, .world = 4});
  judged.batch = 1;
  judged.accumulation = 2;
  judged.change = [change = judged.change](RunBundle& bundle) {
    change(bundle);
    bundle.config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
    bundle.config.training.max_steps = 8;
  };
  for (const RunChange& change : {anchored, judged}) {
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("oracle"), change);
    Machines machines(dir.file("run"), change);
    check_paused(machines.run({0, 1, 2, 3}, 2), 2);
    check_paused(machines.run({0, 1, 2}, 4), 4);
    check_paused(machines.run({0}, 6), 6);
    for (const Status& status : machines.run({0, 2}, -1))
      CHECK_MESSAGE(status.ok(), status.to_string());
    CHECK(losses(dir.file("run")) == losses(dir.file("oracle")));
  }
}

TEST_CASE("a machine lost and nothing in its place: those that are left go on, and the bits stay") {
  for (const char* strategy : {"ddp", "zero1", "zero3"}) {
    for (const int lost : {1, 3}) {
      CAPTURE(strategy);
      CAPTURE(lost);
      troupe::tests::TemporaryDirectory dir;
      const RunChange change = elastic_change(strategy);
      train(dir.file("oracle"), change);
      Machines machines(dir.file("run"), change);
      machines.run({0, 1, 2, 3}, 4);
      machines.lose(lost);
      std::vector<int> left{0, 1, 2, 3};
      std::erase(left, lost);
      for (const Status& status : machines.run(left, -1))
        CHECK_MESSAGE(status.ok(), status.to_string());
      CHECK(machines.loaded.how == LoadedFrom::kMemory);
      CHECK(machines.loaded.step == 4);
      CHECK(losses(dir.file("run")) == losses(dir.file("oracle")));
      CHECK(file(dir.file("run") + "/model.safetensors") ==
            file(dir.file("oracle") + "/model.safetensors"));
    }
  }
}

TEST_CASE(
    "a machine lost at any point of a hand-over, and of the steps after it: nothing is lost") {
  for (const char* strategy : {"ddp", "zero1", "zero3"}) {
    CAPTURE(strategy);
    troupe::tests::TemporaryDirectory oracle;
    const RunChange change = elastic_change(strategy);
    train(oracle.file("out"), change);
    std::int64_t points = 0;
    {
      troupe::tests::TemporaryDirectory dir;
      Machines machines(dir.file("run"), change);
      machines.run({0, 1, 2, 3}, 4);
      points = machines.run_and_lose({0, 1, 2}, 1, -1);
    }
    // Of eight steps the hand-over and the first ones.
    const std::int64_t stride = std::getenv("TROUPE_EVERY_POINT") ? 1 : points / 16 | 1;
    int turn = 0;
    for (std::int64_t point = 1; point < points / 4; point += stride, ++turn) {
      CAPTURE(point);
      troupe::tests::TemporaryDirectory dir;
      Machines machines(dir.file("run"), change);
      machines.run({0, 1, 2, 3}, 4);
      // Machine 3 leaves; one of the others is lost, and it comes back with what it holds.
      const int lost = turn % 3;
      machines.run_and_lose({0, 1, 2}, lost, point);
      std::vector<int> left{0, 1, 2, 3};
      std::erase(left, lost);
      for (const Status& status : machines.run(left, -1))
        REQUIRE_MESSAGE(status.ok(), status.to_string());
      CHECK(machines.loaded.how == LoadedFrom::kMemory);
      CHECK(machines.loaded.step >= 4);
      CHECK(losses(dir.file("run")) == losses(oracle.file("out")));
      CHECK(file(dir.file("run/model.safetensors")) == file(oracle.file("out/model.safetensors")));
    }
  }
}

TEST_CASE("a machine is lost and the run is told to stop: those that are left save what it held") {
  for (const char* strategy : {"ddp", "zero3"}) {
    CAPTURE(strategy);
    troupe::tests::TemporaryDirectory dir;
    RunChange change = elastic_change(strategy);
    Machines machines(dir.file("run"), change);
    machines.run({0, 1, 2}, 4);
    machines.lose(1);
    for (const Status& status : machines.save({0, 2})) CHECK(saved_step_of(status) == 4);
    // Another run goes on from it, to the undisturbed end.
    train(dir.file("oracle"), change);
    CHECK(file(dir.file("run/checkpoint-4/trainer_state.json")) != "(absent)");
  }
}

}  // namespace
}  // namespace troupe::train::tests
