// Runs on the tests' GPU, which computes as the CPU does: the same bits, whatever dies on the way.

#include <algorithm>
#include <limits>
#include <map>
#include <thread>

#include "tests/train/trainer/run_fixture.h"
#include "train/cuda/device/device_memory.h"
#include "train/trainer/run_plan.h"

namespace troupe::train::tests {
namespace {

// A GPU for tests, and nothing of it left at the end.
class TestDevices {
 public:
  explicit TestDevices(int devices, bool can_export = true, std::uint64_t lazy_streams_seed = 0) {
    troupe::tests::fake_cuda_reset({.devices = devices,
                                    .can_export_memory = can_export,
                                    .lazy_streams_seed = lazy_streams_seed});
  }
  ~TestDevices() {
    CHECK(troupe::tests::fake_cuda_left().empty());
    for (const std::string& line : troupe::tests::fake_cuda_left()) MESSAGE(line);
    troupe::tests::fake_cuda_reset();
  }
};

void check_same(const std::string& output, const std::string& expected) {
  const std::string weights = file(expected + "/model.safetensors");
  CHECK(weights.size() > 1000);
  CHECK((file(output + "/model.safetensors") == weights));
  CHECK(step_lines(output) == step_lines(expected));
}

RunChange strategy(const std::string& name, int world, int devices, bool bf16 = false) {
  return {.world = world,
          .batch = 1,
          .accumulation = 2,
          .overlaps = devices > 0,
          .change =
              [name, bf16](RunBundle& bundle) {
                bundle.config.sharding.strategy = name;
                bundle.config.training.max_steps = 5;
                if (bf16) bundle.config.model.compute = Precision::kBfloat16;
              },
          .devices = devices};
}

RunChange strategy_in_fp8(const std::string& name, int world) {
  RunChange change = strategy(name, world, world, true);
  change.change = [inner = change.change](RunBundle& bundle) {
    inner(bundle);
    bundle.config.model.fp8 = true;
  };
  change.fp8 = true;
  return change;
}

RunChange offloaded(RunChange run, OffloadChoice offload) {
  run.change = [inner = run.change, offload](RunBundle& bundle) {
    inner(bundle);
    bundle.config.sharding.offload = offload;
  };
  return run;
}

// Activations are bf16 there, which rounds more than the CPU does.
void check_near(const std::string& output, const std::string& expected,
                double loss_tolerance = 3e-3, double norm_tolerance = 5e-2) {
  const auto got = steps(output), wanted = steps(expected);
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].loss == doctest::Approx(wanted[i].loss).epsilon(loss_tolerance));
    CHECK(got[i].grad_norm == doctest::Approx(wanted[i].grad_norm).epsilon(norm_tolerance));
  }
}

TEST_CASE("runs on GPUs give the bits of the CPU") {
  for (const auto& [name, world] :
       std::vector<std::pair<std::string, int>>{{"ddp", 1}, {"zero3", 2}}) {
    CAPTURE(name);
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("cpu"), strategy(name, world, 0));
    const TestDevices devices(world);
    train(dir.file("gpu"), strategy(name, world, world));
    check_same(dir.file("gpu"), dir.file("cpu"));
  }
}

TEST_CASE("runs on GPUs whose layers are graphs give the bits of the CPU, whatever comes") {
  struct Case {
    const char* strategy;
    int world;
    GraphOptions::Use graphs;
    bool ragged;
    ActivationCheckpointing checkpointing;
  };
  using Use = GraphOptions::Use;
  for (const Case& each :
       {Case{"zero3", 2, Use::kAlways, false, ActivationCheckpointing::kFull},
        Case{"zero2", 2, Use::kAlways, true, ActivationCheckpointing::kSelective},
        Case{"ddp", 1, Use::kWhereFaster, false, ActivationCheckpointing::kNone}}) {
    CAPTURE(each.strategy);
    troupe::tests::TemporaryDirectory dir;
    const auto change = [&](int devices) {
      RunChange made = strategy(each.strategy, each.world, devices);
      made.graphs = each.graphs;
      made.change = [inner = made.change, each](RunBundle& bundle) {
        inner(bundle);
        bundle.config.training.max_steps = 8;
        bundle.config.model.activation_checkpointing = each.checkpointing;
        if (!each.ragged) return;
        TokenDataset dataset(TokenDataset::Kind::kPretrain, 0);
        for (int sample = 0; sample < 40; ++sample)
          dataset.append(std::vector<TokenId>(sample % 3 == 0 ? 9 : 16, 1 + sample % 7));
        bundle.dataset = std::move(dataset);
      };
      return made;
    };
    train(dir.file("cpu"), change(0));
    const TestDevices devices(each.world);
    train(dir.file("gpu"), change(each.world));
    CHECK(troupe::tests::fake_cuda_calls("graph_launch") > 20);
    check_same(dir.file("gpu"), dir.file("cpu"));
  }
}

TEST_CASE("runs on GPUs give the bits of the CPU however late their streams are") {
  struct Case {
    const char* strategy;
    int devices;  // of two ranks
    OffloadChoice offload;
    GraphOptions::Use graphs;
  };
  using Use = GraphOptions::Use;
  std::uint64_t seed = 0;
  for (const Case& each : {Case{"zero3", 2, OffloadChoice::kNone, Use::kAlways},
                           Case{"zero2", 1, OffloadChoice::kNone, Use::kNever},
                           Case{"zero3", 2, OffloadChoice::kParameters, Use::kNever}}) {
    CAPTURE(each.strategy);
    const auto three_steps = [&](int devices) {
      RunChange run = offloaded(strategy(each.strategy, 2, devices), each.offload);
      run.change = [inner = run.change](RunBundle& bundle) {
        inner(bundle);
        bundle.config.training.max_steps = 3;
      };
      return run;
    };
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("cpu"), three_steps(0));
    RunChange change = three_steps(each.devices);
    change.graphs = each.graphs;
    const TestDevices devices(each.devices, true, ++seed);
    train(dir.file("gpu"), change);
    check_same(dir.file("gpu"), dir.file("cpu"));
  }
}

TEST_CASE("a rank whose process is another one makes graphs of its own, and the bits stay") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = strategy("zero2", 2, 2);
  change.graphs = GraphOptions::Use::kAlways;
  const TestDevices devices(2);
  train(dir.file("whole"), change);
  auto ranks = make_ranks(dir.file("gpu"), change);
  ranks->observers[0].abort_after = 3;
  for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
  ranks->observers[0].abort_after = -1;
  start_rank(*ranks, 1, dir.file("gpu"), change);
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(file(dir.file("gpu/model.safetensors")) == file(dir.file("whole/model.safetensors")));
}

TEST_CASE("a run tells what it held of the GPU's memory at most, once") {
  troupe::tests::TemporaryDirectory dir;
  const TestDevices devices(1);
  train(dir.file("gpu"), strategy("ddp", 1, 1));
  const auto all = steps(dir.file("gpu"));
  REQUIRE(all.size() == 5);
  std::map<std::string, std::int64_t> bytes;
  for (const NamedBytes& part : all[0].device_bytes) bytes[part.name] = part.bytes;
  REQUIRE(bytes.size() == kMemoryPurposes + 1);
  CHECK(bytes["parameters"] > 0);
  CHECK(2 * bytes["parameters"] <= bytes["optimizer state"]);
  CHECK(bytes["activations"] > 0);
  std::int64_t held = 0;
  for (const auto& [name, count] : bytes)
    if (name != kDeviceInUse) held += count;
  CHECK(bytes[kDeviceInUse] == held);  // nobody else has some
  // Behind the first step the rate of products is measured, in memory of its own.
  for (std::size_t i = 2; i < all.size(); ++i) CHECK(all[i].device_bytes.empty());
}

TEST_CASE("in bf16 the strategies agree on GPUs, and nearly with the CPU") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("cpu"), strategy("zero3", 2, 0, true));
  const TestDevices devices(2);
  train(dir.file("ddp"), strategy("ddp", 2, 2, true));
  train(dir.file("zero3"), strategy("zero3", 2, 2, true));
  check_same(dir.file("zero3"), dir.file("ddp"));
  check_near(dir.file("zero3"), dir.file("cpu"));
}

TEST_CASE("in fp8 the strategies agree, with graphs and offload, too, and nearly with bf16") {
  troupe::tests::TemporaryDirectory dir;
  const TestDevices devices(2);
  train(dir.file("bf16"), strategy("zero3", 2, 2, true));
  train(dir.file("ddp"), strategy_in_fp8("ddp", 2));
  train(dir.file("zero3"), strategy_in_fp8("zero3", 2));
  check_same(dir.file("zero3"), dir.file("ddp"));
  RunChange all = offloaded(strategy_in_fp8("zero3", 2), OffloadChoice::kParameters);
  all.graphs = GraphOptions::Use::kAlways;
  const std::int64_t launches = troupe::tests::fake_cuda_calls("graph_launch");
  train(dir.file("all"), all);
  CHECK(troupe::tests::fake_cuda_calls("graph_launch") > launches);
  check_same(dir.file("all"), dir.file("ddp"));
  check_near(dir.file("zero3"), dir.file("bf16"), 1e-2, 0.2);
  CHECK(file(dir.file("zero3/model.safetensors")) != file(dir.file("bf16/model.safetensors")));
}

TEST_CASE("fp8 on a GPU that has none is refused by name") {
  troupe::tests::TemporaryDirectory dir;
  RunBundle bundle = bundle_for(dir.file("out"), 2, 1);
  ProgressMemory progress;
  ProgressRecorder recorder(progress.record());
  PosixFileSystem files;
  SystemClock clock;
  troupe::tests::fake_cuda_reset({.compute_major = 8});
  {
    const auto run =
        TrainingRun::create(files, clock, Logger::discard(), bundle,
                            {.compute = compute_of({.devices = 1, .fp8 = true}, 0)}, recorder);
    REQUIRE_FALSE(run.ok());
    CHECK(run.status().code() == Code::kUnsupported);
    CHECK_MESSAGE(run.status().message().find("fp8: true needs") != std::string::npos,
                  run.status().message());
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
}

TEST_CASE("ranks that share a GPU, whose collectives go over the host") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("cpu"), strategy("zero2", 2, 0));
  const TestDevices devices(1);
  train(dir.file("gpu"), strategy("zero2", 2, 1));
  check_same(dir.file("gpu"), dir.file("cpu"));
}

TEST_CASE("offload changes no bits, whatever is offloaded, and means nothing on a CPU") {
  constexpr auto kOptimizer = OffloadChoice::kOptimizer, kParameters = OffloadChoice::kParameters;
  struct Case {
    std::string strategy;
    int world;
    OffloadChoice offload;
    bool bf16;
  };
  const std::vector<Case> cases = {
      {"ddp", 1, kOptimizer, false},          {"zero3", 1, kParameters, true},
      {"zero1", 2, kOptimizer, false},        {"zero2", 2, kOptimizer, true},
      {"zero3", 2, kOptimizer, true},         {"ddp", 2, kParameters, false},
      {"shard_grad_op", 2, kParameters, true}};
  const auto steps = [](RunChange run) {
    run.change = [inner = run.change](RunBundle& bundle) {
      inner(bundle);
      bundle.config.training.max_steps = 2;
    };
    return run;
  };
  troupe::tests::TemporaryDirectory dir;
  // What the strategies of a world size agree on.
  const auto of = [&](int world, bool bf16) {
    return dir.file(fmt::format("{}{}", bf16 ? "bf16-" : "", world));
  };
  train(of(1, false), steps(strategy("ddp", 1, 0)));
  train(of(2, false), steps(offloaded(strategy("zero3", 2, 0), kParameters)));
  const TestDevices devices(2);
  train(of(1, true), steps(strategy("ddp", 1, 1, true)));
  train(of(2, true), steps(strategy("zero3", 2, 2, true)));
  int count = 0;
  for (const Case& c : cases) {
    CAPTURE(c.strategy);
    CAPTURE(c.world);
    CAPTURE(static_cast<int>(c.offload));
    const std::string out = dir.file(fmt::format("offloaded-{}", ++count));
    train(out, steps(offloaded(strategy(c.strategy, c.world, c.world, c.bf16), c.offload)));
    check_same(out, of(c.world, c.bf16));
  }
}

TEST_CASE("offload with bf16 state, shard groups and ranks that share a GPU") {
  troupe::tests::TemporaryDirectory dir;
  const auto few_steps = [](RunChange run, Precision precision) {
    run.change = [inner = run.change, precision](RunBundle& bundle) {
      inner(bundle);
      bundle.config.model.state = bundle.config.model.compute = precision;
      bundle.config.training.max_steps = 2;
    };
    return run;
  };
  const TestDevices devices(2);
  const RunChange groups = few_steps(strategy("hsdp", 4, 2), Precision::kFloat32);
  train(dir.file("groups"), groups);
  train(dir.file("groups-offloaded"), offloaded(groups, OffloadChoice::kParameters));
  check_same(dir.file("groups-offloaded"), dir.file("groups"));
  const RunChange pure = few_steps(strategy("zero2", 2, 1), Precision::kBfloat16);
  train(dir.file("pure"), pure);
  train(dir.file("pure-offloaded"), offloaded(pure, OffloadChoice::kOptimizer));
  check_same(dir.file("pure-offloaded"), dir.file("pure"));
}

TEST_CASE("checkpoints go from and to runs with offload") {
  troupe::tests::TemporaryDirectory dir;
  const auto run = [](OffloadChoice offload, int devices, const std::string& from) {
    return RunChange{.world = 2,
                     .resume = from,
                     .change =
                         [offload](RunBundle& bundle) {
                           bundle.config.training.max_steps = 7;
                           bundle.config.sharding.strategy = "zero2";
                           if (offload == OffloadChoice::kParameters)
                             bundle.config.sharding.strategy = "zero3";
                           bundle.config.sharding.offload = offload;
                         },
                     .devices = devices};
  };
  const TestDevices devices(2);
  train(dir.file("whole"), run(OffloadChoice::kNone, 2, ""));
  train(dir.file("offloaded"), run(OffloadChoice::kOptimizer, 2, ""));
  const std::string expected = file(dir.file("whole/model.safetensors"));
  CHECK(file(dir.file("offloaded/model.safetensors")) == expected);
  // Each kind of run goes on from what the others wrote.
  const std::string without = dir.file("whole/checkpoint-5");
  const std::string with = dir.file("offloaded/checkpoint-5");
  train(dir.file("a"), run(OffloadChoice::kParameters, 2, without));
  train(dir.file("b"), run(OffloadChoice::kNone, 2, with));
  for (const char* name : {"a", "b"})
    CHECK(file(dir.file(std::string(name) + "/model.safetensors")) == expected);
}

TEST_CASE("times of a step's parts are of what a GPU computes, and by operator where asked for") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = strategy("ddp", 1, 1);
  change.change = [inner = change.change](RunBundle& bundle) {
    inner(bundle);
    bundle.config.troupe.operator_times = true;
  };
  const TestDevices devices(1);
  train(dir.file("gpu"), change);
  for (const StepRecord& step : steps(dir.file("gpu"))) {
    CHECK(step.seconds.forward > 0);
    CHECK(step.seconds.backward > 0);
    double products = 0;
    for (const auto& [name, seconds] : step.operators)
      if (name.find("gemm") != std::string::npos) products += seconds;
    CHECK(products > 0);
  }
}

TEST_CASE("a gradient that is not finite is named, wherever it lies") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = strategy("zero2", 2, 2);
  const TestDevices devices(2);
  auto ranks = make_ranks(dir.file("gpu"), change);
  // What an injected fault does: it spoils what it is shown of a unit's gradient.
  class Spoiler final : public PointObserver {
   public:
    void reached(const Point& point) override {
      if (point.kind == PointKind::kGradient && point.unit == 1 && point.step == 2)
        point.gradient.front() = std::numeric_limits<float>::quiet_NaN();
    }
  } spoiler;
  ranks->recorders[1]->observe(&spoiler);
  for (const Status& status : run_generation(*ranks, 1))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  const auto all = steps(dir.file("gpu"));
  REQUIRE(all.size() == 5);
  CHECK(all[0].skipped.empty());
  CHECK(all[1].skipped == "the sum of the gradients over the ranks is not finite");
  CHECK(all[2].skipped.empty());

  // Found again by the passes that look for it.
  change.change = [](RunBundle& bundle) {
    bundle.model.initializer_range = 1e20;
    bundle.config.training.max_steps = 1;
  };
  // A run of which every step was skipped has trained nothing.
  const auto overflow = [&](const std::string& name) {
    auto spoiled = make_ranks(dir.file(name), change);
    for (const Status& status : run_generation(*spoiled, 1)) {
      CHECK(status.message().find("nothing was trained") != std::string::npos);
    }
  };
  overflow("gpu-overflow");
  change.devices = 0;
  overflow("cpu-overflow");
  const std::string why = steps(dir.file("gpu-overflow"))[0].skipped;
  CHECK_MESSAGE(why.find("the gradient of model.") != std::string::npos, why);
  CHECK(why == steps(dir.file("cpu-overflow"))[0].skipped);
}

TEST_CASE("a checkpoint of a GPU's state is resumed on another number of them, and on a CPU") {
  troupe::tests::TemporaryDirectory dir;
  const auto change = [](int world, std::int64_t batch, int devices, const std::string& from) {
    return RunChange{.world = world,
                     .batch = batch,
                     .resume = from,
                     .change = [](RunBundle& bundle) { bundle.config.training.max_steps = 7; },
                     .devices = devices};
  };
  const TestDevices devices(2);
  train(dir.file("whole"), change(2, 2, 2, ""));
  const std::string checkpoint = dir.file("whole/checkpoint-5");
  train(dir.file("gpu"), change(2, 2, 2, checkpoint));
  train(dir.file("one"), change(1, 4, 1, checkpoint));
  train(dir.file("cpu"), change(2, 2, 0, checkpoint));
  CHECK(file(dir.file("gpu/model.safetensors")) == file(dir.file("whole/model.safetensors")));
  CHECK(file(dir.file("cpu/model.safetensors")) == file(dir.file("whole/model.safetensors")));
  const auto expected = steps(dir.file("whole")), one = steps(dir.file("one"));
  CHECK(one.back().loss == doctest::Approx(expected.back().loss).epsilon(1e-5));
}

TEST_CASE("memory that cannot outlive the process: the last checkpoint is loaded") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = strategy("zero2", 2, 2);
  const TestDevices devices(2, false);
  change.change = [inner = change.change](RunBundle& bundle) {
    inner(bundle);
    bundle.config.training.save_steps = 2;
  };
  auto ranks = make_ranks(dir.file("gpu"), change);
  ranks->observers[0].abort_after = 3;
  for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
  ranks->observers[0].abort_after = -1;
  start_rank(*ranks, 1, dir.file("gpu"), change);
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(ranks->observers[0].load.how == LoadedFrom::kCheckpoint);
  CHECK(ranks->observers[0].load.step == 2);
}

// A process that waits for a rank.
std::unique_ptr<TrainingRun> stand_by(Ranks& ranks, int rank, const std::string& output_dir,
                                      const RunChange& change, Duration patience = {}) {
  RunBundle bundle = bundle_for(output_dir, change.batch, change.accumulation);
  if (change.change) change.change(bundle);
  auto run = TrainingRun::create(ranks.files, ranks.clock, Logger::discard(), std::move(bundle),
                                 {.run = "test",
                                  .world_size = change.world,
                                  .threads = change.threads,
                                  .overlaps = change.overlaps,
                                  .compute = compute_of(change, rank),
                                  .stands_by = true,
                                  .memory_patience = patience},
                                 *ranks.recorders[static_cast<std::size_t>(rank)]);
  REQUIRE_MESSAGE(run.ok(), run.status().to_string());
  return std::move(*run);
}

TEST_CASE(
    "who stands by holds no memory, has asked for all algorithms, and goes on with the bits") {
  troupe::tests::TemporaryDirectory dir;
  // What fp8 does not reach is bf16's.
  for (const bool fp8 : {false, true}) {
    CAPTURE(fp8);
    const std::string at = fp8 ? "fp8" : "fp32";
    const RunChange change = fp8 ? strategy_in_fp8("zero2", 2) : strategy("zero2", 2, 2);
    const char* product = fp8 ? "gemm_scaled" : "gemm";
    troupe::tests::fake_cuda_reset({.devices = 2, .cudnn_version = 91000});
    train(dir.file(at + "-whole"), change);
    std::int64_t asked[2] = {}, planned[2] = {};
    for (const bool warm : {false, true}) {
      CAPTURE(warm);
      const std::string out = dir.file(at + (warm ? "-warm" : "-cold"));
      auto ranks = make_ranks(out, change);
      ranks->observers[0].abort_after = 3;
      for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
      ranks->observers[0].abort_after = -1;
      ranks->runs[1].reset();
      const std::int64_t held = troupe::tests::fake_cuda_allocated_bytes(1);
      auto spare = stand_by(*ranks, 1, out, change);
      if (warm) {
        const std::int64_t products = troupe::tests::fake_cuda_calls(product);
        REQUIRE(spare->warm_up().ok());
        CHECK(troupe::tests::fake_cuda_calls(product) > products);
      }
      CHECK(troupe::tests::fake_cuda_allocated_bytes(1) == held);
      const std::int64_t algorithms = troupe::tests::fake_cuda_calls("gemm_algorithms");
      const std::int64_t plans = troupe::tests::fake_cuda_calls("attention_plan_create");
      REQUIRE(spare->take_rank(1, *ranks->memories[1]).ok());
      CHECK(troupe::tests::fake_cuda_allocated_bytes(1) > held);
      ranks->runs[1] = std::move(spare);
      for (const Status& status : run_generation(*ranks, 2))
        REQUIRE_MESSAGE(status.ok(), status.to_string());
      CHECK(ranks->observers[1].load.how == LoadedFrom::kMemory);
      check_same(out, dir.file(at + "-whole"));
      asked[warm] = troupe::tests::fake_cuda_calls("gemm_algorithms") - algorithms;
      planned[warm] = troupe::tests::fake_cuda_calls("attention_plan_create") - plans;
    }
    CHECK(planned[0] == (fp8 ? 2 : 0));
    CHECK(planned[1] == 0);
    // What is left is asked for by the rate's measurement, with products of its own.
    CHECK(asked[1] <= 4);
    CHECK(asked[0] >= asked[1] + 10);
    CHECK(troupe::tests::fake_cuda_left().empty());
  }
  troupe::tests::fake_cuda_reset();
}

TEST_CASE("memory that a process before still holds is waited for") {
  troupe::tests::TemporaryDirectory dir;
  const RunChange change = strategy("ddp", 1, 1);
  const TestDevices devices(1);
  Ranks ranks;
  ranks.memories.push_back(std::make_unique<ProcessMemory>());
  ranks.progress.push_back(std::make_unique<ProgressMemory>());
  ranks.recorders.push_back(std::make_unique<ProgressRecorder>(ranks.progress.back()->record()));
  const MapEnvironment environment;
  auto device =
      CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, environment).value();
  std::optional<DeviceMemory> before =
      DeviceMemory::allocate(device, (std::int64_t{1} << 30) - (1 << 16), "a process before",
                             MemoryPurpose::kOther)
          .value();
  auto impatient = stand_by(ranks, 0, dir.file("out"), change);
  const Status refused = impatient->take_rank(0, *ranks.memories[0]);
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(refused.message().find("per_device_train_batch_size") != std::string::npos);
  impatient.reset();
  auto patient = stand_by(ranks, 0, dir.file("out"), change, std::chrono::seconds(60));
  const std::int64_t asked = troupe::tests::fake_cuda_calls("memory_create");
  std::thread ends([&] {
    while (troupe::tests::fake_cuda_calls("memory_create") < asked + 2) std::this_thread::yield();
    before.reset();
  });
  CHECK(patient->take_rank(0, *ranks.memories[0]).ok());
  ends.join();
}

TEST_CASE("a lost GPU ends the rank's generation with its name, and nobody computes there again") {
  troupe::tests::TemporaryDirectory dir;
  const RunChange change = strategy("ddp", 2, 2);
  const TestDevices devices(2);
  auto ranks = make_ranks(dir.file("gpu"), change);
  class Loser final : public PointObserver {
   public:
    void reached(const Point& point) override {
      if (point.stage == Stage::kForward && point.step == 3)
        troupe::tests::fake_cuda_lose_device(1);
    }
  } loser;
  ranks->recorders[1]->observe(&loser);
  const auto results = run_generation(*ranks, 1);
  CHECK_FALSE(results[0].ok());
  CHECK_MESSAGE(results[1].to_string().find("GPU 1 (Fake GPU of tests)") != std::string::npos,
                results[1].to_string());
  CHECK(ranks->runs[0]->alive().ok());
  CHECK(ranks->runs[1]->alive().code() == Code::kUnavailable);
  for (const auto& observer : ranks->observers) CHECK(observer.steps_done == 2);
}

TEST_CASE("a plan of a GPU's memory is what a trainer takes of it") {
  troupe::tests::TemporaryDirectory dir;
  for (const auto& [precision, offload] :
       std::vector<std::pair<int, OffloadChoice>>{{32, OffloadChoice::kNone},
                                                  {16, OffloadChoice::kNone},
                                                  {16, OffloadChoice::kOptimizer},
                                                  {16, OffloadChoice::kParameters},
                                                  {8, OffloadChoice::kNone},
                                                  {8, OffloadChoice::kParameters}}) {
    CAPTURE(precision);
    CAPTURE(static_cast<int>(offload));
    const RunChange change = offloaded(
        precision == 8 ? strategy_in_fp8("zero3", 1) : strategy("zero3", 1, 1, precision == 16),
        offload);
    const TestDevices devices(1);
    auto ranks = make_ranks(dir.file("out"), change);
    RunBundle bundle = bundle_for(dir.file("out"), change.batch, change.accumulation);
    change.change(bundle);
    LoadedConfig loaded;
    loaded.config = bundle.config;
    PlanFacts facts = facts_of(bundle, loaded, 1, 4);
    facts.on_gpus = true;  // communication overlaps there
    const auto request = plan_request(loaded.config, bundle.model, facts).value();
    const std::int64_t planned = plan_device_memory(request).total();
    const std::int64_t taken = troupe::tests::fake_cuda_allocated_bytes(0);
    // Three allocations, whole granules each, their parts aligned.
    CHECK(taken >= planned);
    CHECK(taken - planned < 3 * (1 << 16) + 4096);
    ranks.reset();
  }
}

TEST_CASE("a GPU without room says what wants it and what to make smaller") {
  troupe::tests::TemporaryDirectory dir;
  RunBundle bundle = bundle_for(dir.file("out"), 2, 1);
  ProgressMemory progress;
  ProgressRecorder recorder(progress.record());
  PosixFileSystem files;
  SystemClock clock;
  troupe::tests::fake_cuda_reset({.memory_bytes = 1 << 20});
  {
    const auto run = TrainingRun::create(files, clock, Logger::discard(), bundle,
                                         {.compute = compute_of({.devices = 1}, 0)}, recorder);
    REQUIRE_FALSE(run.ok());
    CHECK(run.status().code() == Code::kOutOfMemory);
    for (const char* words : {"per_device_train_batch_size", "activations", "workspace", "1.0 MiB"})
      CHECK_MESSAGE(run.status().message().find(words) != std::string::npos,
                    run.status().message());
  }
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
}

}  // namespace
}  // namespace troupe::train::tests
