// What a model and communicators do is told, in order, and nothing of it changes.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "runtime/collective/cpu_communicator.h"
#include "tests/train/progress/progress_helpers.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/model.h"
#include "train/progress/beat.h"
#include "train/progress/observed_collectives.h"
#include "train/progress/observed_operators.h"
#include "train/progress/observed_units.h"

namespace troupe::train {
namespace {

struct PointLog final : PointObserver {
  void reached(const Point& point) override {
    if (point.kind == throw_at) throw std::runtime_error("injected");
    points.push_back(point);
    if (point.kind == PointKind::kOperator) operators.insert(std::string(point.operation));
    if (point.kind == PointKind::kGradient) {
      float sum = 0;
      for (const float x : point.gradient) sum += std::abs(x);
      gradient_sums.push_back(sum);
    }
  }
  std::optional<PointKind> throw_at;
  std::vector<Point> points;
  std::set<std::string> operators;
  std::vector<float> gradient_sums;
};

struct TinyModel {
  TinyModel() {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i] = 0.05f * std::sin(static_cast<float>(i));
  }
  double pass(Model& with, UnitAccess& access) {
    std::vector<std::int32_t> ids(40);
    std::iota(ids.begin(), ids.end(), 3);
    const MicroBatch batch{2, 20, ids, ids, {}, {}};
    Activations activations(config, {2, 20, true, Recompute::kNothing}, *operators);
    return with.forward_backward(batch, access, CrossEntropyLoss(), 0.01f, activations)
        .value()
        .loss_sum;
  }
  const ModelConfig config = ModelConfig::parse(
                                 R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "tie_word_embeddings": false})",
                                 "config.json")
                                 .value();
  Arena arena{1};
  std::unique_ptr<Operators> operators = make_cpu_operators(arena);
  std::unique_ptr<Model> model = make_model(config, *operators);
  std::vector<float> parameters =
      std::vector<float>(static_cast<std::size_t>(model->layout().total_elements()));
  std::vector<float> gradients = std::vector<float>(parameters.size());
  ResidentUnits units{model->layout(), parameters, gradients};
};

TEST_CASE("An observed pass tells its units, operators and gradients, and has the same bits") {
  TinyModel plain, observed;
  const double expected = plain.pass(*plain.model, plain.units);
  RecordMemory memory;
  PointLog log;
  ProgressRecorder recorder(memory.record(), &log);
  ObservedOperators operators(*observed.operators, recorder);
  CHECK(operators.fast_bf16() == observed.operators->fast_bf16());
  ObservedUnits units(observed.units, recorder);
  const auto model = make_model(observed.config, operators);
  recorder.stage(1, Stage::kForward);
  CHECK(observed.pass(*model, units) == expected);
  CHECK(observed.gradients == plain.gradients);

  // Units go up in the forward pass and down in the backward pass.
  std::vector<int> forward, backward, gradients;
  for (const Point& point : log.points) {
    if (point.kind == PointKind::kGradient) gradients.push_back(point.unit);
    if (point.kind != PointKind::kUnit) continue;
    (point.stage == Stage::kForward ? forward : backward).push_back(point.unit);
  }
  const auto count = static_cast<int>(model->layout().units().size());
  CHECK(std::is_sorted(forward.begin(), forward.end()));
  CHECK(std::is_sorted(backward.rbegin(), backward.rend()));
  // The head runs in the backward pass only; the embedding's backward needs no parameters.
  CHECK(forward.size() + 1 == static_cast<std::size_t>(count));
  CHECK(backward.size() + 1 == static_cast<std::size_t>(count));
  REQUIRE(gradients.size() == static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) CHECK(gradients[static_cast<std::size_t>(i)] == count - 1 - i);
  for (const float sum : log.gradient_sums) CHECK(sum > 0);
  for (const char* name : {"gemm", "rms_norm_forward", "rms_norm_backward", "attention_forward",
                           "attention_backward", "swiglu_forward", "swiglu_backward", "rope",
                           "embedding_forward", "embedding_backward", "cross_entropy"})
    CHECK_MESSAGE(log.operators.contains(name), name);
  CHECK(recorder.stage() == Stage::kBackward);
}

TEST_CASE("A failure to get a gradient is passed on before it is said to be done") {
  struct Failing final : UnitAccess {
    Result<UnitParameters> acquire(int, Phase) override { return UnitParameters{}; }
    void release(int, Phase) override {}
    Result<UnitGradient> gradient(int) override { return error(Code::kAborted, "gone"); }
    Status gradient_done(int) override {
      done = true;
      return {};
    }
    bool done = false;
  } failing;
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  ObservedUnits units(failing, recorder);
  CHECK(units.gradient_done(0).code() == Code::kAborted);
  CHECK_FALSE(failing.done);
}

TEST_CASE("A rank that waits in a collective says so; bytes are changes") {
  auto links = collective::make_local_links({0, 0}).value();
  RecordMemory memories[2];
  const auto run = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    auto c = collective::make_cpu_communicator({.rank = rank, .world_size = 2, .generation = 1},
                                               std::move(links[at]))
                 .value();
    ProgressRecorder recorder(memories[at].record());
    ObservedCollectives observed(recorder);
    c->observe(&observed);
    const std::vector<int> both{0, 1};
    const auto group = c->subgroup(both, "shard").value();
    recorder.stage(3, Stage::kNorm);
    CHECK(c->barrier().ok());
    if (rank == 1) {
      // Until rank 0 waits for this one.
      const auto deadline = Deadline::after(std::chrono::seconds(10));
      std::optional<ProgressSnapshot> other;
      while (!deadline.passed()) {
        other = read_progress(memories[0].record());
        if (other && other->in_collective && other->collective == "all_reduce") break;
        std::this_thread::yield();
      }
      REQUIRE(other);
      CHECK(describe_progress(*other) == "step 3, waits in all-reduce 1 of group 'shard'");
    }
    std::vector<float> data(300'000);
    CHECK(group->all_reduce(std::span(data)).ok());
    const ProgressSnapshot snapshot = memories[at].read();
    CHECK_FALSE(snapshot.in_collective);
    std::uint64_t bytes = 0;
    for (const collective::Communicator* one : {c.get(), group.get()})
      for (const auto& counter : one->counters())
        bytes += counter.wire_bytes_sent + counter.wire_bytes_received;
    CHECK(snapshot.moved_bytes == bytes);
    CHECK(snapshot.changes > snapshot.entries.size());
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST_CASE("An observer's exception keeps out of a collective and a file operation") {
  RecordMemory memory;
  PointLog log;
  ProgressRecorder recorder(memory.record(), &log);
  log.throw_at = PointKind::kCollective;
  CHECK_THROWS(recorder.collective("barrier", 1, true));
  CHECK_FALSE(memory.read().in_collective);
  CHECK(memory.read().entries.back().operation == "barrier");
  log.throw_at = PointKind::kFile;
  CHECK_THROWS(recorder.file("write", true));
  CHECK_FALSE(memory.read().in_file);
}

TEST_CASE("A beat goes on while it lives, and ends at once") {
  RecordMemory memory;
  ProgressRecorder recorder(memory.record());
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  {
    Beat beat(memory.record());
    while (memory.read().beats < 3 && !deadline.passed()) std::this_thread::yield();
    const ProgressSnapshot snapshot = memory.read();
    CHECK(snapshot.beats >= 3);
    CHECK(snapshot.beat_at_ns > 0);
    CHECK(snapshot.cpu_ns > 0);
    CHECK(snapshot.changes == 0);
  }
  // Its end does not wait for the next beat. (On a loaded machine one of many shows that.)
  const std::uint64_t beats = memory.read().beats;
  std::uint64_t tries = 0;
  for (bool at_once = false; !at_once && !deadline.passed(); ++tries) {
    const TimePoint began = SystemClock().now();
    { const Beat beat(memory.record()); }
    at_once = SystemClock().now() - began < kBeatInterval;
  }
  CHECK_FALSE(deadline.passed());
  CHECK(memory.read().beats <= beats + 2 * tries);
}

}  // namespace
}  // namespace troupe::train
