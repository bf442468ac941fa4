#include "train/trainer/controller.h"

#include "runtime/base/json.h"
#include "runtime/memory/unix_socket.h"
#include "train/report/format.h"
#include "train/trainer/bundle_transfer.h"

namespace troupe::train {
namespace {

// Also of a trainer's answer where it takes over a descriptor and nothing is copied.
constexpr auto kTrainerConnectTimeout = std::chrono::seconds(20);
// A driver that does not read its progress for so long is as good as gone.
constexpr auto kDriverTimeout = std::chrono::seconds(5);
// By then the head has told of a process that died.
constexpr auto kUnservedPatience = std::chrono::seconds(2);
constexpr std::size_t kUnsentMax = 10'000;

}  // namespace

TrainController::TrainController(ActorContext& context, RunSpec spec)
    : context_(context),
      spec_(std::move(spec)),
      state_({.world_size = spec_.world_size,
              .fruitless_failures_max = spec_.fruitless_failures_max,
              .restarts_max = spec_.restarts_max,
              .save_timeout = std::chrono::milliseconds(spec_.wait_timeout_ms)}),
      fired_(spec_.faults.size(), false),
      last_checkpoint_(spec_.resume_path) {
  const auto on_own_thread = [this](void (TrainController::*then)(UniqueFd, bool)) {
    return [this, then](UniqueFd socket, std::string, bool same_node) {
      auto shared = std::make_shared<UniqueFd>(std::move(socket));
      context_.executor().post(
          [this, then, shared, same_node] { (this->*then)(std::move(*shared), same_node); });
    };
  };
  context_.accept_connections(kBundlePurpose, on_own_thread(&TrainController::take_bundle));
  context_.accept_connections(kProgressPurpose, on_own_thread(&TrainController::take_driver));
}

TrainController::~TrainController() {
  {
    MutexLock lock(clock_mutex_);
    clock_stops_ = true;
    clock_changed_.notify_all();
  }
  if (clock_thread_.joinable()) clock_thread_.join();
}

void TrainController::take_bundle(UniqueFd socket, bool same_node) {
  auto bundle = receive_bundle(socket.get(), same_node, Deadline::after(kBundleTimeout));
  if (bundle.ok()) {
    bundle_ = std::move(*bundle);
  } else {
    context_.log().error("the run's data did not arrive: {}", bundle.status().to_string());
  }
}

void TrainController::take_driver(UniqueFd socket, bool) {
  driver_ = std::move(socket);
  auto lines = std::exchange(unsent_, {});
  for (const auto& line : lines) send_line(line);
}

Status TrainController::start() {
  if (!trainers_.empty()) return error(Code::kFailedPrecondition, "the run was started before");
  if (!bundle_) return error(Code::kFailedPrecondition, "the run's data have not arrived");
  const std::string events_path = join_path(spec_.output_dir, kEventsFile);
  TROUPE_RETURN_IF_ERROR(files_.create_directories(spec_.output_dir));
  if (spec_.resume_path.empty() && files_.exists(events_path)) {
    TROUPE_RETURN_IF_ERROR(files_.remove(events_path));
  }
  events_ = TROUPE_TRY(LineFile::open(files_, events_path));
  std::vector<GangMember<TrainerActor>> members;
  for (int rank = 0; rank < spec_.world_size; ++rank) {
    ActorOptions options{.num_cpus = spec_.cpus_per_trainer,
                         .max_restarts = -1,  // RunState keeps the budget of the whole run
                         .run = spec_.run,
                         .rank = rank};
    if (!spec_.nodes.empty()) {
      const auto per_node = (static_cast<std::size_t>(spec_.world_size) + spec_.nodes.size() - 1) /
                            spec_.nodes.size();
      options.node_affinity = spec_.nodes[static_cast<std::size_t>(rank) / per_node];
    }
    if (!spec_.log_dir.empty()) {
      options.log_path = join_path(spec_.log_dir, fmt::format("rank-{}.log", rank));
    }
    members.emplace_back(std::move(options), context_.self<TrainController>(),
                         TrainerSetup{.run = spec_.run,
                                      .rank = rank,
                                      .world_size = spec_.world_size,
                                      .ranks_per_node = spec_.ranks_per_node,
                                      .threads = spec_.threads,
                                      .overlaps = spec_.overlaps,
                                      .own_core = spec_.own_core,
                                      .resume_path = spec_.resume_path,
                                      .started_unix_us = spec_.started_unix_us,
                                      .wait_timeout_ms = spec_.wait_timeout_ms});
  }
  auto handles = TROUPE_TRY(context_.spawn_gang(std::move(members), true));
  trainers_.resize(handles.size());
  for (std::size_t rank = 0; rank < handles.size(); ++rank) {
    trainers_[rank].handle = handles[rank];
    trainers_[rank].watch = context_.watch(handles[rank], [this,
                                                           rank](const wire::ActorInfo& info) {
      context_.executor().post([this, rank, info] { actor_changed(static_cast<int>(rank), info); });
    });
  }
  feed(TrainersPlaced{});
  clock_thread_ = std::thread([this] {
    MutexLock lock(clock_mutex_);
    while (!clock_changed_.wait_until(clock_mutex_, Deadline::after(std::chrono::seconds(1)),
                                      [this]() TROUPE_NO_ANALYSIS { return clock_stops_; })) {
      context_.executor().post([this, at = clock_.now()] { tick(at); });
    }
  });
  return {};
}

void TrainController::tick(TimePoint at) {
  for (std::size_t rank = 0; rank < trainers_.size() && !state_.ended(); ++rank) {
    Trainer& trainer = trainers_[rank];
    if (!trainer.unserved_since || at - *trainer.unserved_since < kUnservedPatience) continue;
    trainer.unserved_since = at;  // again where the killing fails
    kill_and_restart(static_cast<int>(rank), "it did not take the run's data");
  }
  // Handing out data may take this thread long: what was posted before the tick has been handled,
  // what came later must not seem late.
  feed(TimePassed{}, at);
}

void TrainController::kill_and_restart(int rank, const std::string& reason) {
  const Status killed = context_.kill(trainers_[static_cast<std::size_t>(rank)].handle,
                                      {.allow_restart = true, .reason = reason});
  if (!killed.ok()) {
    context_.log().warning("ending the trainer of rank {}: {}", rank, killed.to_string());
  }
}

void TrainController::actor_changed(int rank, const wire::ActorInfo& info) {
  if (state_.ended()) return;
  Trainer& trainer = trainers_[static_cast<std::size_t>(rank)];
  const bool gone = info.state == wire::ActorState::kDead;
  // The process that was alive is not the one there is now: it died, even where nobody saw the
  // states between.
  const bool alive_died =
      trainer.alive > trainer.died &&
      (info.generation > trainer.alive || info.state == wire::ActorState::kRestarting || gone);
  if (alive_died) {
    trainer.died = trainer.alive;
    trainer.unserved_since.reset();
    feed(TrainerDied{rank, trainer.alive, trainer.node, info.death});
  } else if (info.state == wire::ActorState::kRestarting && info.generation > trainer.died) {
    // It never came alive: its constructor failed or it was killed before.
    trainer.died = info.generation;
    feed(TrainerDied{rank, info.generation, info.node_id.brief(), info.death});
  }
  if (gone) {
    feed(TrainerGone{rank, info.death});
    return;
  }
  if (!info.pending_why.empty()) feed(TrainerWaiting{rank, info.pending_why});
  if (info.state != wire::ActorState::kAlive || info.generation <= trainer.alive) return;
  if (info.generation <= trainer.died) return;
  trainer.alive = info.generation;
  trainer.node = info.node_id.brief();
  if (const Status given = give_bundle(rank); !given.ok()) {
    // Most likely it died meanwhile, which the head will tell. A process that lives is ended: its
    // successor may take them, and the failure counts.
    context_.log().warning("rank {} did not get the run's data: {}", rank, given.to_string());
    trainer.unserved_since = clock_.now();
    feed(TrainerWaiting{rank, fmt::format("it did not get the run's data: {}", given.to_string())});
    return;
  }
  feed(TrainerAlive{rank, info.generation});
}

Status TrainController::give_bundle(int rank) {
  const auto& handle = trainers_[static_cast<std::size_t>(rank)].handle;
  const auto connection = TROUPE_TRY(
      context_.connect_to(handle.id(), kBundlePurpose, Deadline::after(kTrainerConnectTimeout)));
  return send_bundle(
      connection.socket.get(), connection.same_node, *bundle_,
      Deadline::after(connection.same_node ? kTrainerConnectTimeout : kBundleTimeout));
}

void TrainController::report(std::int32_t rank, TrainerMessage message) {
  if (rank < 0 || rank >= spec_.world_size) return;
  std::visit([this](const auto& m) { on(m); }, message);
}

void TrainController::fault_fired(std::int32_t number) {
  if (number >= 0 && static_cast<std::size_t>(number) < fired_.size()) {
    fired_[static_cast<std::size_t>(number)] = true;
  }
}

void TrainController::save_and_stop() { feed(SaveRequested{}); }

void TrainController::stop(Status reason) { feed(StopRequested{std::move(reason)}); }

void TrainController::on(const StepReport& message) {
  if (message.generation != state_.generation()) return;
  tell_driver({{"kind", "step"},
               {"step", message.step},
               {"total_steps", message.total_steps},
               {"loss", message.loss},
               {"grad_norm", message.grad_norm},
               {"lr", message.learning_rate},
               {"tokens", message.tokens},
               {"logged", message.logged},
               {"skipped", message.skipped},
               {"seconds", to_json(message.seconds)},
               {"tokens_per_s", message.rates.tokens_per_s},
               {"gflops", message.rates.gflops},
               {"gemm_share", message.rates.gemm_share}});
  feed(StepFinished{message.generation, message.step});
}

void TrainController::on(const EvaluationReport& message) {
  tell_driver({{"kind", "evaluation"},
               {"step", message.step},
               {"loss", message.loss},
               {"samples", message.samples},
               {"seconds", message.seconds},
               {"best", message.best}});
}

void TrainController::on(const CheckpointReport& message) {
  last_checkpoint_ = message.path;
  tell_driver({{"kind", "checkpoint"}, {"step", message.step}, {"path", message.path}});
}

void TrainController::on(const WarningReport& message) {
  tell_driver({{"kind", "warning"}, {"text", message.text}});
}

void TrainController::on(const PaceReport&) {}

void TrainController::feed(const RunInput& input) { feed(input, clock_.now()); }

void TrainController::feed(const RunInput& input, TimePoint now) {
  for (const RunCommand& command : state_.apply(input, now)) {
    std::visit([this](const auto& c) { carry_out(c); }, command);
  }
}

void TrainController::carry_out(const BeginGeneration& command) {
  GenerationPlan plan{.generation = command.generation};
  for (const Trainer& trainer : trainers_) plan.ranks.push_back(trainer.handle.id());
  for (std::size_t i = 0; i < spec_.faults.size(); ++i) {
    if (fired_[i]) continue;
    plan.fault_numbers.push_back(static_cast<std::int32_t>(i));
    plan.faults.push_back(spec_.faults[i]);
  }
  for (const Trainer& trainer : trainers_) {
    // How it goes is told by report(), or by the actor's end.
    static_cast<void>(trainer.handle.call<&TrainerActor::begin>(plan));
  }
}

void TrainController::carry_out(const AbortGeneration& command) {
  for (const Trainer& trainer : trainers_) {
    // The dead one's call ends by itself.
    static_cast<void>(trainer.handle.with({.timeout = std::chrono::seconds(10)})
                          .call<&TrainerActor::abort>(command.generation, command.reason));
  }
}

void TrainController::carry_out(const KillTrainer& command) {
  context_.log().warning("rank {} is killed: {}", command.rank, command.reason);
  kill_and_restart(command.rank, command.reason);
}

void TrainController::carry_out(const SaveAndStop&) {
  // Lost with the process; the next generation's rank 0 is told again.
  static_cast<void>(trainers_.front().handle.call<&TrainerActor::save_and_stop>());
}

void TrainController::carry_out(const RecordEvent& command) {
  json::Object line{{"kind", "event"},
                    {"event", command.event},
                    {"rank", command.rank},
                    {"step", command.step},
                    {"text", command.text}};
  tell_driver(line);
  RunEvent event{.event = command.event,
                 .generation = static_cast<std::int64_t>(command.generation),
                 .rank = command.rank,
                 .node = command.node,
                 .step = command.step,
                 .lost_steps = command.lost_steps};
  if (command.recovery_ms) event.recovery_ms = static_cast<double>(*command.recovery_ms);
  const Status written = events_->append(event_line(event, clock_.unix_time_us()));
  if (!written.ok()) context_.log().warning("events.jsonl: {}", written.to_string());
}

void TrainController::carry_out(const EndRun& command) {
  Status status = command.status;
  if (!status.ok() && status.code() != Code::kCancelled) {
    status = status.prefixed("training ended");
  }
  tell_driver({{"kind", "end"},
               {"code", static_cast<int>(status.code())},
               {"message", status.to_string()},
               {"failures", state_.failures()},
               {"last_step", state_.last_step()},
               {"last_checkpoint", last_checkpoint_}});
  for (const Trainer& trainer : trainers_) {
    const Status killed = context_.kill(trainer.handle, {.reason = "the training run has ended"});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  }
}

void TrainController::tell_driver(const json::Object& line) {
  // Losses may be NaN, which JSON alone cannot say.
  send_line(python_json(line) + "\n");
}

void TrainController::send_line(const std::string& line) {
  if (!driver_.valid()) {
    if (unsent_.size() < kUnsentMax) unsent_.push_back(line);
    return;
  }
  const Status sent = memory::send_all(driver_.get(), std::as_bytes(std::span(line)),
                                       Deadline::after(kDriverTimeout));
  if (!sent.ok()) driver_.reset();
}

}  // namespace troupe::train
