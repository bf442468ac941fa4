// Ranks that die at any point of a run and go on from the memory that survives them.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "tests/train/trainer/run_fixture.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/training_state.h"

namespace troupe::train::tests {
namespace {

struct World {
  std::string strategy;
  int ranks = 2;
  std::int64_t replicate = 0, shard = 0;
  int devices = 0;  // of the tests' GPU; 0: on the CPU
  OffloadChoice offload = OffloadChoice::kNone;
  bool pure_bf16 = false;
  int machines = 1;  // that have equal numbers of ranks
  std::string optim = "adamw_torch";
};

RunChange change_of(const World& world) {
  return {.world = world.ranks,
          .batch = 1,
          .accumulation = 2,
          .change =
              [world](RunBundle& bundle) {
                bundle.config.sharding.strategy = world.strategy;
                bundle.config.sharding.mesh_replicate = world.replicate;
                bundle.config.sharding.mesh_shard = world.shard;
                bundle.config.sharding.offload = world.offload;
                if (world.pure_bf16)
                  bundle.config.model.compute = bundle.config.model.state = Precision::kBfloat16;
                auto& method = bundle.config.optimizer;
                method.use_muon = world.optim == "muon";
                method.use_badam = world.optim == "badam";
                method.badam_switch_interval = 2;
                if (!method.use_muon && !method.use_badam)
                  bundle.config.training.optim = world.optim;
                bundle.config.training.max_steps = 4;
                bundle.config.training.logging_steps = 3;
                bundle.config.training.save_steps = 2;
                // A follow-up of collectives: an evaluation, then the start of a save.
                TokenDataset held_out(TokenDataset::Kind::kPretrain, 0);
                for (std::int64_t i = 0; i < 6; ++i)
                  held_out.append(std::vector<TokenId>(bundle.dataset.ids(i).begin(),
                                                       bundle.dataset.ids(i).end()));
                bundle.eval = std::move(held_out);
                bundle.config.evaluation.strategy = IntervalStrategy::kSteps;
                bundle.config.evaluation.eval_steps = 2;
                bundle.config.evaluation.load_best_model_at_end = world.strategy == "zero1";
              },
          .devices = world.devices};
}

std::unique_ptr<Ranks> make_ranks_of(const std::string& output_dir, const World& world) {
  auto ranks = make_ranks(output_dir, change_of(world));
  for (int rank = 0; rank < world.ranks; ++rank)
    ranks->machines.push_back(fmt::format("machine {}", rank * world.machines / world.ranks));
  return ranks;
}

struct Oracle {
  std::string model, steps, state;
  std::vector<std::string> history;
  std::vector<std::int64_t> points;  // by rank
};

// trainer_state.json's log_history without what differs from run to run.
std::vector<std::string> history_of(const std::string& output_dir) {
  auto state = parse_trainer_state(file(output_dir + "/trainer_state.json"), "trainer_state.json");
  REQUIRE(state.ok());
  std::vector<std::string> entries;
  for (const json::Value& entry : state->log_history) {
    json::Object kept;
    for (const char* key : {"step", "loss", "grad_norm", "eval_loss", "epoch"}) {
      if (const auto* value = json::find(entry, key)) kept[key] = *value;
    }
    entries.push_back(json::write(kept));
  }
  return entries;
}

Oracle undisturbed(const std::string& output_dir, const World& world) {
  auto ranks = make_ranks_of(output_dir, world);
  std::vector<Killer> killers(static_cast<std::size_t>(world.ranks));
  for (const bool died : run_killed(*ranks, 1, killers)) REQUIRE_FALSE(died);
  Oracle oracle{file(output_dir + "/model.safetensors"),
                step_lines(output_dir),
                file(output_dir + "/checkpoint-4/model.safetensors"),
                history_of(output_dir),
                {}};
  REQUIRE(oracle.model.size() > 1000);
  for (const Killer& killer : killers) {
    oracle.points.push_back(killer.count);
    for (const char* stage :
         {"load", "begin", "data", "forward", "backward", "communication", "norm", "prepared",
          "vote", "committed", "optimizer", "publish", "finished", "checkpoint", "finish"}) {
      CHECK_MESSAGE(killer.stages.contains(stage), stage);
    }
  }
  return oracle;
}

// Kills `ranks` at their points `at`, then lets new processes go on: with what those before them
// left, or, with `machines`, without.
void check_kill(const World& world, const Oracle& oracle, const std::vector<std::int64_t>& at,
                bool machines = false) {
  troupe::tests::TemporaryDirectory dir;
  const RunChange change = change_of(world);
  auto ranks = make_ranks_of(dir.file("out"), world);
  std::vector<Killer> killers(at.size());
  for (std::size_t rank = 0; rank < at.size(); ++rank) killers[rank].kill_at = at[rank];
  const auto died = run_killed(*ranks, 1, killers);
  bool loaded = true;
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    // Before everybody's state is complete there is nothing to go on from.
    loaded = loaded && ranks->observers[rank].loaded_step >= 0;
    if (!died[rank]) continue;
    if (machines) ranks->memories[rank] = std::make_unique<ProcessMemory>();
    start_rank(*ranks, static_cast<int>(rank), dir.file("out"), change);
  }
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  for (std::size_t rank = 0; rank < at.size() && loaded; ++rank) {
    const TrainerLoaded& load = ranks->observers[rank].load;
    const bool copies = machines && died[rank];
    CHECK(load.how == (copies ? LoadedFrom::kReplica : LoadedFrom::kMemory));
    CHECK(load.reason.empty() != copies);
  }
  CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
  CHECK(file(dir.file("out/checkpoint-4/model.safetensors")) == oracle.state);
  CHECK(step_lines(dir.file("out")) == oracle.steps);
  CHECK(history_of(dir.file("out")) == oracle.history);
}

bool at_every_point() { return std::getenv("TROUPE_EVERY_POINT") != nullptr; }

// From one point of those that are struck to the next: about `count` of them, or, with
// TROUPE_EVERY_POINT in the environment, all.
std::int64_t stride_of(const Oracle& oracle, std::int64_t count) {
  if (at_every_point()) return 1;
  // It has nothing in common with the rhythm of steps and units.
  return oracle.points[0] / count | 1;
}

TEST_CASE("a rank killed at any point: no step is lost, and the bits are the same") {
  const std::vector<World> worlds = {{"ddp"}, {"zero1"}, {"zero2"}, {"zero3"}, {"hsdp", 4, 2, 2}};
  for (const World& world : worlds) {
    CAPTURE(world.strategy);
    troupe::tests::TemporaryDirectory dir;
    const Oracle oracle = undisturbed(dir.file("oracle"), world);
    const int last = world.ranks - 1;
    const std::int64_t stride = stride_of(oracle, 7);
    int turn = 0;
    for (std::int64_t point = 1 + stride / 2; point < oracle.points[0]; point += stride, ++turn) {
      CAPTURE(point);
      std::vector<std::int64_t> at(static_cast<std::size_t>(world.ranks), -1);
      if (turn % 3 != 1) at[0] = point;
      if (turn % 3 != 0) at[static_cast<std::size_t>(last)] = point;
      check_kill(world, oracle, at);
    }
  }
}

TEST_CASE("a machine lost at any point: where another holds the same, no step is lost either") {
  for (const World& world : std::vector<World>{{"ddp", 3}, {"hsdp", 4, 2, 2}}) {
    CAPTURE(world.strategy);
    troupe::tests::TemporaryDirectory dir;
    const Oracle oracle = undisturbed(dir.file("oracle"), world);
    const std::int64_t stride = stride_of(oracle, 6);
    int turn = 0;
    for (std::int64_t point = 1 + stride / 2; point < oracle.points[0]; point += stride, ++turn) {
      CAPTURE(point);
      // One or two ranks, rank 0 among them or not.
      std::vector<std::int64_t> at(static_cast<std::size_t>(world.ranks), -1);
      if (turn % 3 != 1) at[0] = point;
      if (turn % 3 != 0) at[static_cast<std::size_t>(world.ranks - 1)] = point;
      check_kill(world, oracle, at, true);
    }
  }
}

TEST_CASE("a machine lost at any point: where a buddy keeps a copy, no step is lost either") {
  for (const World& world :
       std::vector<World>{{.strategy = "zero1", .ranks = 2, .machines = 2},
                          {.strategy = "zero2", .ranks = 3, .machines = 3},
                          {.strategy = "zero3", .ranks = 2, .machines = 2},
                          {.strategy = "zero3", .ranks = 3, .pure_bf16 = true, .machines = 3},
                          {.strategy = "zero2", .ranks = 4, .machines = 2}}) {
    CAPTURE(world.strategy);
    CAPTURE(world.ranks);
    troupe::tests::TemporaryDirectory dir;
    const Oracle oracle = undisturbed(dir.file("oracle"), world);
    World alone = world;
    alone.machines = 1;
    CHECK(undisturbed(dir.file("alone"), alone).model == oracle.model);
    const std::int64_t stride = stride_of(oracle, 6);
    int turn = 0;
    for (std::int64_t point = 1 + stride / 2; point < oracle.points[0]; point += stride, ++turn) {
      CAPTURE(point);
      std::vector<std::int64_t> at(static_cast<std::size_t>(world.ranks), -1);
      // All ranks of a machine, not at the same point.
      const int here = world.ranks / world.machines;
      const int first = turn % 2 == 0 ? 0 : world.ranks - here;
      for (int i = 0; i < here; ++i)
        at[static_cast<std::size_t>(first + i)] = point + (turn % 3 == 0 ? i : -i * stride / 3);
      check_kill(world, oracle, at, true);
    }
  }
}

TEST_CASE("the same with optimizers of blocks, whole tensors and one layer, of a rank, a machine") {
  for (const char* optim : {"adamw_8bit", "muon", "badam"}) {
    CAPTURE(optim);
    const World world{.strategy = "zero3", .ranks = 2, .machines = 2, .optim = optim};
    troupe::tests::TemporaryDirectory dir;
    const Oracle oracle = undisturbed(dir.file("oracle"), world);
    const std::int64_t stride = stride_of(oracle, 3);
    int turn = 0;
    for (std::int64_t point = 1 + stride / 2; point < oracle.points[0]; point += stride, ++turn) {
      CAPTURE(point);
      std::vector<std::int64_t> at(2, -1);
      at[static_cast<std::size_t>(turn % 2)] = point;
      check_kill(world, oracle, at, turn % 2 == 0);
    }
  }
}

TEST_CASE("machines lost one after the other: what they kept for others is there again") {
  const World world{.strategy = "zero3", .ranks = 3, .machines = 3};
  troupe::tests::TemporaryDirectory folder;
  const Oracle oracle = undisturbed(folder.file("oracle"), world);
  const RunChange change = change_of(world);
  int from_buddies = 0, from_checkpoint = 0;
  // The rank that takes its state over, its buddy, or the other one; at once, while states are
  // copied, or steps later; with its machine or without.
  for (int turn = 0; turn < 30; turn += at_every_point() ? 1 : 2) {
    CAPTURE(turn);
    const auto second = static_cast<std::size_t>(turn % 3);
    const bool machine = turn % 4 < 2;
    troupe::tests::TemporaryDirectory dir;
    auto ranks = make_ranks_of(dir.file("out"), world);
    const auto restart = [&](std::size_t rank, bool empty) {
      if (empty) ranks->memories[rank] = std::make_unique<ProcessMemory>();
      start_rank(*ranks, static_cast<int>(rank), dir.file("out"), change);
    };
    std::vector<Killer> killers(3);
    killers[1].kill_at = oracle.points[0] / 2;
    REQUIRE(run_killed(*ranks, 1, killers)[1]);
    restart(1, true);
    std::vector<Killer> again(3);
    again[second].kill_at = 1 + (turn < 15 ? turn : turn * oracle.points[0] / 70);
    if (run_killed(*ranks, 2, again)[second]) restart(second, machine);
    for (const Status& status : run_generation(*ranks, 3))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    for (const auto& observer : ranks->observers) {
      from_buddies += observer.load.how == LoadedFrom::kReplica;
      from_checkpoint += !is_memory(observer.load.how);
    }
    CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
    CHECK(step_lines(dir.file("out")) == oracle.steps);
    CHECK(history_of(dir.file("out")) == oracle.history);
  }
  CHECK(from_buddies > 5);
  // A copy that was not made again yet, lost with its keeper: nothing is left of that state.
  CHECK(from_checkpoint <= 15);
}

TEST_CASE(
    "ranks that come together on one machine keep nothing; when they part, copies are made anew") {
  const World world{.strategy = "zero3", .ranks = 2, .machines = 2};
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), world);
  auto ranks = make_ranks_of(dir.file("out"), world);
  const auto kept_bytes = [&] { return (*ranks->memories[0]->take("kept"))->size(); };
  const std::vector<std::string> apart = ranks->machines;
  ranks->observers[0].abort_after = 1;
  run_generation(*ranks, 1);
  CHECK(kept_bytes() > 100'000);
  ranks->machines = {"together", "together"};
  ranks->observers[0].abort_after = 2;
  run_generation(*ranks, 2);
  CHECK_FALSE(ranks->memories[0]->take("kept").value());
  ranks->machines = apart;
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 3);
  CHECK(kept_bytes() > 100'000);
  ranks->observers[0].abort_after = -1;
  ranks->memories[1] = std::make_unique<ProcessMemory>();
  start_rank(*ranks, 1, dir.file("out"), change_of(world));
  for (const Status& status : run_generation(*ranks, 4))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(ranks->observers[1].load.how == LoadedFrom::kReplica);
  CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
  CHECK(step_lines(dir.file("out")) == oracle.steps);
  // Each change is told once.
  const auto& told = ranks->observers[0].notices;
  REQUIRE(told.size() == 3);
  CHECK(told[0].starts_with("each rank's state has a copy on another machine, which"));
  CHECK(told[1] ==
        "the loss of a machine costs the steps since the last checkpoint from here on: no state "
        "has a copy on another (troupe.replicas=auto): all ranks are on one machine");
  CHECK(told[2].starts_with("each rank's state has a copy on another machine from here on, "));
}

TEST_CASE("copies that were asked for and cannot be are refused at the start") {
  const World world{.strategy = "zero3", .ranks = 2};
  troupe::tests::TemporaryDirectory dir;
  RunChange change = change_of(world);
  change.change = [of_world = change.change](RunBundle& bundle) {
    of_world(bundle);
    bundle.config.troupe.replicas = "1";
  };
  auto ranks = make_ranks(dir.file("out"), change);
  for (const Status& status : run_generation(*ranks, 1)) {
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message() == "troupe.replicas=1: all ranks are on one machine; use auto or 0");
  }
  // Others may come where machines come and go.
  auto elastic = make_ranks(dir.file("elastic"), change);
  for (auto& observer : elastic->observers) observer.elastic = true;
  for (const Status& status : run_generation(*elastic, 1))
    CHECK_MESSAGE(status.ok(), status.to_string());
  REQUIRE(elastic->observers[0].notices.size() == 1);
  CHECK(elastic->observers[0].notices[0].ends_with(
      "(troupe.replicas=1): all ranks are on one machine"));
}

TEST_CASE("a state lost with its copy: the last checkpoint, said so") {
  const World world{.strategy = "zero3", .ranks = 3, .machines = 3};
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), world);
  auto ranks = make_ranks_of(dir.file("out"), world);
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  for (const int rank : {1, 2}) {
    ranks->memories[static_cast<std::size_t>(rank)] = std::make_unique<ProcessMemory>();
    start_rank(*ranks, rank, dir.file("out"), change_of(world));
  }
  for (const Status& status : run_generation(*ranks, 2)) REQUIRE(status.ok());
  for (const auto& observer : ranks->observers) {
    CHECK(observer.load.how == LoadedFrom::kCheckpoint);
    CHECK(
        observer.load.reason ==
        "rank 1 found no memory of the process before it on its node, and its buddy keeps no copy");
  }
  CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
}

TEST_CASE("a machine lost while states are copied: what is half copied counts for nothing") {
  const World world{"ddp", 3};
  troupe::tests::TemporaryDirectory folder;
  const Oracle oracle = undisturbed(folder.file("oracle"), world);
  const RunChange change = change_of(world);
  const std::int64_t struck = oracle.points[0] / 2;
  // The rank that takes a state over, or its source; with its memory, or without.
  for (int turn = 0; turn < 12; ++turn) {
    CAPTURE(turn);
    const std::size_t second = turn % 3;
    const bool machine = turn % 2 == 0;
    troupe::tests::TemporaryDirectory dir;
    auto ranks = make_ranks(dir.file("out"), change);
    const auto restart = [&](std::size_t rank, bool empty) {
      if (empty) ranks->memories[rank] = std::make_unique<ProcessMemory>();
      start_rank(*ranks, static_cast<int>(rank), dir.file("out"), change);
    };
    std::vector<Killer> killers(3);
    killers[1].kill_at = struck;
    REQUIRE(run_killed(*ranks, 1, killers)[1]);
    restart(1, true);
    std::vector<Killer> again(3);
    again[second].kill_at = 1 + turn;
    if (run_killed(*ranks, 2, again)[second]) restart(second, machine);
    for (const Status& status : run_generation(*ranks, 3))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    for (const auto& observer : ranks->observers) CHECK(is_memory(observer.load.how));
    CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
    CHECK(step_lines(dir.file("out")) == oracle.steps);
    CHECK(history_of(dir.file("out")) == oracle.history);
  }
}

// Changes a bit of the state of `owner` in the memory of `rank`, its own or what it keeps of
// another's: of its parameters, or of a slot that the next update reads.
void flip_bit(Ranks& ranks, int rank, int owner, const World& world, SeededRandom& random) {
  RunBundle bundle = bundle_for("", 1, 1);
  change_of(world).change(bundle);
  const auto optimizer = optimizer_of(bundle.config, bundle.model);
  const ModelLayout model(bundle.model, with_rule(bundle.trainables, bundle.config, bundle.model));
  const RankLayout layout(model.trained(), Strategy::kZero3, Mesh{.dp_shard = world.ranks}, owner);
  auto state = TrainingState::find(
      layout, {.optimizer = optimizer.get(), .kept_of = rank == owner ? -1 : owner},
      *ranks.memories[static_cast<std::size_t>(rank)]);
  REQUIRE((state.ok() && state->has_value()));
  const StateBuffers buffers = (*state)->kept();
  std::vector<std::span<std::byte>> parts{buffers.parameters};
  // The last update has written one of the two slots by tensor; the other one is not read.
  std::size_t by_tensor = 0;
  for (const SlotBuffer& slot : buffers.slots) {
    if (!slot.place || !slot.place->by_tensor() ||
        by_tensor++ == written_slot((*state)->transaction().record().moment_updates))
      parts.push_back(slot.data);
  }
  std::erase_if(parts, [](std::span<std::byte> part) { return part.empty(); });
  // As often in a small part as in a large one.
  const std::span<std::byte> part = parts[random.below(parts.size())];
  part[random.below(part.size())] ^= std::byte{1} << random.below(8);
}

TEST_CASE("a copy in which a single bit was changed is found out, named, and never taken") {
  const std::vector<std::string> optimizers{"adamw_torch", "adamw_torch", "adamw_8bit", "muon",
                                            "adafactor"};
  troupe::tests::TemporaryDirectory folder;
  std::map<std::string, Oracle> oracles;
  SeededRandom random(5);
  const auto warned = [](const Ranks& ranks, std::size_t rank) {
    const auto& warnings = ranks.observers[rank].warnings;
    return warnings.size() == 1 &&
           warnings[0].starts_with(fmt::format(
               "memory of rank {}'s machine was changed: its copy of rank {}'s state is not what "
               "step ",
               rank, 1 - rank)) &&
           warnings[0].find(" (elements ") != std::string::npos;
  };
  for (int place = 0; place < (at_every_point() ? 100 : 40); ++place) {
    CAPTURE(place);
    const World world{.strategy = "zero3",
                      .ranks = 2,
                      .machines = 2,
                      .optim = optimizers[static_cast<std::size_t>(place / 2) % 5]};
    CAPTURE(world.optim);
    if (!oracles.contains(world.optim))
      oracles.emplace(world.optim, undisturbed(folder.file(world.optim), world));
    const Oracle& oracle = oracles.at(world.optim);
    const std::size_t keeper = random.below(2), owner = 1 - keeper;
    troupe::tests::TemporaryDirectory dir;
    auto ranks = make_ranks_of(dir.file("out"), world);
    const auto flip = [&] {
      flip_bit(*ranks, static_cast<int>(keeper), static_cast<int>(owner), world, random);
    };
    std::uint64_t generation = 1;
    if (place % 2 == 0) {
      // While it trains: the next update finds it, and the copy is made again.
      bool flipped = false;
      ranks->observers[keeper].look = [&](const TrainingView& view) {
        if (view.step() == 2 && !std::exchange(flipped, true)) flip();
      };
      for (const Status& status : run_generation(*ranks, generation++)) CHECK_FALSE(status.ok());
    } else {
      // At rest, before the copy is needed: the last checkpoint takes its place.
      ranks->observers[0].abort_after = 3;
      run_generation(*ranks, generation++);
      ranks->observers[0].abort_after = -1;
      flip();
      ranks->memories[owner] = std::make_unique<ProcessMemory>();
      start_rank(*ranks, static_cast<int>(owner), dir.file("out"), change_of(world));
    }
    for (const Status& status : run_generation(*ranks, generation))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    CHECK(warned(*ranks, keeper));
    CHECK(ranks->observers[owner].load.how ==
          (place % 2 == 0 ? LoadedFrom::kMemory : LoadedFrom::kCheckpoint));
    CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
    CHECK(step_lines(dir.file("out")) == oracle.steps);
  }
}

TEST_CASE("states that differ from their copies are not gone on from: nobody knows who is right") {
  const World world{.strategy = "zero3", .ranks = 2, .machines = 2};
  troupe::tests::TemporaryDirectory dir;
  RunChange change = change_of(world);
  change.change = [of_world = change.change](RunBundle& bundle) {
    of_world(bundle);
    bundle.config.training.max_steps = BuddyState::kCompareEvery + 2;
    bundle.config.training.save_steps = 5;
  };
  auto ranks = make_ranks(dir.file("out"), change);
  ranks->machines = {"one", "another"};
  SeededRandom random(6);
  ranks->observers[1].look = [&](const TrainingView& view) {
    if (view.step() == 3) flip_bit(*ranks, 1, 1, world, random);
  };
  for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
  REQUIRE(ranks->observers[0].warnings.size() == 1);
  CHECK(ranks->observers[0].warnings[0].starts_with(
      "the state of rank 1 and the copy of it that rank 0 keeps differ after step 16, in "));
  ranks->observers[1].look = nullptr;
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  for (const auto& observer : ranks->observers) {
    CHECK(observer.load.how == LoadedFrom::kCheckpoint);
    CHECK(observer.load.step == 15);
  }
}

TEST_CASE("a GPU lost with its machine: its state is another's copy") {
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), {"ddp"});
  const World world{.strategy = "ddp", .devices = 2};
  troupe::tests::fake_cuda_reset({.devices = world.devices});
  auto ranks = make_ranks(dir.file("points"), change_of(world));
  std::vector<Killer> killers(2);
  for (const bool died : run_killed(*ranks, 1, killers)) REQUIRE_FALSE(died);
  ranks.reset();
  check_kill(world, oracle, {killers[0].count / 2, -1}, true);
  check_kill(world, oracle, {-1, killers[0].count / 3}, true);
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
}

TEST_CASE("what is rounded at random is rounded equally by those who go on") {
  const World world{.strategy = "zero2", .pure_bf16 = true};
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), world);
  const std::int64_t stride = oracle.points[0] / 7 | 1;
  for (std::int64_t point = stride; point < oracle.points[0]; point += stride) {
    CAPTURE(point);
    check_kill(world, oracle, {point, point + stride / 2});
  }
}

TEST_CASE("on GPUs, too, whose memory outlives the process, and the bits are the CPU's") {
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), {"zero3"});
  const World world{.strategy = "zero3", .devices = 2};
  troupe::tests::fake_cuda_reset({.devices = world.devices});
  // The points are not the CPU's: what is told within the optimizer is told of its launch.
  auto ranks = make_ranks(dir.file("points"), change_of(world));
  std::vector<Killer> killers(2);
  for (const bool died : run_killed(*ranks, 1, killers)) REQUIRE_FALSE(died);
  CHECK(file(dir.file("points/model.safetensors")) == oracle.model);
  ranks.reset();
  int turn = 0;
  for (std::int64_t point = killers[0].count / 6; point < killers[0].count;
       point += killers[0].count / 3, ++turn) {
    CAPTURE(point);
    std::vector<std::int64_t> at(2, -1);
    if (turn % 3 != 1) at[0] = point;
    if (turn % 3 != 0) at[1] = point;
    check_kill(world, oracle, at);
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
}

TEST_CASE("what is offloaded survives as well, with the gradients on the GPU") {
  for (const auto& [strategy, offload] : std::vector<std::pair<std::string, OffloadChoice>>{
           {"zero2", OffloadChoice::kOptimizer}, {"zero3", OffloadChoice::kParameters}}) {
    CAPTURE(strategy);
    troupe::tests::TemporaryDirectory dir;
    const Oracle oracle = undisturbed(dir.file("oracle"), {strategy});
    const World world{.strategy = strategy, .devices = 2, .offload = offload};
    troupe::tests::fake_cuda_reset({.devices = world.devices});
    auto ranks = make_ranks(dir.file("points"), change_of(world));
    class Updates final : public PointObserver {
     public:
      void reached(const Point& point) override {
        ++count;
        if (point.kind == PointKind::kChunk && point.step == 2) at.push_back(count);
      }
      std::int64_t count = 0;
      std::vector<std::int64_t> at;
    } updates[2];
    for (std::size_t rank = 0; rank < 2; ++rank) ranks->recorders[rank]->observe(&updates[rank]);
    for (const Status& status : run_generation(*ranks, 1))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    CHECK(file(dir.file("points/model.safetensors")) == oracle.model);
    CHECK(step_lines(dir.file("points")) == oracle.steps);
    ranks.reset();
    for (const Updates& update : updates) REQUIRE(update.at.size() >= 3);
    // In the midst of the second step's update: a chunk saved, written, done.
    if (offload == OffloadChoice::kOptimizer) {
      check_kill(world, oracle, {updates[0].at[1], updates[1].at[2]});
    } else {
      check_kill(world, oracle, {-1, updates[1].at[1]});
      // Elsewhere.
      check_kill(world, oracle, {updates[0].count / 2, -1});
    }
    CHECK(troupe::tests::fake_cuda_left().empty());
    troupe::tests::fake_cuda_reset();
  }
}

// Memory of rank 1 is gone when it comes back.
void check_lost_memory(const World& world, const std::string& lost) {
  troupe::tests::TemporaryDirectory dir;
  const Oracle oracle = undisturbed(dir.file("oracle"), {world.strategy});
  auto ranks = make_ranks(dir.file("out"), change_of(world));
  ranks->observers[0].abort_after = 3;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  CHECK(ranks->memories[1]->forget(lost).ok());
  start_rank(*ranks, 1, dir.file("out"), change_of(world));
  for (const Status& status : run_generation(*ranks, 2)) REQUIRE(status.ok());
  for (const auto& observer : ranks->observers) {
    CHECK(observer.load.how == LoadedFrom::kCheckpoint);
    CHECK(observer.load.step == 2);
    CHECK(observer.load.reason == "rank 1 found no memory of the process before it on its node");
  }
  CHECK(file(dir.file("out/model.safetensors")) == oracle.model);
  CHECK(step_lines(dir.file("out")) == oracle.steps);
}

TEST_CASE("memory that is lost is said to be, and the last checkpoint loaded") {
  check_lost_memory({"zero2"}, "state");
}

TEST_CASE("what is offloaded is of no use without the GPU's memory, and is written over") {
  troupe::tests::fake_cuda_reset({.devices = 2});
  check_lost_memory({.strategy = "zero2", .devices = 2, .offload = OffloadChoice::kOptimizer},
                    "state-tensors");
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
}

}  // namespace
}  // namespace troupe::train::tests
