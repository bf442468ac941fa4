// Runs with parts of the program's own, all ranks in one process.
#include <algorithm>
#include <cmath>

#include "runtime/base/random.h"
#include "tests/train/trainer/run_fixture.h"
#include "train/parts/own_model_passes.h"
#include "train/trainer/between_steps.h"

namespace troupe::train::tests {
namespace {

class Half final : public TargetObjective {
 public:
  std::string_view name() const override { return "half"; }
  Status evaluate(const ScoredTargets& targets, std::span<float> losses,
                  std::span<float> derivatives) const override {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      losses[i] = -0.5f * targets.log_probabilities[i];
      derivatives[i] = -0.5f;
    }
    return {};
  }
};

// The same of logits.
class HalfOfLogits final : public LogitsObjective {
 public:
  std::string_view name() const override { return "half of logits"; }
  float evaluate(std::span<float> logits, std::int32_t target, bool differentiates) const override {
    double sum = 0;
    const float greatest = *std::max_element(logits.begin(), logits.end());
    for (const float logit : logits) sum += std::exp(logit - greatest);
    const auto log_sum = static_cast<float>(std::log(sum)) + greatest;
    const float loss = 0.5f * (log_sum - logits[static_cast<std::size_t>(target)]);
    if (!differentiates) return loss;
    for (float& logit : logits) logit = 0.5f * std::exp(logit - log_sum);
    logits[static_cast<std::size_t>(target)] -= 0.5f;
    return loss;
  }
};

class SignSgd final : public ElementwiseOptimizer {
 public:
  std::string_view name() const override { return "signSGD"; }
  std::vector<std::string> slots() const override { return {"mean"}; }
  void update_elements(const ElementwiseStep& step, std::span<float> p, std::span<const float> g,
                       std::span<const std::span<float>> slots) const override {
    for (std::size_t i = 0; i < p.size(); ++i) {
      slots[0][i] = 0.5f * (slots[0][i] + g[i]);
      p[i] -= std::copysign(0.1f * step.learning_rate, slots[0][i]);
    }
  }
};

// y = w·x + b by the mean of squares; a sample is (x…, y).
class Line final : public OwnModel {
 public:
  std::vector<OwnTensor> tensors() const override {
    return {{"w", {3}, 0.1}, {"b", {1}, 0, false}};
  }
  std::int64_t sample_values() const override { return 4; }
  Result<double> evaluate(std::int64_t count, std::span<const float> samples,
                          std::span<const std::span<const float>> tensors,
                          std::span<const std::span<float>> gradients) const override {
    double loss = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto x = samples.subspan(static_cast<std::size_t>(4 * i), 4);
      float left = tensors[1][0] - x[3];
      for (std::size_t k = 0; k < 3; ++k) left += tensors[0][k] * x[k];
      loss += left * left;
      if (gradients.empty()) continue;
      for (std::size_t k = 0; k < 3; ++k) gradients[0][k] += 2 * left * x[k];
      gradients[1][0] += 2 * left;
    }
    return loss;
  }
};

// Of y = x0 − 2·x1 + 0.5·x2 + 1.
class Points final : public DataSource {
 public:
  std::int64_t size() const override { return 64; }
  Result<TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    SeededRandom random(static_cast<std::uint64_t>(number));
    TrainingSample sample;
    for (int k = 0; k < 3; ++k) sample.values.push_back(static_cast<float>(random.unit() - 0.5));
    sample.values.push_back(sample.values[0] - 2 * sample.values[1] + 0.5f * sample.values[2] + 1);
    return sample;
  }
};

class Counting final : public DataSource {
 public:
  explicit Counting(const Arguments& arguments)
      : by_(arguments.integer("by", 1)),
        size_(arguments.integer("size", 100)),
        vocabulary_(arguments.integer("vocabulary", 60)) {}
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
  explicit EndsAt(const Arguments& arguments) : step_(arguments.integer("step", -1)) {}
  void step_begun(std::int64_t step) override { begun = step; }
  AfterStep step_finished(const FinishedStep& record) override {
    return record.step == step_ ? AfterStep::kEndRun : AfterStep::kGoOn;
  }
  void saved(std::int64_t step, const std::string&) override { saves.push_back(step); }
  inline static std::int64_t begun = 0;
  inline static std::vector<std::int64_t> saves;

 private:
  std::int64_t step_;
};

TrainingParts parts() {
  TrainingParts listed;
  listed.add<Half>("half").add<HalfOfLogits>("half of logits").add<SignSgd>("sign");
  listed.add<Counting>("counting").add<EndsAt>("ends").add<Line>("line").add<Points>("points");
  return listed;
}

RunChange own_run(const std::string& strategy, int world = 2, std::int64_t end = -1) {
  return {.world = world,
          .change =
              [=](RunBundle& bundle) {
                bundle.config.sharding.strategy = strategy;
                bundle.config.training.save_steps = 4;
                bundle.dataset = TokenDataset(TokenDataset::Kind::kSupervised, 0);
                bundle.source = {.samples = 100, .length_max = 12};
                bundle.parts = {.objective = PartChoice{"half"},
                                .optimizer = PartChoice{"sign"},
                                .data_source = PartChoice{"counting"},
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

TEST_CASE("a loss of logits trains as the same loss of log-probabilities does") {
  troupe::tests::TemporaryDirectory dir;
  const auto loss_of = [&](const char* objective, bool bf16) {
    RunChange change = own_run("zero2");
    change.change = [=, before = change.change](RunBundle& bundle) {
      before(bundle);
      bundle.parts.objective = PartChoice{objective};
      bundle.parts.optimizer.reset();
      if (bf16) bundle.config.model.compute = Precision::kBfloat16;
    };
    auto ranks = make_ranks(dir.file(objective + std::to_string(bf16)), change);
    double loss = 0;
    ranks->observers[0].look = [&](const TrainingView& view) { loss = view.last_step().loss; };
    for (const Status& status : run_generation(*ranks, 1))
      CHECK_MESSAGE(status.ok(), status.to_string());
    return loss;
  };
  const double expected = loss_of("half", false);
  CHECK(expected > 0.1);
  CHECK(loss_of("half of logits", false) == doctest::Approx(expected).epsilon(1e-4));
  CHECK(loss_of("half of logits", true) == doctest::Approx(expected).epsilon(0.02));
}

TEST_CASE("a model of the program's own: the same bits under every strategy, also over a kill") {
  troupe::tests::TemporaryDirectory dir;
  const auto config = config_of(Line());
  REQUIRE(config.ok());
  std::string expected;
  for (const char* strategy : {"ddp", "zero2", "zero3"}) {
    for (const int kill_at : {-1, 7}) {
      CAPTURE(strategy);
      CAPTURE(kill_at);
      RunChange change = own_run(strategy);
      change.change = [before = change.change, &config](RunBundle& bundle) {
        before(bundle);
        bundle.model = *config;
        bundle.config.training.learning_rate = 0.1;
        bundle.source = {.samples = 64, .length_max = 5};
        bundle.parts = {.data_source = PartChoice{"points"}, .model = PartChoice{"line"}};
      };
      const std::string name = strategy + std::to_string(kill_at);
      auto ranks = make_ranks(dir.file(name), change);
      std::vector<double> losses;
      ranks->observers[0].look = [&](const TrainingView& view) {
        losses.push_back(view.last_step().loss);
      };
      ranks->observers[0].abort_after = kill_at;
      auto ended = run_generation(*ranks, 1);
      if (kill_at >= 0) {
        start_rank(*ranks, 1, dir.file(name), change);
        ranks->observers[0].abort_after = -1;
        ended = run_generation(*ranks, 2);
      }
      for (const Status& status : ended) CHECK_MESSAGE(status.ok(), status.to_string());
      CHECK(losses.back() < 0.3 * losses[1]);
      const std::string model = file(dir.file(name + "/model.safetensors"));
      REQUIRE(model.find("\"w\"") != std::string::npos);
      if (expected.empty()) expected = model;
      CHECK((model == expected));
    }
  }
}

TEST_CASE("tokens beyond the vocabulary end the run, naming source and sample") {
  troupe::tests::TemporaryDirectory dir;
  RunChange change = own_run("ddp", 1);
  change.change = [before = change.change](RunBundle& bundle) {
    before(bundle);
    bundle.parts.data_source = PartChoice{"counting", {{"vocabulary", 100}}};
  };
  auto ranks = make_ranks(dir.file("out"), change);
  const Status status = run_generation(*ranks, 1)[0];
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message().find("data source \"counting\", sample ") != std::string::npos);
  CHECK(status.message().find("the model's vocabulary has 64") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train::tests
