#include "train/trainer/driver.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "runtime/memory/segment.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/data/byte_model.h"
#include "train/report/format.h"
#include "train/trainer/bundle_transfer.h"
#include "train/trainer/controller.h"
#include "train/trainer/loaded_model.h"
#include "train/trainer/prepare.h"
#include "train/trainer/run_plan.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

constexpr auto kControllerTimeout = std::chrono::seconds(30);
constexpr auto kStopTimeout = std::chrono::seconds(10);
constexpr auto kLook = std::chrono::milliseconds(1000);
constexpr std::int64_t kSampleTokens = 80;

// How the controller said that the run ended.
struct RunEnd {
  Status status;
  std::int64_t failures = 0;
  std::int64_t last_step = 0;
  std::string last_checkpoint;
};

std::string text_of(const json::Value& line, std::string_view key) {
  return json::find_string(line, key).value_or("");
}
double number_of(const json::Value& line, std::string_view key) {
  return json::find_number(line, key).value_or(0);
}

StepSeconds seconds_of(const json::Value& line) {
  const auto* seconds = json::find(line, "seconds");
  return seconds ? step_seconds_from_json(*seconds) : StepSeconds();
}

std::string describe_evaluation(const json::Value& line) {
  return fmt::format("evaluation at step {:.0f}: eval_loss {}  {:.0f} samples in {:.1f} s{}",
                     number_of(line, "step"), format_scientific(number_of(line, "loss")),
                     number_of(line, "samples"), number_of(line, "seconds"),
                     json::find_bool(line, "best").value_or(false) ? "  the best so far" : "");
}

// The driver's end of the controller's progress lines.
class ProgressLines {
 public:
  ProgressLines(UniqueFd socket, DriverEnvironment& environment)
      : socket_(std::move(socket)), environment_(environment) {}

  // Shows progress until the run has ended. `on_interrupt` is called at most once with each wish,
  // kSaveThenEnd first.
  Result<RunEnd> follow(const std::function<void(Interrupt)>& on_interrupt);

 private:
  std::optional<RunEnd> show(const json::Value& line);
  Result<bool> read_more();

  UniqueFd socket_;
  DriverEnvironment& environment_;
  std::optional<ProgressReporter> reporter_;
  std::string buffer_;
};

Result<bool> ProgressLines::read_more() {
  char chunk[1 << 16];
  const ssize_t n = ::recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
  if (n > 0) {
    buffer_.append(chunk, static_cast<std::size_t>(n));
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  return error(Code::kActorDied, "the run's controller is gone{}",
               n < 0 ? fmt::format(": {}", std::strerror(errno)) : "");
}

std::optional<RunEnd> ProgressLines::show(const json::Value& line) {
  const std::string kind = text_of(line, "kind");
  if (kind == "step") {
    const auto step = static_cast<std::int64_t>(number_of(line, "step"));
    if (!reporter_) {
      reporter_.emplace(environment_.clock, environment_.output,
                        static_cast<std::int64_t>(number_of(line, "total_steps")), step - 1);
    }
    reporter_->update({.step = step,
                       .loss = number_of(line, "loss"),
                       .learning_rate = number_of(line, "lr"),
                       .tokens = static_cast<std::int64_t>(number_of(line, "tokens")),
                       .seconds = seconds_of(line),
                       .rates = {.tokens_per_s = number_of(line, "tokens_per_s"),
                                 .gflops = number_of(line, "gflops"),
                                 .gemm_share = number_of(line, "gemm_share")}});
    if (const auto skipped = text_of(line, "skipped"); !skipped.empty()) {
      reporter_->message(fmt::format("warning: step {} was skipped: {}", step, skipped));
    }
    if (json::find_bool(line, "logged").value_or(false)) reporter_->log();
    return std::nullopt;
  }
  if (kind == "end") {
    if (reporter_) reporter_->finish();
    const Code code = code_from_number(static_cast<int>(number_of(line, "code")));
    return RunEnd{code == Code::kOk ? Status() : Status(code, text_of(line, "message")),
                  static_cast<std::int64_t>(number_of(line, "failures")),
                  static_cast<std::int64_t>(number_of(line, "last_step")),
                  text_of(line, "last_checkpoint")};
  }
  std::string text = text_of(line, "text");
  if (kind == "warning") text = "warning: " + text;
  if (kind == "checkpoint") text = "saved " + text_of(line, "path");
  if (kind == "evaluation") text = describe_evaluation(line);
  if (text.empty()) return std::nullopt;
  if (reporter_) {
    reporter_->message(text);
  } else {
    environment_.output.write(text + "\n");
  }
  return std::nullopt;
}

Result<RunEnd> ProgressLines::follow(const std::function<void(Interrupt)>& on_interrupt) {
  bool saving = false;
  std::optional<TimePoint> stop_by;
  for (;;) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0},
                     {stop_by ? -1 : environment_.interrupt_fd, POLLIN, 0}};
    ::poll(fds, 2, static_cast<int>(kLook.count()));
    if (fds[1].revents != 0) {
      const Interrupt wish = environment_.take_interrupt();
      if (wish == Interrupt::kSaveThenEnd && !saving) {
        saving = true;
        on_interrupt(wish);
      } else if (wish != Interrupt::kNone) {
        stop_by = environment_.clock.now() + kStopTimeout;
        on_interrupt(Interrupt::kEnd);
      }
    }
    if (fds[0].revents != 0) TROUPE_RETURN_IF_ERROR(read_more());
    for (std::size_t newline; (newline = buffer_.find('\n')) != std::string::npos;) {
      const auto line = parse_python_json(std::string_view(buffer_).substr(0, newline), "progress");
      buffer_.erase(0, newline + 1);
      if (!line.ok()) return line.status();
      if (auto end = show(*line)) return std::move(*end);
    }
    if (stop_by && environment_.clock.now() > *stop_by) {
      return RunEnd{error(Code::kCancelled, "interrupted")};
    }
  }
}

RunSpec run_spec(const LoadedConfig& loaded, const PreparedRun& prepared,
                 const TrainingCluster& cluster, DriverEnvironment& environment, int world_size,
                 int threads) {
  const TrainConfig& config = loaded.config;
  RunSpec spec;
  spec.run = fmt::format("run-{:08x}", environment.random.next_u64() >> 32);
  spec.output_dir = config.training.output_dir;
  spec.resume_path = prepared.resume_path;
  spec.world_size = world_size;
  spec.threads = threads;
  spec.own_core =
      cluster.embedded && cluster.node_count == 1 && world_size * threads <= environment.cores;
  const auto ranks_per_node = static_cast<std::int32_t>(
      (world_size + cluster.node_count - 1) / std::max<std::int64_t>(1, cluster.node_count));
  spec.ranks_per_node = ranks_per_node;
  spec.overlaps = ranks_per_node * (threads + 1) <= cluster.cores_per_node;
  spec.cpus_per_trainer = threads;
  spec.started_unix_us = environment.clock.unix_time_us();
  spec.wait_timeout_ms = config.training.ddp_timeout_s * 1000;
  if (config.troupe.max_restarts) {
    spec.fruitless_failures_max = static_cast<std::int32_t>(*config.troupe.max_restarts);
  } else if (loaded.launch.max_restarts) {
    // The user's budget takes the place of ours: it alone ends the run.
    spec.restarts_max = static_cast<std::int32_t>(*loaded.launch.max_restarts);
    spec.fruitless_failures_max = *spec.restarts_max + 1;
  }
  spec.faults = config.troupe.chaos;
  if (cluster.embedded) spec.log_dir = join_path(config.training.output_dir, "logs");
  spec.nodes = cluster.nodes;
  return spec;
}

std::string precision_text(const TrainConfig& config) {
  if (state_dtype(config) == DType::kBF16) return "bf16, parameters and moments too";
  return compute_dtype(config) == DType::kBF16 ? "bf16 with fp32 master parameters" : "fp32";
}

Result<RawConnection> open_purpose(Cluster& cluster, const ActorHandle<TrainController>& controller,
                                   const char* purpose) {
  return cluster.client()->connect_to(controller.id(), purpose,
                                      Deadline::after(kControllerTimeout));
}

Status hand_over(Cluster& cluster, const ActorHandle<TrainController>& controller,
                 const RunBundle& bundle) {
  const auto bytes = encode_bundle(bundle);
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-bundle", bytes.size()));
  std::memcpy(segment.data(), bytes.data(), bytes.size());
  const auto road = TROUPE_TRY(open_purpose(cluster, controller, kBundlePurpose));
  return send_bundle(road.socket.get(), road.same_node, segment, Deadline::after(kBundleTimeout));
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
                      const PreparedRun& prepared) {
  const bool held_out = prepared.held_out && prepared.held_out->size() > 0;
  if (!held_out && !config.troupe.sample_prompt) return {};
  auto model = TROUPE_TRY(LoadedModel::open(environment.files, config.training.output_dir,
                                            static_cast<int>(environment.cores)));
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

Status explain_end(const RunEnd& end, const TrainingSection& training) {
  Status status = end.status;
  if (status.ok()) return status;
  if (const auto step = saved_step_of(status)) {
    const std::string name = fmt::format("checkpoint-{}", *step);
    if (end.last_checkpoint == join_path(training.output_dir, name)) {
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

}  // namespace

Result<TrainingSummary> run_training(const LoadedConfig& loaded, DriverEnvironment& environment) {
  const TrainConfig& config = loaded.config;
  const auto say = [&](const std::string& text) { environment.output.write(text + "\n"); };
  for (const auto& warning : loaded.warnings) say("warning: " + warning);
  const TimePoint started = environment.clock.now();
  auto prepared = TROUPE_TRY(prepare_run(environment.files, config, say));
  for (const auto& note : prepared.notes) say(note);

  if (environment.memory) {
    TROUPE_RETURN_IF_ERROR(check_run_fits(prepared.bundle, loaded, loaded.launch.node_count(),
                                          environment.cores, *environment.memory));
  }
  const int world_size = static_cast<int>(loaded.world_size.value);
  auto cluster = TROUPE_TRY(environment.make_cluster(world_size));
  if (cluster.memory) {
    TROUPE_RETURN_IF_ERROR(check_run_fits(prepared.bundle, loaded, cluster.node_count,
                                          cluster.cores_per_node, *cluster.memory));
  }
  const std::int64_t local_workers =
      (world_size + cluster.node_count - 1) / std::max<std::int64_t>(1, cluster.node_count);
  const int threads =
      static_cast<int>(resolve_threads_per_worker(config, cluster.cores_per_node, local_workers));
  if (cluster.embedded && cluster.node_count == 1 && world_size * threads > environment.cores) {
    say(fmt::format("notice: {} trainers × {} threads share {} cores", world_size, threads,
                    environment.cores));
  }
  const RunSpec spec = run_spec(loaded, prepared, cluster, environment, world_size, threads);
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const Mesh mesh = TROUPE_TRY(mesh_of(config, world_size, spec.ranks_per_node));
  say(fmt::format("{}: {} trainers ({}), {} thread{} each, {} in {}", spec.run, world_size,
                  loaded.world_size.from, threads, threads == 1 ? "" : "s",
                  describe(strategy, mesh), precision_text(config)));

  ActorOptions options{.name = "controller/" + spec.run, .num_cpus = 0, .run = spec.run};
  if (!cluster.nodes.empty()) options.node_affinity = cluster.nodes.front();
  const auto controller = TROUPE_TRY(cluster.cluster.spawn<TrainController>(options, spec));
  auto road = TROUPE_TRY(open_purpose(cluster.cluster, controller, kProgressPurpose));
  TROUPE_RETURN_IF_ERROR(hand_over(cluster.cluster, controller, prepared.bundle));
  TROUPE_RETURN_IF_ERROR(controller.call<&TrainController::start>().get(kControllerTimeout));

  ProgressLines lines(std::move(road.socket), environment);
  const auto followed = lines.follow([&](Interrupt wish) {
    if (wish == Interrupt::kSaveThenEnd) {
      say("told to end: saving a checkpoint after this step; told again, the run ends at once");
      static_cast<void>(controller.call<&TrainController::save_and_stop>());
      return;
    }
    say("interrupted: ending the run");
    static_cast<void>(controller.call<&TrainController::stop>(
        error(Code::kCancelled, "interrupted by the user")));
  });
  cluster.cluster.close();
  if (!followed.ok() || !followed->status.ok()) {
    // A trainer that was ended while it saved could not tidy up.
    const Status cleared = clear_unfinished_saves(environment.files, config.training.output_dir);
    if (!cleared.ok()) say("warning: " + cleared.to_string());
  }
  RunEnd end = TROUPE_TRY(followed);
  if (!end.status.ok()) end.last_checkpoint = newest_checkpoint(environment.files, spec, end);
  TROUPE_RETURN_IF_ERROR(explain_end(end, config.training));
  TrainingSummary summary{
      .output_dir = config.training.output_dir,
      .steps = end.last_step,
      .failures = end.failures,
      .seconds = std::chrono::duration<double>(environment.clock.now() - started).count()};
  say(fmt::format("trained {} steps in {}; the model is in {}", summary.steps,
                  format_duration(summary.seconds), summary.output_dir));
  TROUPE_RETURN_IF_ERROR(report_results(environment, config, prepared));
  return summary;
}

}  // namespace troupe::train
