// A training with parts of one's own: a model learns to go on with arithmetic sequences. Loss,
// optimizer and data are this program's, a callback ends the run, other processes look into the
// trainers between steps, and one of them is killed on the way.
//
//   05_own_training [STRATEGY]     ddp, zero1, zero2, zero3, …

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <troupe/chaos.h>
#include <troupe/train.h>

namespace tr = troupe::train;
using namespace std::chrono_literals;
using troupe::Deadline;

// What is learned already counts less: −(1 − p)^γ · log p of each target (Lin et al., 2017).
class FocalLoss final : public tr::TargetObjective {
 public:
  explicit FocalLoss(const tr::Arguments& arguments)
      : gamma_(static_cast<float>(arguments.number("gamma", 2))) {}
  std::string_view name() const override { return "focal loss"; }
  troupe::Status evaluate(const tr::ScoredTargets& targets, std::span<float> losses,
                          std::span<float> derivatives) const override {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const float log_p = targets.log_probabilities[i];
      const float p = std::exp(log_p), left = std::max(1 - p, 1e-6f);
      const float weight = std::pow(left, gamma_);
      losses[i] = -weight * log_p;
      derivatives[i] = gamma_ * weight / left * p * log_p - weight;
    }
    return {};
  }

 private:
  const float gamma_;
};

// The sign of a mean of gradients is the step (Chen et al., 2023): one slot, where AdamW has two.
class Lion final : public tr::ElementwiseOptimizer {
 public:
  std::string_view name() const override { return "Lion"; }
  std::vector<std::string> slots() const override { return {"exp_avg"}; }
  void update_elements(const tr::ElementwiseStep& step, std::span<float> parameters,
                       std::span<const float> gradients,
                       std::span<const std::span<float>> slots) const override {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      float& mean = slots[0][i];
      const float direction = 0.9f * mean + 0.1f * gradients[i];
      mean = 0.99f * mean + 0.01f * gradients[i];
      parameters[i] -= step.learning_rate * static_cast<float>((direction > 0) - (direction < 0));
    }
  }
};

// Sample n is a sequence whose start and step follow from n; step_max is changed during a run.
class Sequences final : public tr::DataSource {
 public:
  explicit Sequences(const tr::Arguments& arguments)
      : step_max_(arguments.integer("step_max", 3)) {}
  std::int64_t size() const override { return 4096; }
  std::int64_t length_max() const override { return 16; }
  troupe::Result<tr::TrainingSample> sample(std::int64_t, std::int64_t number) const override {
    tr::TrainingSample sample;
    const std::int64_t step = 1 + number % step_max_;
    for (std::int64_t i = 0; i < length_max(); ++i)
      sample.ids.push_back(static_cast<std::int32_t>((number * 7 + i * step) % 32));
    return sample;
  }

 private:
  const std::int64_t step_max_;
};

// Called in rank 0's trainer.
class EndBelow final : public tr::TrainingCallback {
 public:
  explicit EndBelow(const tr::Arguments& arguments) : loss_(arguments.number("loss", 0)) {}
  tr::AfterStep step_finished(const tr::FinishedStep& step) override {
    return step.loss < loss_ ? tr::AfterStep::kEndRun : tr::AfterStep::kGoOn;
  }

 private:
  const double loss_;
};

tr::TrainingParts own_parts() {
  tr::TrainingParts parts;
  parts.add<FocalLoss>("focal").add<Lion>("lion").add<Sequences>("sequences");
  return parts.add<EndBelow>("end below");
}

struct Metrics {
  std::int64_t step = 0;
  double loss = 0;
  std::string data;
  std::int64_t weights = 0;  // how many of them this rank has
};

class SequenceTrainer : public tr::TrainerActor {
 public:
  SequenceTrainer(troupe::ActorContext& context, tr::TrainerSetup setup)
      : TrainerActor(context, std::move(setup), own_parts()) {}

  troupe::Result<Metrics> metrics() {
    return between_steps([](const tr::TrainingView& run) -> troupe::Result<Metrics> {
      Metrics metrics{run.step(), run.last_step().loss, run.data_arguments()};
      for (const auto& part : TROUPE_TRY(run.weights())) metrics.weights += std::ssize(part.values);
      return metrics;
    });
  }
  troupe::Status set_step_max(std::int64_t step_max) {
    return change_data({{"step_max", step_max}});
  }

  static constexpr auto methods =
      tr::trainer_methods<&SequenceTrainer::metrics, &SequenceTrainer::set_step_max>;
  static constexpr auto groups =
      tr::trainer_groups<&SequenceTrainer::metrics, &SequenceTrainer::set_step_max>;
};

namespace {

tr::TrainingJob job_of(const std::string& strategy, const std::string& output_dir) {
  return {.config = R"(
            overwrite_output_dir: true
            per_device_train_batch_size: 8
            learning_rate: 1.0e-3
            lr_scheduler_type: constant
            max_steps: 400
            save_steps: 100
            troupe: {workers: 2})",
          .settings = {"output_dir=" + output_dir, "troupe.strategy=" + strategy},
          .model_config = R"({"architectures": ["LlamaForCausalLM"],
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
            "max_position_embeddings": 32})",
          .parts = {.objective = {{"focal", {{"gamma", 1}}}},
                    .optimizer = {{"lion"}},
                    .data_source = {{"sequences", {{"step_max", 2}}}},
                    .callbacks = {{"end below", {{"loss", 0.4}}}}}};
}

std::string weights_in(const std::string& folder) {
  std::ifstream file(folder + "/model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, tr::training_actors<SequenceTrainer>)) return *code;
  const std::string strategy = argc > 1 ? argv[1] : "zero3";
  char folder[] = "/tmp/own_training-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const std::string out = folder;
  auto cluster = troupe::Cluster::start_embedded({.num_cpus = 2}).value();
  const auto start = [&](const std::string& name) {
    return tr::start_training(cluster, job_of(strategy, out + "/" + name), own_parts());
  };

  // Undisturbed.
  auto undisturbed = start("quiet");
  if (!undisturbed.ok()) {
    std::fprintf(stderr, "%s\n", undisturbed.status().to_string().c_str());
    std::filesystem::remove_all(out);
    return 2;
  }
  const auto quiet = undisturbed->wait(Deadline::after(60s)).value();
  std::printf("the callback ended the run: %s\n", quiet.steps < 400 ? "yes" : "no");

  // Rank 1 is killed in the middle.
  auto training = start("killed").value();
  auto first = training.trainer<SequenceTrainer>(0, Deadline::after(20s)).value();
  auto second = training.trainer<SequenceTrainer>(1, Deadline::after(20s)).value();
  while (first.call<&SequenceTrainer::metrics>().get(30s).value().step < 5) {
  }
  const auto process = troupe::process_of(second, Deadline::after(10s)).value();
  const bool struck = troupe::strike(process, troupe::ActorFault::kKill).ok();
  const auto killed = training.wait(Deadline::after(60s)).value();
  const bool same = weights_in(quiet.output_dir) == weights_in(killed.output_dir);
  std::printf(
      "rank 1 killed: %s, recovered: %s, as many steps and the same bits: %s\n",
      struck ? "yes" : "no", killed.recoveries == 1 ? "yes" : "no",
      same && killed.steps == quiet.steps && !weights_in(quiet.output_dir).empty() ? "yes" : "no");

  // Other data from some step on.
  auto changed = start("changed").value();
  first = changed.trainer<SequenceTrainer>(0, Deadline::after(20s)).value();
  const auto set = first.call<&SequenceTrainer::set_step_max>(5).get(30s);
  const auto metrics = first.call<&SequenceTrainer::metrics>().get(30s).value();
  std::printf("data changed: %s, to %s\n", set.ok() ? "yes" : set.to_string().c_str(),
              metrics.data.c_str());
  const bool done = changed.wait(Deadline::after(60s)).ok();
  std::printf("and trained on to the end: %s\n", done ? "yes" : "no");
  cluster.close();
  std::filesystem::remove_all(out);
  return struck && same && set.ok() && done ? 0 : 1;
}
