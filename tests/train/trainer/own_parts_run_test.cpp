// Runs with parts of the program's own, all ranks in one process.
#include <cmath>

#include "tests/train/trainer/run_fixture.h"
#include "train/parts/elementwise_optimizer.h"
#include "train/trainer/between_steps.h"

namespace troupe::train::tests {
namespace {

class Half final : public Objective {
 public:
  std::string_view name() const override { return "half"; }
  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result;
    for (const float log_probability : targets.log_probabilities) {
      result.losses.push_back(-0.5f * log_probability);
      result.derivatives.push_back(-0.5f);
    }
    return result;
  }
};

class SignSgd final : public ElementwiseOptimizer {
 public:
  std::string_view name() const override { return "signSGD"; }
  std::span<const std::string_view> slots() const override {
    static constexpr std::string_view kSlots[] = {"mean"};
    return kSlots;
  }
  void update_elements(const ElementwiseStep& step, std::span<float> p, std::span<const float> g,
                       std::span<const std::span<float>> slots) const override {
    for (std::size_t i = 0; i < p.size(); ++i) {
      slots[0][i] = 0.5f * (slots[0][i] + g[i]);
      p[i] -= std::copysign(0.1f * step.learning_rate, slots[0][i]);
    }
  }
};

class Counting final : public DataSource {
 public:
  explicit Counting(const json::Object& arguments)
      : by_(json::find_integer(arguments, "by").value_or(1)),
        size_(json::find_integer(arguments, "size").value_or(100)),
        vocabulary_(json::find_integer(arguments, "vocabulary").value_or(60)) {}
  std::int64_t size() const override { return size_; }
  std::int64_t length_max() const override { return 12; }
  Result<TrainingSample> sample(std::int64_t epoch, std::int64_t number) const override {
    TrainingSample sample;
    for (std::int64_t i = 0; i < 8 + number % 5; ++i)
      sample.ids.push_back(static_cast<TokenId>((epoch + number + i * by_) % vocabulary_));
    return sample;
  }

 private:
  std::int64_t by_, size_, vocabulary_;
};

// Ends the run behind a step; what all of them in this process have seen.
class EndsAt final : public TrainingCallback {
 public:
  explicit EndsAt(const json::Object& arguments)
      : step_(json::find_integer(arguments, "step").value_or(-1)) {}
  void step_begun(std::int64_t step) override { begun = step; }
  AfterStep step_finished(const StepRecord& record) override {
    return record.step == step_ ? AfterStep::kEndRun : AfterStep::kGoOn;
  }
  void saved(std::int64_t step, const std::string&) override { saves.push_back(step); }
  inline static std::int64_t begun = 0;
  inline static std::vector<std::int64_t> saves;

 private:
  std::int64_t step_;
};

TrainingParts parts() {
  return {.objectives = {{"half", part<Objective, Half>()}},
          .optimizers = {{"sign", part<Optimizer, SignSgd>()}},
          .data_sources = {{"counting", part<DataSource, Counting>()}},
          .callbacks = {{"ends", part<TrainingCallback, EndsAt>()}}};
}

RunChange own_run(const std::string& strategy, int world = 2, std::int64_t end = -1) {
  return {.world = world,
          .change =
              [=](RunBundle& bundle) {
                bundle.config.sharding.strategy = strategy;
                bundle.config.training.save_steps = 4;
                bundle.dataset = TokenDataset(TokenDataset::Kind::kSupervised, 0);
                bundle.source = {.samples = 100, .length_max = 12};
                bundle.parts = {.objective = {{"half"}},
                                .optimizer = {{"sign"}},
                                .data_source = {{"counting"}},
                                .callbacks = {{"ends", {{"step", end}}}}};
              },
          .parts = parts()};
}

TEST_CASE("own objective, optimizer and data: the same bits under every strategy") {
  troupe::tests::TemporaryDirectory dir;
  std::string expected;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    CAPTURE(strategy);
    const std::string out = dir.file(strategy);
    train(out, own_run(strategy));
    const std::string model = file(out + "/model.safetensors");
    REQUIRE(model.size() > 1000);
    if (expected.empty()) expected = model;
    CHECK((model == expected));
  }
  // The optimizer's own slot is in the checkpoint, by its name.
  PosixFileSystem files;
  const auto good = validate_checkpoint(files, dir.file("ddp/checkpoint-8"));
  REQUIRE(good.ok());
  CHECK(good->has_optimizer);
}

TEST_CASE("a run with own data goes on from a checkpoint, and over a kill, with the same bits") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("whole"), own_run("zero3"));
  const std::string expected = file(dir.file("whole/model.safetensors"));
  RunChange resumed = own_run("zero3");
  resumed.resume = dir.file("whole/checkpoint-4");
  train(dir.file("resumed"), resumed);
  CHECK((file(dir.file("resumed/model.safetensors")) == expected));

  const RunChange change = own_run("zero3");
  auto ranks = make_ranks(dir.file("killed"), change);
  ranks->observers[0].abort_after = 6;
  for (const Status& status : run_generation(*ranks, 1)) CHECK_FALSE(status.ok());
  ranks->observers[0].abort_after = -1;
  start_rank(*ranks, 1, dir.file("killed"), change);
  for (const Status& status : run_generation(*ranks, 2))
    CHECK_MESSAGE(status.ok(), status.to_string());
  CHECK((file(dir.file("killed/model.safetensors")) == expected));
}

TEST_CASE("a callback ends the run behind a step, on all ranks, with a checkpoint and the model") {
  troupe::tests::TemporaryDirectory dir;
  EndsAt::saves.clear();
  auto ranks = make_ranks(dir.file("out"), own_run("zero1", 2, 6));
  std::vector<std::int64_t> ended_at;  // one view alone is behind the last step
  ranks->observers[1].look = [&](const TrainingView& view) {
    if (view.has_ended()) ended_at.push_back(view.step());
  };
  for (const Status& status : run_generation(*ranks, 1))
    CHECK_MESSAGE(status.ok(), status.to_string());
  CHECK(ranks->observers[0].steps_done == 6);
  CHECK(ranks->observers[1].steps_done == 6);
  CHECK(ended_at == std::vector<std::int64_t>{6});
  CHECK(EndsAt::begun == 6);
  CHECK(EndsAt::saves == std::vector<std::int64_t>{4, 6});
  CHECK(file(dir.file("out/model.safetensors")).size() > 1000);
}

TEST_CASE("work between steps is refused at once behind the end, until another begin") {
  BetweenSteps steps;
  const auto run = [&](Duration timeout) {
    return steps.run([](const TrainingView&) {}, Deadline::after(timeout));
  };
  steps.end(error(Code::kFailedPrecondition, "the run has ended"));
  CHECK(run(std::chrono::hours(1)).message() == "the run has ended");
  steps.begin();
  CHECK(run(std::chrono::milliseconds(1)).code() == Code::kDeadlineExceeded);
}

TEST_CASE("an end by a callback stands over a kill behind its step") {
  troupe::tests::TemporaryDirectory dir;
  const RunChange change = own_run("zero3", 2, 6);
  auto ranks = make_ranks(dir.file("killed"), change);
  ranks->observers[0].abort_after = 6;
  run_generation(*ranks, 1);
  ranks->observers[0].abort_after = -1;
  start_rank(*ranks, 0, dir.file("killed"), change);
  for (const Status& status : run_generation(*ranks, 2))
    CHECK_MESSAGE(status.ok(), status.to_string());
  CHECK(ranks->runs[0]->step() == 6);
  train(dir.file("whole"), change);
  CHECK((file(dir.file("killed/model.safetensors")) == file(dir.file("whole/model.safetensors"))));
}

TEST_CASE("new arguments of the data count from one step on, on all ranks and for a resumed run") {
  troupe::tests::TemporaryDirectory dir;
  const auto changed = [&](const std::string& name, int kill_at) {
    const RunChange change = own_run("zero3");
    auto ranks = make_ranks(dir.file(name), change);
    ranks->observers[0].wish_at = {5, R"({"by":3})"};
    std::string at_end;
    ranks->observers[1].look = [&](const TrainingView& view) { at_end = view.data_arguments(); };
    ranks->observers[0].abort_after = kill_at;
    const auto first = run_generation(*ranks, 1);
    if (kill_at >= 0) {
      // Rank 1 learns the data from the record.
      start_rank(*ranks, 1, dir.file(name), change);
      ranks->observers[0].abort_after = -1;
      for (const Status& status : run_generation(*ranks, 2))
        CHECK_MESSAGE(status.ok(), status.to_string());
    }
    CHECK(at_end == R"({"by":3})");
    CHECK(ranks->observers[0].wishes_done == std::vector<std::string>{R"({"by":3})"});
    return file(dir.file(name + "/model.safetensors"));
  };
  const std::string expected = changed("quiet", -1);
  CHECK((changed("killed", 7) == expected));
  train(dir.file("plain"), own_run("zero3"));
  CHECK((file(dir.file("plain/model.safetensors")) != expected));
  RunChange resumed = own_run("zero3");
  resumed.resume = dir.file("quiet/checkpoint-8");
  train(dir.file("resumed"), resumed);
  CHECK((file(dir.file("resumed/model.safetensors")) == expected));
}

TEST_CASE("arguments of another size are refused to whoever wished them, and the run goes on") {
  troupe::tests::TemporaryDirectory dir;
  auto ranks = make_ranks(dir.file("out"), own_run("ddp"));
  ranks->observers[0].wish_at = {2, R"({"size":50})"};
  for (const Status& status : run_generation(*ranks, 1))
    CHECK_MESSAGE(status.ok(), status.to_string());
  REQUIRE(ranks->observers[0].warnings.size() == 1);
  CHECK(ranks->observers[0].warnings[0].find("has 50 samples") != std::string::npos);
}

TEST_CASE("between steps every rank sees the run, and its part of the weights") {
  troupe::tests::TemporaryDirectory dir;
  const std::int64_t elements = ParameterLayout(tiny_model()).parameter_elements();
  for (const char* strategy : {"ddp", "zero3"}) {
    CAPTURE(strategy);
    auto ranks = make_ranks(dir.file(strategy), own_run(strategy));
    std::int64_t looks = 0, weights[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
      ranks->observers[static_cast<std::size_t>(rank)].look = [&, rank](const TrainingView& view) {
        if (rank == 0) CHECK(view.step() == looks++);
        if (rank == 0) CHECK(view.last_step().step == view.step());
        if (view.step() != 12) return;
        const auto parts = view.weights();
        REQUIRE(parts.ok());
        for (const ParameterValues& part : *parts) weights[rank] += std::ssize(part.values);
      };
    }
    for (const Status& status : run_generation(*ranks, 1))
      CHECK_MESSAGE(status.ok(), status.to_string());
    CHECK(looks == 13);  // before each of 12 steps, and behind the last
    if (std::string(strategy) == "ddp") {
      CHECK(weights[0] == elements);
      CHECK(weights[1] == elements);
    } else {
      CHECK(weights[0] < elements);
      CHECK(weights[0] + weights[1] == elements);
    }
  }
}

TEST_CASE("tokens beyond the vocabulary end the run, naming source and sample") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = own_run("ddp", 1);
  change.change = [before = change.change](RunBundle& bundle) {
    before(bundle);
    bundle.parts.data_source = {{"counting", {{"vocabulary", 100}}}};
  };
  auto ranks = make_ranks(dir.file("out"), change);
  const Status status = run_generation(*ranks, 1)[0];
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("data source \"counting\", sample ") != std::string::npos);
  CHECK(status.message().find("the model's vocabulary has 64") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train::tests
