#include "troupe/train/training.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/file_lock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/config/launch.h"
#include "train/config/load.h"
#include "train/config/ray_settings.h"
#include "train/data/sample_stream.h"
#include "train/parts/own_model_passes.h"
#include "train/parts/training_parts.h"
#include "train/report/run_registry.h"
#include "train/trainer/own_data.h"
#include "train/trainer/prepare.h"
#include "train/trainer/reference_log_probs.h"
#include "train/trainer/run_access.h"
#include "train/trainer/run_follower.h"
#include "train/trainer/run_samples.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/trained_part.h"

namespace troupe::train {
namespace {

// Read and found good: the configuration, and what it or the program says is trained.
Result<LoadedConfig> load(FileSystem& files, const TrainingJob& job) {
  if (!job.config.empty() && !job.config_file.empty())
    return error(Code::kInvalidArgument,
                 "TrainingJob has a config and a config_file: leave one of them out");
  LoadOptions options;
  options.brings_model = !job.model_config.empty() || job.parts.model;
  options.brings_data = job.parts.data_source || !job.samples.empty();
  options.defaults = {{"finetuning_type", "full"}};
  const MapEnvironment no_launcher;
  if (!job.config_file.empty()) {
    std::vector<std::string> arguments{job.config_file};
    arguments.insert(arguments.end(), job.settings.begin(), job.settings.end());
    return load_train_config(arguments, no_launcher, files, options);
  }
  return load_train_config_text(job.config, "TrainingJob::config", job.settings, no_launcher, files,
                                options);
}

// Choices are made once here: names and arguments that mean nothing are the caller's mistake, and
// would else end the run in its trainers.
Status check_choices(const PartChoices& choices, const TrainingParts& parts) {
  if (const auto& choice = choices.objective) {
    if (choices.model)
      return error(Code::kInvalidArgument,
                   "a model of the program's own has its own loss: leave parts.objective out");
    TROUPE_RETURN_IF_ERROR(make_objective(parts, *choice).status());
  }
  if (const auto& choice = choices.optimizer)
    TROUPE_RETURN_IF_ERROR(make_optimizer(parts, *choice).status());
  for (const PartChoice& choice : choices.callbacks)
    TROUPE_RETURN_IF_ERROR(make_callback(parts, choice).status());
  return {};
}

// The model, of which `own` is the program's where it trains one.
Status take_model(FileSystem& files, std::string text, const OwnModel* own, RunBundle& bundle) {
  TrainConfig& config = bundle.config;
  if (config.model.resize_vocab || config.model.adds_tokens())
    return error(Code::kUnsupported,
                 "data of the program's own come without a tokenizer: leave resize_vocab, "
                 "add_tokens, add_special_tokens and new_special_tokens_config out");
  if (own) {
    if (!text.empty() || !config.model.model_name_or_path.empty())
      return error(Code::kInvalidArgument,
                   "the program's own model is trained: leave model_config and "
                   "model_name_or_path out");
    if (config.model.compute != Precision::kFloat32)
      return error(Code::kUnsupported,
                   "a model of the program's own computes in fp32: leave bf16, "
                   "fp16 and pure_bf16 out");
    if (config.finetuning.type != FinetuningType::kFull)
      return error(
          Code::kUnsupported,
          "all tensors of a model of the program's own are trained: finetuning_type: full");
    config.model.train_from_scratch = true;
    bundle.model = TROUPE_TRY(config_of(*own));
    text = json::write_indented(bundle.model.source, false) + "\n";
  } else {
    std::string source = "TrainingJob::model_config";
    if (text.empty()) {
      source = join_path(config.model.model_name_or_path, "config.json");
      text = TROUPE_TRY(files.read(source, limits::kJsonFileBytesMax));
    } else {
      config.model.train_from_scratch = true;
    }
    bundle.model = TROUPE_TRY(ModelConfig::parse(text, source));
  }
  bundle.companions["config.json"] = bundle.model.saved_text(std::move(text));
  std::string key;
  TrainedPart trained = TROUPE_TRY(trained_part(files, config, bundle.model, key));
  bundle.trainables = std::move(trained.trainables);
  bundle.adapter = std::move(trained.adapter);
  if (!trained.adapter_config.empty())
    return error(Code::kUnsupported,
                 "with data of its own a program trains a model's own parameters, no adapters: "
                 "finetuning_type: full or freeze");
  return {};
}

// What the run is given, and the checkpoint that it goes on from.
struct Given {
  RunBundle bundle;
  std::string resume_path;
};

// Data and tokenizer are those of the configuration, as in `troupe train`.
Result<Given> from_files(FileSystem& files, const TrainConfig& config, TrainingJob job) {
  if (job.parts.model)
    return error(Code::kInvalidArgument,
                 "a model of the program's own is trained on samples of numbers: choose a data "
                 "source, or give TrainingJob::samples");
  if (!job.model_config.empty())
    return error(Code::kInvalidArgument,
                 "TrainingJob::model_config has no tokenizer for the data set: put both into a "
                 "folder, and name that as model_name_or_path");
  PreparedRun prepared = TROUPE_TRY(prepare_run(files, config, [](const std::string&) {}));
  prepared.bundle.parts = std::move(job.parts);
  std::vector<std::string> notes;
  TROUPE_RETURN_IF_ERROR(add_reference_log_probs(
      files, prepared.bundle, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
      [](const std::string&) {}, notes));
  return Given{std::move(prepared.bundle), std::move(prepared.resume_path)};
}

Result<Given> from_program(FileSystem& files, TrainConfig config, TrainingJob job,
                           const TrainingParts& parts) {
  if (!config.data.dataset.empty() || !config.data.rows.datasets.empty())
    return error(Code::kInvalidArgument,
                 "the configuration names a data set, and the program brings data of its own: "
                 "leave one of them out");
  if (config.evaluation.is_wanted())
    return error(Code::kUnsupported,
                 "with data of its own a program has no data to evaluate on yet: evaluation is "
                 "off");
  Given given;
  RunBundle& bundle = given.bundle;
  bundle.config = std::move(config);
  bundle.parts = std::move(job.parts);
  std::shared_ptr<const OwnModel> own;
  if (bundle.parts.model) own = TROUPE_TRY(make_own_model(parts, *bundle.parts.model));
  TROUPE_RETURN_IF_ERROR(take_model(files, std::move(job.model_config), own.get(), bundle));
  const std::int64_t sample_values = own ? own->sample_values() : 0;
  if (const auto& choice = bundle.parts.data_source) {
    if (!job.samples.empty())
      return error(Code::kInvalidArgument,
                   "TrainingJob has samples, and parts.data_source chooses a source: leave one of "
                   "them out");
    const auto made = TROUPE_TRY(make_source(parts, *choice));
    bundle.source = {.samples = made->size(),
                     .length_max = own ? sample_values + 1 : made->length_max()};
  } else {
    bundle.dataset = TokenDataset(TokenDataset::Kind::kSupervised, 0);
    for (std::size_t i = 0; i < job.samples.size(); ++i) {
      const auto row = row_of(std::move(job.samples[i]), sample_values,
                              std::numeric_limits<std::int32_t>::max(), bundle.model.vocab_size);
      if (!row.ok()) return row.status().prefixed(fmt::format("TrainingJob::samples[{}]", i));
      bundle.dataset.append(row->ids, row->labels);
    }
  }
  TROUPE_RETURN_IF_ERROR(check_length(bundle.model, length_max(bundle)));
  std::vector<std::string> notes;
  const TrainConfig& settled = bundle.config;
  given.resume_path = TROUPE_TRY(resume_point(files, settled, notes));
  const auto& source = bundle.parts.data_source;
  const SampleStream stream = own_stream(
      source ? source->name : "TrainingJob::samples", sample_count(bundle), bundle.dataset,
      static_cast<std::uint32_t>(settled.training.order_seed()), !settled.data.disable_shuffling);
  TROUPE_RETURN_IF_ERROR(check_checkpoint_stream(files, settled, given.resume_path, stream, notes));
  bundle.sample_stream = stream.to_text();
  return given;
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

// A line of the controller's, as the program is told it.
TrainingEvent told_event(const json::Value& line, const std::string& text) {
  using Kind = TrainingEvent::Kind;
  const std::string kind = json::find_string(line, "kind").value_or("");
  const json::Value* inner = json::find(line, "line");
  const json::Value& of = inner ? *inner : line;
  TrainingEvent event{.step = json::find_integer(of, "step").value_or(-1),
                      .rank = static_cast<int>(json::find_integer(of, "rank").value_or(-1)),
                      .loss = json::find_number(of, "loss").value_or(0),
                      .text = text};
  const std::string name = json::find_string(of, "event").value_or("");
  if (kind == "step") event.kind = Kind::kStep;
  if (kind == "evaluation") event.kind = Kind::kEvaluation;
  if (kind == "warning") event.kind = Kind::kWarning;
  if (kind == "checkpoint") {
    event.kind = Kind::kSaved;
    event.text = json::find_string(line, "path").value_or("");
  }
  if (name == events::kDeath || name == events::kHang) event.kind = Kind::kRankLost;
  if (name == events::kRecovered) event.kind = Kind::kRecovered;
  return event;
}

}  // namespace

struct Training::State {
  State(Cluster& c, RunSpec s, RunBundle b)
      : cluster(c), spec(std::move(s)), bundle(std::move(b)) {}
  Cluster& cluster;
  const RunSpec spec;
  const RunBundle bundle;  // for a controller that lost it
  SystemClock clock;
  PosixFileSystem files;
  std::function<void(const TrainingEvent&)> on_event;
  std::optional<FileLock> lock;
  ActorHandle<TrainController> controller;
  std::optional<ControllerWatch> watch;
  std::optional<RunFollower> follower;  // uses all of the above
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
  const RunEnd end = TROUPE_TRY(s.follower->wait(deadline, s.on_event));
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
  LoadedConfig loaded = TROUPE_TRY(load(files, job));
  TrainConfig& wanted = loaded.config;
  wanted.training.output_dir = absolute_path(wanted.training.output_dir);
  if (auto& logs = wanted.training.logging_dir; !logs.empty()) logs = absolute_path(logs);
  TROUPE_RETURN_IF_ERROR(check_choices(job.parts, parts));
  if (const Status made = files.create_directories(wanted.training.output_dir); !made.ok())
    return made.prefixed("output_dir cannot be written");
  auto on_event = std::move(job.on_event);
  Given given = TROUPE_TRY(wanted.data.is_from_program
                               ? from_program(files, std::move(wanted), std::move(job), parts)
                               : from_files(files, wanted, std::move(job)));
  RunBundle& bundle = given.bundle;
  const TrainConfig& config = bundle.config;
  const int world_size = static_cast<int>(loaded.world_size.value);
  if (config.data.streaming)
    return error(
        Code::kUnsupported,
        "streaming reads data sets of dataset_info.json, and this training has data of its "
        "own; leave streaming out");
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
  spec.resume_path = given.resume_path;
  spec.token_cache = bundle.token_cache;
  auto lock = FileLock::take(join_path(config.training.output_dir, kOutputLockFile), spec.run);
  if (!lock.ok() && lock.status().code() != Code::kUnsupported)
    return lock.status().prefixed("output_dir is another run's, or cannot be written");
  if (lock.ok()) spec.output_locked_by = spec.run;

  auto state = std::make_unique<Training::State>(cluster, std::move(spec), std::move(bundle));
  if (lock.ok()) state->lock.emplace(std::move(*lock));
  state->on_event = std::move(on_event);
  state->controller = TROUPE_TRY(spawn_controller(cluster, state->spec));
  Training::State* s = state.get();
  ByteStream progress;
  const auto begin = [&]() -> Status {
    progress = TROUPE_TRY(open_progress(s->controller, Deadline::after(kControllerTimeout)));
    TROUPE_RETURN_IF_ERROR(hand_over(s->controller, s->bundle));
    return s->controller.call<&TrainController::start>().get(kControllerTimeout);
  };
  if (const Status begun = begin(); !begun.ok()) {
    // A run that nobody can follow must not go on.
    static_cast<void>(cluster.stop(s->controller, {.reason = "the run could not be started"}));
    return begun;
  }
  s->watch.emplace(cluster, s->controller);
  RunFollower::MakeEvent make_event;
  if (s->on_event)
    make_event = [](const json::Value& line,
                    const std::string& text) -> std::optional<TrainingEvent> {
      TrainingEvent event = told_event(line, text);
      if (event.kind == TrainingEvent::Kind::kOther && text.empty()) return std::nullopt;
      return event;
    };
  s->follower.emplace(
      std::move(progress), s->clock,
      ProgressLinesOptions{
          .connect = [s](Deadline deadline) { return open_progress(s->controller, deadline); },
          .process = [s] { return s->watch->process(); },
          .tell = [](Interrupt) {},
          .hand_over = [s] { return hand_over(s->controller, s->bundle); }},
      std::move(make_event));
  return Training(std::move(state));
}

Result<TrainingResult> train(Cluster& cluster, TrainingJob job, const TrainingParts& parts,
                             Duration timeout) {
  return TROUPE_TRY(start_training(cluster, std::move(job), parts)).wait(Deadline::after(timeout));
}

namespace detail {
troupe::detail::ActorClass controller_class() {
  return troupe::detail::actor_class<TrainController>();
}
}  // namespace detail

}  // namespace troupe::train
