#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <troupe/train.h>

namespace tr = troupe::train;

// Two numbers, and which of three classes they are of. Sample n follows from n alone: a step that
// is done again after a kill asks for the same ones.
class Rings final : public tr::DataSource {
 public:
  std::int64_t size() const override { return 3000; }
  troupe::Result<tr::TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    const auto of_class = static_cast<float>(number % 3);
    const auto angle = static_cast<float>(number) * 2.4f;
    const float radius = 0.5f + of_class + 0.3f * std::sin(static_cast<float>(number) * 0.7f);
    return tr::TrainingSample{
        .values = {radius * std::cos(angle), radius * std::sin(angle), of_class}};
  }
};

// A network with one hidden layer, and the cross-entropy of the class.
class Classifier final : public tr::OwnModel {
 public:
  explicit Classifier(const tr::Arguments& arguments) : hidden_(arguments.integer("hidden", 32)) {}
  std::vector<tr::OwnTensor> tensors() const override {
    return {{.name = "hidden.weight", .shape = {hidden_, 2}, .initial_deviation = 0.7},
            {.name = "hidden.bias", .shape = {hidden_}, .initial_deviation = 0, .decays = false},
            {.name = "out.weight", .shape = {3, hidden_}, .initial_deviation = 0.1},
            {.name = "out.bias", .shape = {3}, .initial_deviation = 0, .decays = false}};
  }
  std::int64_t sample_values() const override { return 3; }

  troupe::Result<double> evaluate(std::int64_t count, std::span<const float> samples,
                                  std::span<const std::span<const float>> t,
                                  std::span<const std::span<float>> g) const override {
    const auto width = static_cast<std::size_t>(hidden_);
    double loss = 0;
    std::vector<float> hidden(width);
    for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
      const auto x = samples.subspan(3 * n, 3);
      for (std::size_t h = 0; h < width; ++h)
        hidden[h] = std::tanh(t[0][2 * h] * x[0] + t[0][2 * h + 1] * x[1] + t[1][h]);
      std::array<float, 3> p{};
      float sum = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        float logit = t[3][c];
        for (std::size_t h = 0; h < width; ++h) logit += t[2][c * width + h] * hidden[h];
        sum += p[c] = std::exp(logit);
      }
      for (float& one : p) one /= sum;
      const auto target = static_cast<std::size_t>(x[2]);
      loss -= std::log(p[target]);
      if (g.empty()) continue;
      p[target] -= 1;  // the derivative by the logits
      for (std::size_t c = 0; c < 3; ++c) {
        g[3][c] += p[c];
        for (std::size_t h = 0; h < width; ++h) g[2][c * width + h] += p[c] * hidden[h];
      }
      for (std::size_t h = 0; h < width; ++h) {
        float back = 0;
        for (std::size_t c = 0; c < 3; ++c) back += p[c] * t[2][c * width + h];
        back *= 1 - hidden[h] * hidden[h];
        g[0][2 * h] += back * x[0];
        g[0][2 * h + 1] += back * x[1];
        g[1][h] += back;
      }
    }
    return loss;
  }

 private:
  const std::int64_t hidden_;
};

// Told of each step in rank 0's trainer; ends the run where the loss is good enough.
class EndBelow final : public tr::TrainingCallback {
 public:
  explicit EndBelow(const tr::Arguments& arguments) : loss_(arguments.number("loss", 0)) {}
  tr::AfterStep step_finished(const tr::FinishedStep& step) override {
    return step.loss < loss_ ? tr::AfterStep::kEndRun : tr::AfterStep::kGoOn;
  }

 private:
  const double loss_;
};

inline tr::TrainingParts own_parts() {
  return tr::TrainingParts()
      .add<Rings>("rings")
      .add<Classifier>("classifier")
      .add<EndBelow>("end below");
}

// A trainer with a method that the driver, or any actor, calls while it trains.
class Trainer : public tr::TrainerActor {
 public:
  Trainer(troupe::ActorContext& context, tr::TrainerSetup setup)
      : TrainerActor(context, std::move(setup), own_parts()) {}
  troupe::Result<std::int64_t> step() {
    return between_steps([](const tr::TrainingView& run) { return run.step(); });
  }
  static constexpr auto methods = tr::trainer_methods<&Trainer::step>;
  static constexpr auto groups = tr::trainer_groups<&Trainer::step>;
};

inline tr::TrainingJob job(const std::string& output_dir) {
  return {.config = R"(
            overwrite_output_dir: true
            per_device_train_batch_size: 32
            learning_rate: 0.02
            lr_scheduler_type: constant
            max_steps: 300
            troupe: {workers: 2, strategy: zero2})",
          .settings = {"output_dir=" + output_dir},
          .parts = {.data_source = {{"rings"}},
                    .model = {{"classifier", {{"hidden", 32}}}},
                    .callbacks = {{"end below", {{"loss", 0.05}}}}}};
}
