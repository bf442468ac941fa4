#include "train/trainer/training_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/file_lock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/config/launch.h"
#include "train/config/ray_settings.h"
#include "train/data/sample_stream.h"
#include "train/report/run_registry.h"
#include "train/trainer/own_data.h"
#include "train/trainer/prepare.h"
#include "train/trainer/run_access.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/trained_part.h"
#include "troupe/raw_connection.h"

namespace troupe::train {
namespace {

Result<RunBundle> bundle_of(FileSystem& files, TrainingJob job, const TrainingParts& parts) {
  RunBundle bundle;
  bundle.config = std::move(job.config);
  TrainConfig& config = bundle.config;
  if (config.evaluation.is_wanted())
    return error(Code::kUnsupported,
                 "a TrainingJob has no data to evaluate on yet: evaluation is off");
  if (config.model.resize_vocab || config.model.adds_tokens())
    return error(Code::kUnsupported,
                 "a TrainingJob has no tokenizer: leave resize_vocab, add_tokens, "
                 "add_special_tokens and new_special_tokens_config out");
  std::string source = "TrainingJob::model_config";
  if (job.model_config.empty()) {
    source = join_path(config.model.model_name_or_path, "config.json");
    job.model_config = TROUPE_TRY(files.read(source, limits::kJsonFileBytesMax));
  } else {
    config.model.train_from_scratch = true;
  }
  bundle.model = TROUPE_TRY(ModelConfig::parse(job.model_config, source));
  bundle.companions["config.json"] = bundle.model.saved_text(std::move(job.model_config));
  std::string key;
  TrainedPart trained = TROUPE_TRY(trained_part(files, config, bundle.model, key));
  bundle.trainables = std::move(trained.trainables);
  bundle.adapter = std::move(trained.adapter);
  if (!trained.adapter_config.empty())
    return error(Code::kUnsupported,
                 "a TrainingJob trains a model's own parameters: no adapters yet");
  bundle.parts = std::move(job.parts);
  // Every choice is made once here: names and arguments that mean nothing are the caller's mistake,
  // and would else end the run in its trainers.
  if (const auto& choice = bundle.parts.objective)
    TROUPE_RETURN_IF_ERROR(make_part(parts.objectives, *choice).status());
  if (const auto& choice = bundle.parts.optimizer)
    TROUPE_RETURN_IF_ERROR(make_part(parts.optimizers, *choice).status());
  for (const PartChoice& choice : bundle.parts.callbacks)
    TROUPE_RETURN_IF_ERROR(make_part(parts.callbacks, choice).status());
  if (const auto& choice = bundle.parts.data_source) {
    const auto made = TROUPE_TRY(make_source(parts, *choice));
    bundle.source = {.samples = made->size(), .length_max = made->length_max()};
  } else if (job.dataset.size() == 0) {
    return error(
        Code::kInvalidArgument,
        "nothing to train on: TrainingJob::dataset is empty, and parts.data_source chooses "
        "nothing");
  } else {
    bundle.dataset = std::move(job.dataset);
  }
  TROUPE_RETURN_IF_ERROR(check_length(bundle.model, length_max(bundle)));
  return bundle;
}

RunSpec spec_of(const RunBundle& bundle, int world_size, const Clock& clock) {
  const TrainConfig& config = bundle.config;
  RunSpec spec = run_spec_of(config, world_size,
                             static_cast<int>(config.troupe.threads_per_worker.value_or(1)),
                             config.troupe.max_restarts);
  SystemRandom random;
  spec.run = fmt::format("run-{:08x}", random.next_u64() >> 32);
  spec.ranks_per_node = world_size;
  spec.started_unix_us = clock.unix_time_us();
  return spec;
}

}  // namespace

struct Training::State {
  // The program shows what it wants itself.
  class NoOutput final : public ProgressOutput {
   public:
    bool is_terminal() const override { return false; }
    int width() const override { return 80; }
    void write(std::string_view) override {}
  };
  State(Cluster& c, RunSpec s, RunBundle b)
      : cluster(c), spec(std::move(s)), bundle(std::move(b)) {}
  Cluster& cluster;
  const RunSpec spec;
  const RunBundle bundle;  // for a controller that lost it
  SystemClock clock;
  PosixFileSystem files;
  NoOutput output;
  std::optional<FileLock> lock;
  ActorHandle<TrainController> controller;
  std::optional<ControllerWatch> watch;
  std::optional<ProgressLines> lines;
};

Training::Training(std::unique_ptr<State> state) : state_(std::move(state)) {}
Training::Training(Training&&) noexcept = default;
Training& Training::operator=(Training&&) noexcept = default;
Training::~Training() = default;

const std::string& Training::run() const { return state_->spec.run; }
Cluster& Training::cluster() { return state_->cluster; }
std::string Training::trainer_name(int rank) const {
  return fmt::format("{}/trainer-{}", state_->spec.run, rank);
}

Status Training::save_and_stop() {
  return state_->controller.with({.despite_state_loss = true})
      .call<&TrainController::save_and_stop>()
      .get(kControllerTimeout);
}

Result<TrainingResult> Training::wait(Deadline deadline) {
  State& s = *state_;
  const RunEnd end = TROUPE_TRY(s.lines->follow(deadline));
  // It has told all that it knows. What it still does is ending the trainers, whose places are free
  // behind this.
  if (const auto stopped = s.cluster.stop(s.controller, {.reason = "the training run has ended"});
      !stopped.ok() && end.status.ok())
    return stopped.status().prefixed("the run has ended, its processes have not");
  if (end.status.ok())
    return TrainingResult{
        .steps = end.last_step, .recoveries = end.failures, .output_dir = s.spec.output_dir};
  TROUPE_RETURN_IF_ERROR(clear_unfinished_saves(s.files, s.spec.output_dir));
  if (const auto step = saved_step_of(end.status))
    return error(Code::kCancelled, "stopped at step {}, saved {}", *step, end.last_checkpoint);
  return Status(end.status)
      .prefixed(end.last_checkpoint.empty()
                    ? std::string("no checkpoint was written")
                    : fmt::format("the last good checkpoint is {}", end.last_checkpoint));
}

Result<Training> start_training(Cluster& cluster, TrainingJob job, const TrainingParts& parts) {
  PosixFileSystem files;
  job.config.training.output_dir = absolute_path(job.config.training.output_dir);
  if (auto& logs = job.config.training.logging_dir; !logs.empty()) logs = absolute_path(logs);
  const std::string& folder = job.config.training.output_dir;
  if (const Status made = files.create_directories(folder); !made.ok())
    return made.prefixed("output_dir cannot be written");
  RunBundle bundle = TROUPE_TRY(bundle_of(files, std::move(job), parts));
  const TrainConfig& config = bundle.config;
  for (const auto& [name, value] : {std::pair("troupe.workers", config.troupe.workers.value_or(1)),
                                    std::pair("training.per_device_train_batch_size",
                                              config.training.per_device_train_batch_size),
                                    std::pair("training.gradient_accumulation_steps",
                                              config.training.gradient_accumulation_steps)})
    if (value < 1)
      return error(Code::kInvalidArgument, "config.{} is {}: expected at least 1", name, value);
  const int world_size = static_cast<int>(config.troupe.workers.value_or(1));
  if (bundle.parts.data_source && config.data.sample_packing.on)
    return error(
        Code::kUnsupported,
        "troupe.sample_packing with a data source of the program's own, whose samples have "
        "no lengths before they are made: leave one of them out");
  const TokenDataset* packed = bundle.parts.data_source ? nullptr : &bundle.dataset;
  const Sampler sampler =
      TROUPE_TRY(Sampler::make(sampler_options(config, sample_count(bundle), world_size, packed)));
  TROUPE_RETURN_IF_ERROR(
      run_schedule(config, sample_count(bundle), world_size, sampler.packed_batches()).status());
  RunSpec spec = spec_of(bundle, world_size, SystemClock());
  TROUPE_RETURN_IF_ERROR(mesh_of(config, world_size, spec.ranks_per_node).status());
  std::vector<std::string> notes;
  spec.resume_path = TROUPE_TRY(resume_point(files, config, notes));
  const auto& source = bundle.parts.data_source;
  const SampleStream stream = own_stream(
      source ? source->name : "TrainingJob::dataset", sample_count(bundle), bundle.dataset,
      static_cast<std::uint32_t>(config.training.order_seed()), !config.data.disable_shuffling);
  TROUPE_RETURN_IF_ERROR(check_checkpoint_stream(files, config, spec.resume_path, stream, notes));
  bundle.sample_stream = stream.to_text();
  auto lock = FileLock::take(join_path(config.training.output_dir, kOutputLockFile), spec.run);
  if (!lock.ok() && lock.status().code() != Code::kUnsupported)
    return lock.status().prefixed("output_dir is another run's, or cannot be written");
  if (lock.ok()) spec.output_locked_by = spec.run;

  auto state = std::make_unique<Training::State>(cluster, std::move(spec), std::move(bundle));
  if (lock.ok()) state->lock.emplace(std::move(*lock));
  state->controller = TROUPE_TRY(spawn_controller(cluster, state->spec));
  Training::State* s = state.get();
  ByteStream progress;
  const auto begin = [&]() -> Status {
    progress = std::move(TROUPE_TRY(open_purpose(cluster, s->controller, kProgressPurpose,
                                                 Deadline::after(kControllerTimeout)))
                             .stream);
    TROUPE_RETURN_IF_ERROR(hand_over(cluster, s->controller, s->bundle));
    return s->controller.call<&TrainController::start>().get(kControllerTimeout);
  };
  if (const Status begun = begin(); !begun.ok()) {
    // A run that nobody can follow must not go on.
    static_cast<void>(cluster.stop(s->controller, {.reason = "the run could not be started"}));
    return begun;
  }
  s->watch.emplace(cluster, s->controller);
  s->lines.emplace(
      std::move(progress), s->clock, s->output,
      ProgressLinesOptions{
          .connect = [s](Deadline deadline) -> Result<ByteStream> {
            return std::move(
                TROUPE_TRY(open_purpose(s->cluster, s->controller, kProgressPurpose, deadline))
                    .stream);
          },
          .process = [s] { return s->watch->process(); },
          .tell = [](Interrupt) {},
          .hand_over = [s] { return hand_over(s->cluster, s->controller, s->bundle); }});
  return Training(std::move(state));
}

}  // namespace troupe::train
