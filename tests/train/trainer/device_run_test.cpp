// Runs on the tests' GPU, which computes as the CPU does: the same bits, whatever dies on the way.

#include <algorithm>
#include <limits>

#include "tests/train/trainer/run_fixture.h"
#include "train/trainer/run_plan.h"

namespace troupe::train::tests {
namespace {

// A GPU for tests, and nothing of it left at the end.
class TestDevices {
 public:
  explicit TestDevices(int devices, bool can_export = true) {
    troupe::tests::fake_cuda_reset({.devices = devices, .can_export_memory = can_export});
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

TEST_CASE("in bf16 the strategies agree on GPUs, and nearly with the CPU") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("cpu"), strategy("zero3", 2, 0, true));
  const TestDevices devices(2);
  train(dir.file("ddp"), strategy("ddp", 2, 2, true));
  train(dir.file("zero3"), strategy("zero3", 2, 2, true));
  check_same(dir.file("zero3"), dir.file("ddp"));
  check_near(dir.file("zero3"), dir.file("cpu"));
}

TEST_CASE("in fp8 the strategies agree, and nearly with bf16") {
  troupe::tests::TemporaryDirectory dir;
  const TestDevices devices(2);
  train(dir.file("bf16"), strategy("zero3", 2, 2, true));
  train(dir.file("ddp"), strategy_in_fp8("ddp", 2));
  train(dir.file("zero3"), strategy_in_fp8("zero3", 2));
  check_same(dir.file("zero3"), dir.file("ddp"));
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
  train(dir.file("gpu-overflow"), change);
  change.devices = 0;
  train(dir.file("cpu-overflow"), change);
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
  for (const int precision : {32, 16, 8}) {
    CAPTURE(precision);
    const RunChange change =
        precision == 8 ? strategy_in_fp8("zero3", 1) : strategy("zero3", 1, 1, precision == 16);
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
