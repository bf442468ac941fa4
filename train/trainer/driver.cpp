#include "train/trainer/driver.h"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "runtime/base/environment.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/signal_block.h"
#include "runtime/base/text.h"
#include "runtime/process/executable.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/config/ray_settings.h"
#include "train/data/byte_model.h"
#include "train/data/dataset_info.h"
#include "train/report/format.h"
#include "train/report/queued_output.h"
#include "train/report/story.h"
#include "train/trainer/controller.h"
#include "train/trainer/device_choice.h"
#include "train/trainer/disk_plan.h"
#include "train/trainer/kept_places.h"
#include "train/trainer/loaded_model.h"
#include "train/trainer/prediction.h"
#include "train/trainer/prepare.h"
#include "train/trainer/reference_log_probs.h"
#include "train/trainer/run_access.h"
#include "train/trainer/run_plan.h"
#include "train/trainer/run_samples.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/stream_setup.h"
#include "train/trainer/tokenising_lines.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kSampleTokens = 80;
// Whoever waits for a GPU reaches no point: a pass may take seconds.
constexpr std::int64_t kGpuHangTimeoutMs = 30'000;

// What this machine's GPUs are, asked once; an error where trainers run elsewhere.
Result<GpusHere> gpus_here(const TrainConfig& config, const DriverEnvironment& environment) {
  if (config.troupe.device == "cpu" || !environment.gpus_here)
    return error(Code::kNotFound, "nobody has asked");
  return environment.gpus_here();
}

Result<bool> choose_device(const TrainConfig& config, const TrainingCluster& cluster,
                           const Result<GpusHere>& here, DriverEnvironment& environment,
                           int world_size) {
  DeviceOffer offer{.nodes = cluster.node_count, .gpus = cluster.gpus, .usable = {}};
  if (offer.gpus > 0 && here.status().code() != Code::kNotFound) offer.usable = here.status();
  const DeviceDecision decision = TROUPE_TRY(decide_device(config, world_size, offer));
  if (!decision.notice.empty()) environment.output.write(decision.notice + "\n");
  return decision.on_gpus;
}

RunSpec run_spec(const LoadedConfig& loaded, const PreparedRun& prepared,
                 const TrainingCluster& cluster, DriverEnvironment& environment, int world_size,
                 int threads, bool on_gpus) {
  const TrainConfig& config = loaded.config;
  RunSpec spec = run_spec_of(
      config, world_size, threads,
      config.troupe.max_restarts ? config.troupe.max_restarts : loaded.launch.max_restarts);
  spec.resume_path = prepared.resume_path;
  spec.own_core = cluster.embedded && cluster.node_count == 1 && cluster.machines == 0 &&
                  world_size * threads <= environment.cores;
  const auto ranks_per_node =
      static_cast<std::int32_t>(trainers_per_node(config, cluster, world_size));
  spec.ranks_per_node = ranks_per_node;
  // A GPU communicates on a stream of its own, a CPU where there is a core for it.
  spec.overlaps = on_gpus || ranks_per_node * (threads + 1) <= cluster.cores_per_node;
  spec.started_unix_us = environment.clock.unix_time_us();
  // In a cluster of its own nobody else gives room back.
  spec.no_wait = cluster.embedded || environment.no_wait;
  if (on_gpus) spec.hang_timeout_ms = config.troupe.hang_timeout_ms.value_or(kGpuHangTimeoutMs);
  spec.gpus_per_trainer = on_gpus ? config.troupe.gpus_per_worker : 0;
  if (on_gpus) spec.trainer_variables = environment.communicator_variables;
  for (const auto& [name, value] : config.launch.trainer_variables)
    spec.trainer_variables[name] = value;
  // Checked when it was loaded.
  const WorkerResources resources = worker_resources(config).value_or({});
  spec.memory_per_trainer = resources.memory_bytes;
  spec.resources_per_trainer = resources.others;
  if (cluster.embedded) spec.log_dir = join_path(config.training.output_dir, "logs");
  spec.machines = cluster.machines;
  if (cluster.machines_min > 0) {
    spec.machines_min = cluster.machines_min;
    spec.first_machines = cluster.machines_there;
  }
  return spec;
}

std::string elastic_notice(const TrainConfig& config, const RunSpec& spec) {
  return fmt::format(
      "{} to {} machines may come and go, {} are there; every step has the samples of {}, dealt "
      "out to those that there are: {}",
      spec.machines_min, spec.machines, spec.first_machines.size(), spec.machines,
      config.sharding.deterministic == Deterministic::kAcrossWorldSizes
          ? "losses and weights are the same to the last bit however many there are"
          : "losses and weights are the same to rounding (troupe.deterministic: "
            "across_world_sizes: to the last bit)");
}

// Two runs that write into one folder would destroy each other's checkpoints and model. Nothing
// where the file system has no locks.
Result<std::optional<FileLock>> lock_output_dir(const std::string& run, const std::string& folder,
                                                DriverEnvironment& environment) {
  if (const Status made = environment.files.create_directories(folder); !made.ok())
    return made.prefixed("output_dir cannot be written");
  auto lock = FileLock::take(
      join_path(folder, kOutputLockFile),
      fmt::format("{}, process {} on {}, since {}", run, environment.note.pid,
                  environment.note.host_name.empty() ? "this machine" : environment.note.host_name,
                  format_unix_time_us(environment.clock.unix_time_us())));
  if (lock.ok()) return std::optional(std::move(*lock));
  if (lock.status().code() == Code::kUnsupported) {
    environment.output.write(fmt::format(
        "warning: nothing keeps another run out of output_dir: {}\n", lock.status().message()));
    return std::optional<FileLock>();
  }
  if (lock.status().code() != Code::kAlreadyExists)
    return lock.status().prefixed("output_dir cannot be written");
  return output_dir_taken(folder, lock.status());
}

// Paths are those of the command's directory, whatever directory a node's processes are in.
LoadedConfig with_absolute_paths(LoadedConfig loaded) {
  TrainConfig& config = loaded.config;
  for (std::string* path :
       {&config.model.model_name_or_path, &config.data.dataset_dir, &config.training.output_dir,
        &config.training.resume_from_checkpoint.path, &config.training.logging_dir}) {
    if (!path->empty() && *path != kOnline) *path = absolute_path(*path);
  }
  if (auto& second = config.troupe.second_output_dir) second = absolute_path(*second);
  if (auto& tokens = config.data.tokenized_path) tokens = absolute_path(*tokens);
  if (auto& reference = config.method.ref_model) reference = absolute_path(*reference);
  for (auto& adapter : config.method.ref_model_adapters) adapter = absolute_path(adapter);
  return loaded;
}

std::string precision_text(const TrainConfig& config) {
  if (state_dtype(config) == DType::kBF16) return "bf16, parameters and moments too";
  if (config.model.compute == Precision::kFloat32) return "fp32";
  return fmt::format("{} with fp32 master parameters",
                     config.model.compute == Precision::kFloat16 ? "fp16" : "bf16");
}

// Bits per byte on the held-out documents, beside those of a model that sees two bytes.
Status report_held_out(DriverEnvironment& environment, LoadedModel& model,
                       const PreparedRun& prepared) {
  const auto text_of_sample = [&](const TokenDataset& dataset, std::int64_t sample) {
    return model.tokenizer().decode(dataset.ids(sample), true);
  };
  ByteModel bytes;
  for (std::int64_t i = 0; i < prepared.bundle.dataset.size(); ++i) {
    bytes.train(text_of_sample(prepared.bundle.dataset, i));
  }
  double bits = 0;
  double size = 0;
  for (std::int64_t i = 0; i < prepared.held_out->size(); ++i) {
    const std::string text = text_of_sample(*prepared.held_out, i);
    bits += bytes.bits(text);
    size += static_cast<double>(text.size());
  }
  const auto likelihood = TROUPE_TRY(model.likelihood(*prepared.held_out));
  environment.output.write(
      fmt::format("held-out text ({}): {:.3f} bits per byte; an order-2 byte model: {:.3f}\n",
                  format_bytes(static_cast<std::uint64_t>(size)), likelihood.bits_per_byte(),
                  bits / std::max(1.0, size)));
  return {};
}

Status report_results(DriverEnvironment& environment, const TrainConfig& config,
                      const PreparedRun& prepared, const std::string& folder) {
  const bool held_out = prepared.held_out && prepared.held_out->size() > 0;
  if (!held_out && !config.troupe.sample_prompt) return {};
  const int threads = static_cast<int>(environment.cores);
  auto model = TROUPE_TRY(
      prepared.bundle.trainables.adapters_only()
          ? LoadedModel::open(environment.files, config.model.model_name_or_path, threads, {folder})
          : LoadedModel::open(environment.files, folder, threads));
  if (held_out) TROUPE_RETURN_IF_ERROR(report_held_out(environment, *model, prepared));
  if (config.troupe.sample_prompt) {
    environment.output.write("sample: " + *config.troupe.sample_prompt);
    TROUPE_RETURN_IF_ERROR(
        model->generate(*config.troupe.sample_prompt, {.temperature = 0.8, .top_k = 50},
                        kSampleTokens, static_cast<std::uint64_t>(config.training.seed),
                        [&](const std::string& text) { environment.output.write(text); }));
    environment.output.write("\n");
  }
  return {};
}

// After which command the run goes on from its newest checkpoint.
std::string how_to_go_on(const TrainingSection& training) {
  const ResumeFrom::Mode mode = training.resume_from_checkpoint.mode;
  const bool by_itself = mode == ResumeFrom::Mode::kLatest ||
                         (mode == ResumeFrom::Mode::kAuto && !training.overwrite_output_dir);
  return by_itself ? "run the same command to go on"
                   : "run the same command with resume_from_checkpoint=true to go on";
}

// The newest checkpoint of the run that is complete. A save goes on beside the steps: the last one
// may have been finished and not told any more. Its bytes are not read again.
std::string newest_checkpoint(FileSystem& files, const RunSpec& spec, const RunEnd& end) {
  const auto names = find_checkpoints(files, spec.output_dir);
  if (!names.ok()) return end.last_checkpoint;
  for (auto it = names->rbegin(); it != names->rend(); ++it) {
    const std::string path = join_path(spec.output_dir, it->name);
    if (path == end.last_checkpoint) break;
    const auto manifest = read_manifest(files, path);
    if (manifest.ok() && manifest->run == spec.run && check_structure(files, path, manifest).ok())
      return path;
  }
  return end.last_checkpoint;
}

// Whether the run was stopped, and its last checkpoint is that of the step at which it was.
bool saved_at_stop(const RunEnd& end, const std::string& output_dir) {
  const auto step = saved_step_of(end.status);
  return step && end.last_checkpoint == join_path(output_dir, fmt::format("checkpoint-{}", *step));
}

// Ends the cluster. Machines that joined it learn how the run has ended.
void close_cluster(TrainingCluster& cluster, const Result<RunEnd>& followed, const RunSpec& spec,
                   const DriverEnvironment& environment) {
  if (!environment.end_reason) return cluster.cluster.close();
  if (!followed.ok())
    return cluster.cluster.close(environment.end_reason(followed.status(), false));
  RunEnd end = *followed;
  if (!end.status.ok()) end.last_checkpoint = newest_checkpoint(environment.files, spec, end);
  cluster.cluster.close(environment.end_reason(end.status, saved_at_stop(end, spec.output_dir)));
}

Status explain_end(const RunEnd& end, const TrainingSection& training, bool& saved) {
  Status status = end.status;
  if (status.ok()) return status;
  if (const auto step = saved_step_of(status)) {
    const std::string name = fmt::format("checkpoint-{}", *step);
    if (saved_at_stop(end, training.output_dir)) {
      saved = true;
      return error(Code::kCancelled, "stopped at step {}, saved {}; {}", *step, name,
                   how_to_go_on(training));
    }
    status =
        error(Code::kCancelled, "stopped at step {}, but {} could not be written", *step, name);
  }
  const std::string checkpoint =
      end.last_checkpoint.empty()
          ? std::string("no checkpoint was written")
          : fmt::format("the last good checkpoint is {}", end.last_checkpoint);
  return Status(status.code(), fmt::format("{}; {}", status.message(), checkpoint));
}

// The run's recoveries as its events tell them: those in the output directory, or, where that is
// on another machine, those that were told.
RunStory story_of(FileSystem& files, const RunSpec& spec, const std::vector<RunEvent>& told) {
  StorySources sources{.run = spec.run, .output_dir = spec.output_dir};
  auto events = read_events(files, join_path(spec.output_dir, kEventsFile));
  if (events.ok()) sources.events = std::move(*events);
  auto story = read_story(sources);
  if (story.ok() && !story->recoveries.empty()) return std::move(*story);
  sources.events = {told, {}};
  return read_story(sources).value_or(RunStory());
}

// The run in its note.
class RunNote {
 public:
  RunNote(DriverEnvironment& environment, const RunSpec& spec)
      : environment_(environment), record_(environment.note) {
    record_.run = spec.run;
    record_.output_dir = absolute_path(spec.output_dir);
    record_.started_unix_us = spec.started_unix_us;
  }
  void begin() { write(); }
  void started() {
    if (environment_.on_started) environment_.on_started(record_);
  }
  void end(const Status& status, std::int64_t last_step) {
    record_.ended_unix_us = environment_.clock.unix_time_us();
    record_.end = status;
    record_.last_step = last_step;
    write();
  }

 private:
  void write() {
    if (environment_.registry == nullptr) return;
    const Status written = environment_.registry->write(record_);
    if (!written.ok()) {
      environment_.output.write(fmt::format("warning: {} cannot be found by its id: {}\n",
                                            record_.run, written.to_string()));
    }
  }

  DriverEnvironment& environment_;
  RunRecord record_;
};

// Says which of the faults that were to be injected found nothing to strike: whoever tests with
// them must not take that for a run that survived them.
void report_never_struck(DriverEnvironment& environment, const TrainConfig& config,
                         const std::vector<RunEvent>& told, const RunEnd& end) {
  std::vector<std::string> struck;
  if (environment.struck_from_outside) struck = environment.struck_from_outside();
  for (const RunEvent& event : told) {
    if (event.event == events::kFault) struck.push_back(event.fault);
  }
  for (const std::string& fault : never_struck(config.troupe.chaos, struck)) {
    environment.output.write(
        fmt::format("warning: {} never struck: the run ended at step {} before it came to that\n",
                    fault, end.last_step));
  }
}

// "; 2 checkpoints could not be written", or nothing.
std::string failed_checkpoints(const std::vector<RunEvent>& told) {
  const auto failed =
      std::ranges::count(told, std::string_view(events::kCheckpointFailed), &RunEvent::event);
  if (failed == 0) return {};
  return fmt::format("; {} checkpoint{} could not be written", failed, failed == 1 ? "" : "s");
}

// The folder that the model was written to because output_dir had no room; empty: it had.
std::string model_saved_elsewhere(const std::vector<RunEvent>& told) {
  for (const RunEvent& event : told) {
    if (event.event == events::kModelSaved) return event.path;
  }
  return {};
}

// Hashes this program beside other work: the cluster asks for it as soon as the data are there.
std::jthread hash_program() {
  const SignalBlock block;  // the main thread waits for them
  return std::jthread([] {
    if (const auto program = process::Executable::self(); program.ok())
      static_cast<void>((*program)->xxh3());
  });
}

// From the controller's start to the run's end, the cluster closed. `told`: the run's events.
Result<RunEnd> follow_run(TrainingCluster& cluster, const RunSpec& spec, const RunBundle& bundle,
                          DriverEnvironment& environment, ProgressOutput& output, RunNote& note,
                          std::vector<RunEvent>& told) {
  const TrainConfig& config = bundle.config;
  const auto controller = TROUPE_TRY(spawn_controller(cluster.cluster, spec));
  ByteStream progress = TROUPE_TRY(open_progress(controller, Deadline::after(kControllerTimeout)));
  TROUPE_RETURN_IF_ERROR(hand_over(controller, bundle));
  TROUPE_RETURN_IF_ERROR(controller.call<&TrainController::start>().get(kControllerTimeout));
  note.started();
  // Its wishes count for a controller without its memory, too.
  const auto surely = controller.with({.despite_state_loss = true});
  const ControllerWatch watch(cluster.cluster, controller);

  ProgressLinesOptions lines_options{
      .connect = [&](Deadline deadline) { return open_progress(controller, deadline); },
      .process = [&] { return watch.process(); },
      .tell =
          [&](Interrupt wish) {
            if (wish == Interrupt::kSaveThenEnd) {
              static_cast<void>(surely.call<&TrainController::save_and_stop>());
            } else {
              static_cast<void>(surely.call<&TrainController::stop>(
                  error(Code::kCancelled, "interrupted by the user")));
            }
          },
      .hand_over = [&] { return hand_over(controller, bundle); },
      .interrupt_fd = environment.interrupt_fd,
      .take_interrupt = environment.take_interrupt,
      .stop_timeout = std::chrono::seconds(config.troupe.stop_timeout_s),
      .take_save_wish = [&]() -> std::optional<std::string> {
        if (!environment.registry) return std::nullopt;
        return environment.registry->take_save_wish(spec.run);
      },
      .save_to =
          [&](const std::string& folder) {
            static_cast<void>(surely.call<&TrainController::save_to>(folder));
          }};
  ProgressLines lines(std::move(progress), environment.clock, output, std::move(lines_options));
  auto end = lines.follow();
  told = lines.events();
  return end;
}

// The prompts, found good before anything is started.
Result<std::optional<PreparedPrediction>> prepare_to_predict(const TrainConfig& config,
                                                             const ModelConfig& model,
                                                             const Tokenizer& tokenizer,
                                                             DriverEnvironment& environment) {
  if (!config.prediction.do_predict) return std::optional<PreparedPrediction>();
  auto prepared =
      TROUPE_TRY(prepare_prediction(environment.files, SystemEnvironment(), config, tokenizer));
  for (const auto& note : prepared.notes) environment.output.write(note + "\n");
  std::int64_t longest = 0;
  for (const PromptRow& row : prepared.prompts.rows)
    longest = std::max(longest, std::ssize(row.prompt) + 1);
  TROUPE_RETURN_IF_ERROR(check_length(model, longest));
  if (config.model.quantization_bit) {
    environment.output.write(
        "notice: predictions are made by the weights as they are stored, not by quantized ones\n");
  }
  return std::optional(std::move(prepared));
}

// How many processes that hold the whole model in fp32 a machine has room for, `wanted` at most.
Result<int> predictors_that_fit(const ModelConfig& model, int wanted, int machines,
                                const std::optional<NodeMemory>& memory, std::string& notice) {
  if (!memory) return wanted;
  const auto bytes = static_cast<std::int64_t>(sizeof(float)) *
                     ModelLayout(model, Trainables{}).trained().total_elements();
  const std::int64_t fit = memory->available_bytes / std::max<std::int64_t>(1, bytes) * machines;
  if (fit >= wanted) return wanted;
  const auto sizes = fmt::format(
      "a prediction holds the model in fp32, {}, and {} are free",
      format_bytes(static_cast<std::uint64_t>(bytes)),
      format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, memory->available_bytes))));
  if (fit < 1) return error(Code::kOutOfMemory, "{} on a machine: predict on a larger one", sizes);
  notice = fmt::format("notice: {}: {} of {} processes predict", sizes, fit, wanted);
  return static_cast<int>(fit);
}

// Which model predicts, and where.
struct Predictor {
  std::string run;
  std::string model;
  std::vector<std::string> adapters;
  int processes = 1;
  int threads = 1;
  ActorOptions member;
};

Status predict(const TrainConfig& config, const PreparedPrediction& prepared,
               const Predictor& predictor, const Cluster& cluster, DriverEnvironment& environment) {
  const auto say = [&](const std::string& text) { environment.output.write(text + "\n"); };
  PredictionJob job{.setup = predictor_setup(config, prepared, predictor.model, predictor.adapters,
                                             predictor.threads),
                    .predictors = predictor.processes,
                    .member = predictor.member,
                    .batch_rows = config.evaluation.per_device_eval_batch_size,
                    .seed = static_cast<std::uint64_t>(config.training.seed)};
  const std::int64_t rows = std::ssize(prepared.prompts.rows);
  say(fmt::format("{}: predicting {} in {}, {} each", predictor.run, count_of(rows, "row"),
                  count_of(job.predictors, "process"), count_of(predictor.threads, "thread")));
  constexpr std::chrono::seconds kSayEvery{10};
  const TimePoint begin = environment.clock.now();
  TimePoint said = begin;
  const auto seconds_since = [&](TimePoint time) {
    return std::chrono::duration<double>(environment.clock.now() - time).count();
  };
  const PredictionWatch watch{
      .progress =
          [&](std::int64_t done, std::int64_t) {
            if (done == 0 || done == rows || environment.clock.now() - said < kSayEvery) return;
            said = environment.clock.now();
            const double left =
                seconds_since(begin) / static_cast<double>(done) * static_cast<double>(rows - done);
            say(fmt::format("predicted {}/{} rows  {} left", done, rows, format_duration(left)));
          },
      .is_stopped =
          [&] {
            pollfd wish{.fd = environment.interrupt_fd, .events = POLLIN, .revents = 0};
            return environment.interrupt_fd >= 0 && ::poll(&wish, 1, 0) > 0 &&
                   environment.take_interrupt() != Interrupt::kNone;
          },
      .trouble =
          [&](const Status& why) {
            say("warning: a process that predicts is missing, another one takes its rows: " +
                why.message());
          }};
  const auto answers = TROUPE_TRY(predict_rows(cluster, prepared.prompts.rows, job, watch));
  const double seconds = seconds_since(begin);
  std::vector<std::string> notes;
  const json::Object metrics = TROUPE_TRY(save_predictions(
      environment.files, config, prepared, answers, seconds, predictor.processes, notes));
  for (const auto& note : notes) say(note);
  std::string scores;
  for (const auto& [key, name] :
       {std::pair("predict_bleu-4", "BLEU-4"), std::pair("predict_rouge-1", "ROUGE-1"),
        std::pair("predict_rouge-2", "ROUGE-2"), std::pair("predict_rouge-l", "ROUGE-L")}) {
    if (const auto score = json::find_number(metrics, key))
      scores += fmt::format("{}{} {:.2f}", scores.empty() ? "" : ", ", name, *score);
  }
  say(fmt::format("predicted {} in {}: {}; they are in {}", count_of(rows, "row"),
                  format_duration(seconds), scores,
                  join_path(config.training.output_dir, "generated_predictions.jsonl")));
  return {};
}

ActorOptions predictor_options(const std::string& run, double cpus) {
  // A pool replaces a member that dies; what a member holds comes back when it is read again.
  return {.name = run + "/predictor", .num_cpus = cpus, .run = run};
}

void say_cpus_predict(DriverEnvironment& environment) {
  environment.output.write("notice: text is generated on the CPUs, not on GPUs\n");
}

// By the model that the run has written, on the places that its trainers had.
Status predict_after(const TrainConfig& config, const PreparedRun& prepared,
                     const PreparedPrediction& prediction, const TrainingCluster& cluster,
                     const RunSpec& spec, const std::string& elsewhere,
                     DriverEnvironment& environment) {
  const RunBundle& bundle = prepared.bundle;
  const std::string folder = elsewhere.empty() ? config.training.output_dir : elsewhere;
  std::string notice;
  const int processes = TROUPE_TRY(
      predictors_that_fit(bundle.model, spec.world_size, static_cast<int>(cluster.node_count),
                          cluster.memory ? cluster.memory : environment.memory, notice));
  if (!notice.empty()) environment.output.write(notice + "\n");
  Predictor predictor{.run = spec.run,
                      .model = folder,
                      .adapters = {},
                      .processes = processes,
                      .threads = spec.threads,
                      .member = predictor_options(spec.run, spec.cpus_per_trainer)};
  if (bundle.trainables.adapters_only()) {
    predictor.model = config.model.model_name_or_path;
    predictor.adapters = bundle.merged_adapters;
    predictor.adapters.push_back(folder);
  }
  if (spec.gpus_per_trainer > 0) say_cpus_predict(environment);
  if (!spec.bundles.empty()) predictor.member.placement_group = spec.places;
  return predict(config, prediction, predictor, cluster.cluster, environment);
}

// do_predict without a training.
Result<TrainingSummary> predict_alone(const LoadedConfig& loaded, const std::string& output_dir,
                                      DriverEnvironment& environment) {
  const TrainConfig& config = loaded.config;
  const TimePoint started = environment.clock.now();
  RunContents contents;
  if (environment.contents) {
    contents = std::move(*environment.contents);
  } else {
    std::vector<ContentProblem> problems;
    contents = read_contents(environment.files, config, problems);
    if (!problems.empty()) return problems.front().status;
  }
  for (const auto& note : contents.notes) environment.output.write(note + "\n");
  const auto prepared =
      TROUPE_TRY(prepare_to_predict(config, *contents.model, *contents.tokenizer, environment));
  const int wanted = static_cast<int>(loaded.world_size.value);
  auto cluster = TROUPE_TRY(environment.make_cluster(wanted));
  const std::string run = fmt::format("run-{:08x}", environment.random.next_u64() >> 32);
  const auto end = [&](const Status& status) {
    if (environment.end_reason) {
      cluster.cluster.close(environment.end_reason(status, false));
    } else {
      cluster.cluster.close();
    }
    return status;
  };
  const auto lock = lock_output_dir(run, config.training.output_dir, environment);
  if (!lock.ok()) return end(lock.status());
  const int machines = static_cast<int>(std::max<std::int64_t>(1, cluster.node_count));
  std::string notice;
  const auto processes =
      predictors_that_fit(*contents.model, wanted, machines,
                          cluster.memory ? cluster.memory : environment.memory, notice);
  if (!processes.ok()) return end(processes.status());
  if (!notice.empty()) environment.output.write(notice + "\n");
  if (config.troupe.device == "cuda") say_cpus_predict(environment);
  const int threads = static_cast<int>(resolve_threads_per_worker(
      config, cluster.cores_per_node, trainers_per_node(config, cluster, *processes)));
  std::vector<std::string> adapters = config.finetuning.adapter_name_or_path;
  for (std::string& adapter : adapters) adapter = absolute_path(adapter);
  RunSpec spec;
  spec.run = run;
  spec.output_dir = config.training.output_dir;
  spec.started_unix_us = environment.clock.unix_time_us();
  RunNote note(environment, spec);
  note.begin();
  note.started();
  const Status predicted =
      end(predict(config, *prepared,
                  {.run = run,
                   .model = config.model.model_name_or_path,
                   .adapters = std::move(adapters),
                   .processes = *processes,
                   .threads = threads,
                   .member = predictor_options(run, cpus_per_trainer(config, threads))},
                  cluster.cluster, environment));
  note.end(predicted, 0);
  TROUPE_RETURN_IF_ERROR(predicted);
  if (environment.on_ended) environment.on_ended();
  return TrainingSummary{
      .run = run,
      .output_dir = output_dir,
      .seconds = std::chrono::duration<double>(environment.clock.now() - started).count()};
}

}  // namespace

Result<TrainingSummary> run_training(const LoadedConfig& given, DriverEnvironment& environment) {
  const LoadedConfig loaded = with_absolute_paths(given);
  const TrainConfig& config = loaded.config;
  const auto say = [&](const std::string& text) { environment.output.write(text + "\n"); };
  for (const auto& warning : loaded.warnings) say("warning: " + warning);
  for (const auto& notice : loaded.notices) say("notice: " + notice);
  if (!config.trains()) return predict_alone(loaded, given.config.training.output_dir, environment);
  const auto here = gpus_here(config, environment);
  if (config.troupe.device == "cuda" && !here.ok() && here.status().code() != Code::kNotFound)
    return here.status().prefixed("troupe.device=cuda");
  const std::jthread hashing = hash_program();
  const TimePoint started = environment.clock.now();
  const std::string run = fmt::format("run-{:08x}", environment.random.next_u64() >> 32);
  TokenisingLines tokenising(environment.clock, environment.output);
  const SampleProgress progress = [&](const SamplesMade& made) { tokenising.show(made); };
  auto prepared = TROUPE_TRY(
      environment.contents
          ? prepare_run(environment.files, config, say, std::move(*environment.contents), progress,
                        environment.remove_at_signal)
          : prepare_run(environment.files, config, say, progress, environment.remove_at_signal));
  tokenising.finish();
  for (const auto& note : prepared.notes) say(note);
  const auto to_predict = TROUPE_TRY(
      prepare_to_predict(config, prepared.bundle.model, prepared.tokenizer, environment));
  if (config.data.streaming)
    prepared.bundle.source = stream_facts(config, static_cast<int>(loaded.world_size.value));

  const auto fits = [&](std::int64_t machines, std::int64_t cores, const NodeMemory& memory,
                        bool on_gpus) -> Status {
    LoadedConfig smallest = loaded;
    if (loaded.launch.elastic())
      smallest.world_size.value = loaded.world_size.value / loaded.launch.node_count() * machines;
    auto fits = check_run_fits(prepared.bundle, smallest, machines, cores, memory, on_gpus);
    if (!fits.ok() && loaded.launch.elastic())
      return fits.status().prefixed(fmt::format("with MIN_NNODES={} machines", machines));
    const std::string notice = TROUPE_TRY(std::move(fits));
    if (!notice.empty()) say("notice: " + notice);
    return {};
  };
  // A world that may shrink must fit when it has.
  const std::int64_t fewest_machines = loaded.launch.nodes_min.value_or(loaded.launch.node_count());
  // Of GPUs more is known once there are nodes.
  const bool perhaps_on_gpus = here.ok() && here->count > 0;
  if (environment.memory && !perhaps_on_gpus) {
    TROUPE_RETURN_IF_ERROR(fits(fewest_machines, environment.cores, *environment.memory, false));
  }
  const int world_size = static_cast<int>(loaded.world_size.value);
  // The sampler's rounds are those of all ranks.
  const std::int64_t samples = sample_count(prepared.bundle);
  const Sampler sampler = TROUPE_TRY(Sampler::make(
      sampler_options(config, samples, world_size,
                      makes_samples(prepared.bundle) ? nullptr : &prepared.bundle.dataset)));
  const RunSchedule schedule =
      TROUPE_TRY(run_schedule(config, samples, world_size, sampler.packed_batches()));
  if (environment.check_disk) {
    const std::string& folder = config.training.output_dir;
    const DiskPlan disk =
        plan_disk(config, prepared.bundle.model, prepared.bundle.trainables, schedule);
    // Where that cannot be told, the run finds out.
    if (const auto room = room_in(folder); room.ok()) {
      TROUPE_RETURN_IF_ERROR(check_disk(disk, *room, folder));
      if (const auto notice = disk_notice(disk, *room, folder); !notice.empty()) say(notice);
    }
  }
  if (const Status ranks = check_ranks(config.troupe.chaos, world_size); !ranks.ok())
    return ranks.prefixed("troupe.chaos");
  if (!prepared.resume_path.empty() && !prepared.bundle.parts.optimizer) {
    // Rank 0 would refuse it, too, when all have started.
    const std::string& path = prepared.resume_path;
    FileSystem& files = environment.files;
    const auto good = check_structure(files, path, read_manifest(files, path));
    const ModelLayout layout(prepared.bundle.model, prepared.bundle.trainables);
    if (good.ok()) {
      TROUPE_RETURN_IF_ERROR(check_optimizer_state(
          files, *good, *optimizer_of(config, prepared.bundle.model), layout.trained().groups()));
      TROUPE_RETURN_IF_ERROR(check_optimizer_settings(files, *good, config));
    }
  }
  // Before signals are caught: Ctrl-C ends it at once.
  if (const auto bytes = reference_pass_bytes(prepared.bundle);
      environment.memory && bytes > environment.memory->available_bytes)
    return error(Code::kResourceExhausted,
                 "troupe.precompute_ref_log_probs: the reference takes {} here while it is asked, "
                 "and {} are free; leave the key out, or start the run on a larger machine",
                 format_bytes(static_cast<std::uint64_t>(bytes)),
                 format_bytes(static_cast<std::uint64_t>(
                     std::max<std::int64_t>(0, environment.memory->available_bytes))));
  std::vector<std::string> of_reference;
  TROUPE_RETURN_IF_ERROR(add_reference_log_probs(
      environment.files, prepared.bundle, static_cast<int>(environment.cores), say, of_reference));
  for (const std::string& note : of_reference) say(note);
  auto cluster = TROUPE_TRY(environment.make_cluster(world_size));
  // Where signals are caught by now, so that no lock is left behind.
  const auto lock = TROUPE_TRY(lock_output_dir(run, config.training.output_dir, environment));
  const bool on_gpus = TROUPE_TRY(choose_device(config, cluster, here, environment, world_size));
  TROUPE_RETURN_IF_ERROR(
      check_optimizer(config, prepared.bundle.model, prepared.bundle.trainables, on_gpus));
  TROUPE_RETURN_IF_ERROR(check_trained_part(prepared.bundle.trainables, on_gpus));
  if (environment.memory && perhaps_on_gpus) {
    NodeMemory memory = *environment.memory;
    memory.device_bytes = here->memory_bytes;
    TROUPE_RETURN_IF_ERROR(fits(fewest_machines, environment.cores, memory, on_gpus));
  }
  if (cluster.memory) {
    TROUPE_RETURN_IF_ERROR(fits(loaded.launch.elastic() ? fewest_machines : cluster.node_count,
                                cluster.cores_per_node, *cluster.memory, on_gpus));
  }
  const std::int64_t local_workers = trainers_per_node(config, cluster, world_size);
  const int threads =
      static_cast<int>(resolve_threads_per_worker(config, cluster.cores_per_node, local_workers));
  const std::int64_t trainers_here = cluster.machines > 0 ? local_workers : world_size;
  if (cluster.embedded && cluster.node_count == 1 && trainers_here * threads > environment.cores) {
    say(fmt::format("notice: {} × {} share {}", count_of(trainers_here, "trainer"),
                    count_of(threads, "thread"), count_of(environment.cores, "core")));
  }
  RunSpec spec = run_spec(loaded, prepared, cluster, environment, world_size, threads, on_gpus);
  spec.run = run;
  if (lock) spec.output_locked_by = run;
  spec.token_cache = prepared.bundle.token_cache;
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const int first_ranks = spec.elastic()
                              ? static_cast<int>(spec.first_machines.size()) * spec.ranks_per_node
                              : world_size;
  if (spec.elastic()) {
    TROUPE_RETURN_IF_ERROR(check_world(loaded, on_gpus));
    say(elastic_notice(config, spec));
  }
  const Mesh mesh = TROUPE_TRY(mesh_of(config, first_ranks, spec.ranks_per_node));
  say(fmt::format("{}: {} trainer{} ({}), {}{} thread{} each, {} in {}", spec.run, first_ranks,
                  first_ranks == 1 ? "" : "s", loaded.world_size.from, on_gpus ? "a GPU and " : "",
                  threads, threads == 1 ? "" : "s", describe(strategy, mesh),
                  precision_text(config)));

  TROUPE_RETURN_IF_ERROR(keep_places(config, cluster, spec));

  RunNote note(environment, spec);
  note.begin();
  std::vector<RunEvent> told;
  // A terminal that is stopped holds up neither a new controller, which waits for the driver, nor
  // the closing of the cluster.
  QueuedOutput output(environment.output);
  auto followed = follow_run(cluster, spec, prepared.bundle, environment, output, note, told);
  Status predicted;
  if (to_predict && followed.ok() && followed->status.ok()) {
    output.finish();
    predicted = predict_after(config, prepared, *to_predict, cluster, spec,
                              model_saved_elsewhere(told), environment);
  }
  close_cluster(cluster, followed, spec, environment);
  output.finish();
  if (!followed.ok() || !followed->status.ok()) {
    // A trainer that was ended while it saved could not tidy up.
    const Status cleared = clear_unfinished_saves(environment.files, config.training.output_dir);
    if (!cleared.ok()) say("warning: " + cleared.to_string());
  }
  const double seconds = std::chrono::duration<double>(environment.clock.now() - started).count();
  const RunStory story = story_of(environment.files, spec, told);
  const double run_ms = story.run_ms() > 0 ? story.run_ms() : seconds * 1000;
  if (auto table = recovery_table(story.recoveries, run_ms); !table.empty()) {
    environment.output.write(table);
  }
  if (!followed.ok()) {
    note.end(followed.status(), 0);
    return followed.status();
  }
  RunEnd end = std::move(*followed);
  report_never_struck(environment, config, told, end);
  if (!end.status.ok()) end.last_checkpoint = newest_checkpoint(environment.files, spec, end);
  const Status explained = explain_end(end, config.training, environment.saved_at_stop);
  note.end(explained, end.last_step);
  if (!explained.ok()) {
    if (environment.registry != nullptr && explained.code() != Code::kCancelled) {
      say(fmt::format("'troupe why {}' tells what happened", spec.run));
    }
    return explained;
  }
  const std::string elsewhere = model_saved_elsewhere(told);
  TrainingSummary summary{
      .run = spec.run,
      .output_dir = elsewhere.empty() ? given.config.training.output_dir : elsewhere,
      .steps = end.last_step,
      .failures = end.failures,
      .seconds = seconds,
      .recoveries = story.recoveries,
      .recovery = summarize(story.recoveries, run_ms)};
  const bool trained = summary.steps > story.first_step;
  say(fmt::format("{} in {}; the {} in {}{}",
                  trained
                      ? "trained " + count_of(summary.steps, "step")
                      : fmt::format("nothing was left to train after step {}: done", summary.steps),
                  format_duration(summary.seconds),
                  given.config.finetuning.is_lora() ? "adapter is" : "model is", summary.output_dir,
                  failed_checkpoints(told)));
  TROUPE_RETURN_IF_ERROR(predicted);
  if (environment.on_ended) environment.on_ended();
  TROUPE_RETURN_IF_ERROR(report_results(
      environment, config, prepared, elsewhere.empty() ? config.training.output_dir : elsewhere));
  return summary;
}

}  // namespace troupe::train
