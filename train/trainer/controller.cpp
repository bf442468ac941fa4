#include "train/trainer/controller.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "train/progress/progress_record.h"
#include "train/report/run_event.h"
#include "train/trainer/bundle_transfer.h"
#include "train/trainer/progress_memory.h"
#include "train/trainer/told_reports.h"

namespace troupe::train {
namespace {

// For the answer of a trainer that has taken the run's data.
constexpr auto kStatusTimeout = std::chrono::seconds(20);
// A death's event waits so long for the memory of the dead.
constexpr auto kPostMortemTimeout = std::chrono::milliseconds(500);
// A keeper's processes end together.
constexpr auto kKeeperEventsApart = std::chrono::seconds(3);

}  // namespace

TrainController::TrainController(ActorContext& context, RunSpec spec)
    : context_(context),
      spec_(std::move(spec)),
      journal_(files_, clock_, context.log(), spec_.output_dir),
      state_(settings()),
      bundle_(context),
      fired_(spec_.faults.size(), 0),
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
  if (context_.generation() > 1) {
    // After load(), which says whether the process before left its memory.
    context_.executor().post([this] {
      if (restored_) return;
      finding_ = true;
      beside_.run([this] {
        context_.executor().post(
            [this, found = find_run(context_, spec_, files_, clock_)] { found_run(found); });
      });
    });
  }
}

TrainController::~TrainController() {
  {
    MutexLock lock(clock_mutex_);
    clock_stops_ = true;
    clock_changed_.notify_all();
  }
  if (clock_thread_.joinable()) clock_thread_.join();
}

RunSettings TrainController::settings() const {
  return {.world_size = spec_.world_size,
          .fruitless_failures_max = spec_.fruitless_failures_max,
          .restarts_max = spec_.restarts_max,
          .respawn_timeout = std::chrono::milliseconds(spec_.join_timeout_ms),
          .save_timeout = std::chrono::milliseconds(spec_.stop_timeout_ms),
          .post_mortem_timeout = kPostMortemTimeout};
}

// --- the run's data, the driver ------------------------------------------------------------------

void TrainController::take_bundle(UniqueFd socket, bool same_node) {
  if (const Status received = bundle_.receive(std::move(socket), same_node); !received.ok()) {
    context_.log().error("the run's data did not arrive: {}", received.to_string());
    return;
  }
  for (const int number : processes_.unserved()) give_bundle(number);
}

void TrainController::take_driver(UniqueFd socket, bool) {
  json::Object first;
  if (state_.ended()) {
    first = end_line(*state_.memory().ended);
  } else if (context_.generation() > 1) {
    first = snapshot_line();
  }
  journal_.driver().connect(std::move(socket), first);
}

json::Object TrainController::snapshot_line() const {
  return {{"kind", "snapshot"},
          {"step", state_.last_step()},
          {"total_steps", total_steps_},
          {"last_checkpoint", last_checkpoint_},
          {"wants_bundle", bundle_.wants_bundle()}};
}

void TrainController::want_bundle() {
  bundle_.want_bundle();
  journal_.driver().send(snapshot_line());
}

// --- trainers ------------------------------------------------------------------------------------

GangMember<TrainerActor> TrainController::member(int trainer,
                                                 const std::optional<SparePlace>& place) {
  return GangMember<TrainerActor>(trainer_options(spec_, trainer, place),
                                  context_.self<TrainController>(), trainer_setup(spec_, trainer));
}

Status TrainController::start() {
  if (!trainers_.empty()) return error(Code::kFailedPrecondition, "the run was started before");
  if (!bundle_.has_bundle())
    return error(Code::kFailedPrecondition, "the run's data have not arrived");
  TROUPE_RETURN_IF_ERROR(journal_.open(spec_.resume_path.empty()));
  std::vector<GangMember<TrainerActor>> members;
  for (int rank = 0; rank < spec_.world_size; ++rank) members.push_back(member(rank));
  const auto handles = TROUPE_TRY(context_.spawn_gang(std::move(members), spec_.no_wait));
  for (const auto& handle : handles) add_trainer(handle);
  journal_.record({.event = events::kStart,
                   .path = spec_.resume_path,
                   .run = spec_.run,
                   .world_size = spec_.world_size});
  remember();
  start_watching();
  return {};
}

void TrainController::start_watching() {
  watch_.emplace(
      spec_.world_size,
      RankWatch::Options{.hang_timeout = std::chrono::milliseconds(spec_.hang_timeout_ms),
                         .read =
                             [this](ActorId actor, const std::string& segment, std::size_t bytes,
                                    Deadline deadline) {
                               return context_.read_segment(actor, segment, bytes, deadline);
                             },
                         .tell =
                             [this](RankWatch::Noticed found) {
                               context_.executor().post(
                                   [this, found = std::move(found)] { noticed(found); });
                             }});
  look_at_ranks();
  clock_thread_ = std::thread([this] {
    MutexLock lock(clock_mutex_);
    while (!clock_changed_.wait_until(clock_mutex_, Deadline::after(std::chrono::seconds(1)),
                                      [this]() TROUPE_NO_ANALYSIS { return clock_stops_; })) {
      context_.executor().post([this, at = clock_.now()] { tick(at); });
    }
  });
}

void TrainController::look_at_ranks() {
  if (!watch_) return;
  RankWatch::Ranks ranks{
      .generation = state_.generation(), .running = state_.running(), .saving = state_.saving()};
  for (const int number : state_.places().by_rank()) {
    const auto* place = state_.places().find(number);
    ranks.processes.emplace_back();
    if (place->alive && !state_.ended()) {
      const Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
      ranks.processes.back() = {trainer.handle.id(), place->incarnation, trainer.pid};
    }
  }
  watch_->look_at(std::move(ranks));
}

void TrainController::noticed(const RankWatch::Noticed& noticed) {
  if (noticed.saving_moves) {
    feed(SaveMoves{});
    journal_.driver().send({{"kind", "saving"}});
  }
  for (const HangVerdict& verdict : noticed.hangs) {
    if (const auto* stuck = std::get_if<Stuck>(&verdict)) {
      TrainerStuck event{.rank = stuck->rank,
                         .generation = noticed.generation,
                         .stopped = stuck->kind == Stuck::Kind::kStopped,
                         .silent_for = stuck->silence,
                         .doing = stuck->what};
      for (const auto& waiting : stuck->waiting) event.waited_for_by.push_back(waiting.rank);
      feed(event);
    } else {
      feed(GenerationStalled{noticed.generation, std::get<Stalled>(verdict).to_string()});
    }
  }
  for (const StragglerReport& report : noticed.stragglers) {
    feed(TrainerSlow{report.rank, state_.last_step(), report.to_string()});
  }
}

void TrainController::place_spares() {
  spares_wanted_ = false;
  if (spec_.spares == 0) return;
  std::vector<PlacedTrainer> placed;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const auto* known = state_.places().find(static_cast<int>(i));
    placed.push_back({trainers_[i].node_id, known->rank, known->gpu});
  }
  std::vector<GangMember<TrainerActor>> members;
  for (const SparePlace& place : spare_places(spec_, placed)) {
    for (int i = 0; i < spec_.spares; ++i) {
      members.push_back(member(spec_.world_size + static_cast<int>(members.size()), place));
    }
  }
  auto shared = std::make_shared<std::vector<GangMember<TrainerActor>>>(std::move(members));
  beside_.run([this, shared] {
    auto handles = context_.spawn_gang(std::move(*shared));
    context_.executor().post([this, handles = std::move(handles)] {
      if (!handles.ok()) {
        context_.log().warning("no spares: {}", handles.status().to_string());
        spares_wanted_ = true;  // after the next begin
        return;
      }
      feed(SparesPlaced{static_cast<int>(handles->size())});
      for (const auto& handle : *handles) add_trainer(handle);
      remember();
    });
  });
}

void TrainController::add_trainer(const ActorHandle<TrainerActor>& handle) {
  trainers_.emplace_back();
  trainers_.back().handle = handle;
  processes_.add();
  watch_trainer(static_cast<int>(trainers_.size()) - 1);
}

void TrainController::watch_trainer(int number) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  trainer.watch = context_.watch(trainer.handle, [this, number](const wire::ActorInfo& info) {
    context_.executor().post([this, number, info] { actor_changed(number, info); });
  });
}

void TrainController::tick(TimePoint at) {
  journal_.driver().flush();
  if (!state_.ended() && !bundle_.wants_bundle()) {
    for (const int number : processes_.to_end(at))
      kill_and_restart(number, "it did not take the run's data");
  }
  // This thread may have been busy for long: what was posted before the tick has been handled, what
  // came later must not seem late.
  feed(TimePassed{}, at);
}

void TrainController::kill_and_restart(int number, const std::string& reason) {
  beside_.run([this, handle = trainers_[static_cast<std::size_t>(number)].handle, reason] {
    const Status killed = context_.kill(handle, {.allow_restart = true, .reason = reason});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  });
}

void TrainController::actor_changed(int number, const wire::ActorInfo& info) {
  if (state_.ended()) return;
  Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  // They are placed together: where one has left the cluster's line, all have.
  if (state_.generation() == 0 && info.state != wire::ActorState::kPending) feed(TrainersPlaced{});
  const auto change = processes_.changed(number, info, clock_.now());
  if (change.died != 0) {
    trainer.served_later = false;
    const int rank = state_.places().find(number)->rank;
    if (change.was_alive) {
      if (info.death.context("keeper")) keeper_lost(change.node);
      if (rank >= 0) look_back(number, rank, change.died);
    }
    feed(TrainerDied{number, change.died, change.node, info.death});
    if (!change.was_alive) feed(PostMortem{number, change.died, {}, ""});
  }
  if (change.gone) return feed(TrainerGone{number, info.death});
  if (!info.pending_why.empty()) feed(TrainerWaiting{number, info.pending_why});
  if (!change.wants_data) return;
  trainer.node_id = info.node_id;
  trainer.pid = info.pid;
  // What a new spare does to be ready would take the processors from the step that everybody waits
  // for.
  trainer.served_later = state_.places().find(number)->rank < 0 && state_.recovering();
  if (!trainer.served_later) give_bundle(number);
}

// Told of each process that ended with it.
void TrainController::keeper_lost(const std::string& node) {
  const TimePoint now = clock_.now();
  auto& told = keepers_lost_[node];
  if (told && now - *told < kKeeperEventsApart) return;
  told = now;
  journal_.record(
      {.event = events::kKeeper,
       .generation = static_cast<std::int64_t>(state_.generation()),
       .node = node,
       .step = state_.last_step()},
      fmt::format("the keeper of node {} died, and with it its trainers and their memory", node));
}

void TrainController::serve_later_ones() {
  if (state_.ended() || state_.recovering()) return;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (std::exchange(trainers_[i].served_later, false)) give_bundle(static_cast<int>(i));
  }
}

void TrainController::give_bundle(int number) {
  const std::uint64_t incarnation = processes_[number].alive;
  if (!bundle_.has_bundle()) {
    processes_.cannot_serve(number, clock_.now());
    return feed(TrainerWaiting{number, "the controller waits for the run's data"});
  }
  processes_.serving(number);
  const auto deliver = bundle_.delivery();
  if (!deliver.ok()) return gave_bundle(number, incarnation, deliver.status());
  const auto handle = trainers_[static_cast<std::size_t>(number)].handle;
  beside_.run([this, number, deliver = *deliver, handle, incarnation] {
    Status given = deliver(handle.id());
    TrainerStatus status;
    if (given.ok() && spec_.gpus_per_trainer > 0) {
      auto told =
          handle.with({.timeout = kFindTimeout}).call<&TrainerActor::status>().get(kStatusTimeout);
      given = told.status();
      if (told.ok()) status = std::move(*told);
    }
    context_.executor().post([this, number, incarnation, given, status] {
      gave_bundle(number, incarnation, given, status);
    });
  });
}

void TrainController::gave_bundle(int number, std::uint64_t incarnation, const Status& given,
                                  const TrainerStatus& status) {
  if (!processes_.served(number, incarnation, given.ok(), clock_.now())) return;
  if (!given.ok()) {
    // Most likely it died meanwhile, which the head will tell. A process that lives is ended: its
    // successor may take them, and the failure counts.
    context_.log().warning("trainer {} did not get the run's data: {}", number, given.to_string());
    feed(TrainerWaiting{number,
                        fmt::format("it did not get the run's data: {}", given.to_string())});
    return;
  }
  feed(TrainerAlive{number, incarnation, processes_[number].node, status.gpu});
}

void TrainController::look_back(int number, int rank, std::uint64_t incarnation) {
  const Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  beside_.run([this, number, rank, incarnation, id = trainer.handle.id(), pid = trainer.pid,
               same_node = trainer.node_id == context_.node_id()] {
    PostMortem found{number, incarnation, {}, ""};
    const auto deadline = Deadline::after(kPostMortemTimeout);
    // The rank's next process may have put its own there already.
    for (const char* name : {kProgressName, kProgressBeforeName}) {
      const auto bytes = context_.read_segment(id, fmt::format("rank-{}/{}", rank, name),
                                               sizeof(ProgressRecord), deadline);
      const auto progress = bytes.ok() ? read_progress(*bytes) : std::nullopt;
      if (!progress || progress->pid != pid) continue;
      found.doing = describe_progress(*progress);
      // Other machines have clocks of their own.
      if (same_node) {
        found.last_sign = TimePoint(
            std::chrono::nanoseconds(std::max(progress->beat_at_ns, progress->changed_at_ns)));
      }
      break;
    }
    context_.executor().post([this, found] { feed(found); });
  });
}

// --- what trainers and the driver tell -----------------------------------------------------------

void TrainController::report(std::int32_t rank, TrainerMessage message) {
  // Of a spare there is one thing to be told.
  const bool of_spare = rank == -1 && std::holds_alternative<TrainerUnfit>(message);
  if ((rank < 0 && !of_spare) || rank >= spec_.world_size) return;
  if (finding_) {
    // May be newer than what the trainer says when it is asked.
    unheard_.emplace_back(rank, std::move(message));
    return;
  }
  std::visit([this, rank](const auto& m) { on(rank, m); }, message);
}

bool TrainController::fault_fired(std::int32_t number) {
  if (number < 0 || static_cast<std::size_t>(number) >= fired_.size()) return false;
  auto& fired = fired_[static_cast<std::size_t>(number)];
  const Fault& fault = spec_.faults[static_cast<std::size_t>(number)];
  if (fired >= fault.times) return false;
  ++fired;
  journal_.record({.event = events::kFault,
                   .generation = static_cast<std::int64_t>(state_.generation()),
                   .step = state_.last_step(),
                   .fault = fault_text(fault)});
  return true;
}

void TrainController::save_and_stop() { feed(SaveRequested{}); }

void TrainController::stop(Status reason) { feed(StopRequested{std::move(reason)}); }

void TrainController::on(std::int32_t, const StepReport& message) {
  // A report whose answer a controller could not give any more comes again.
  if (state_.repeats({message.generation, message.step})) return;
  total_steps_ = message.total_steps;
  journal_.driver().send(driver_line(message));
  feed(StepFinished{message.generation, message.step});
}

void TrainController::on(std::int32_t, const EvaluationReport& message) {
  journal_.driver().send(driver_line(message));
}

void TrainController::on(std::int32_t, const CheckpointReport& message) {
  last_checkpoint_ = message.path;
  journal_.driver().send(driver_line(message));
}

void TrainController::save_to(std::string folder) {
  if (state_.ended() || trainers_.empty()) return;
  const auto& first = trainers_[static_cast<std::size_t>(state_.trainer_of(0))];
  static_cast<void>(first.handle.call<&TrainerActor::save_to>(std::move(folder)));
}

void TrainController::on(std::int32_t, const WarningReport& message) {
  journal_.driver().send(driver_line(message));
}

void TrainController::on(std::int32_t, const TrainerUnfit& message) {
  const auto* place = state_.places().find(message.trainer);
  if (!place || place->rank >= 0 || place->unfit >= message.incarnation) return;
  journal_.driver().send(driver_line(WarningReport{
      fmt::format("no spare{}: a trainer that dies there is started again: {}",
                  place->gpu.empty() ? "" : " on " + place->gpu, message.cause.to_string())}));
  feed(message);
}

void TrainController::feed(const RunInput& input) { feed(input, clock_.now()); }

void TrainController::feed(const RunInput& input, TimePoint now) {
  const auto commands = state_.apply(input, now);
  look_at_ranks();
  if (!commands.empty()) {
    remember();
    carry_out(commands);
  }
  serve_later_ones();
}

// --- commands ------------------------------------------------------------------------------------

void TrainController::carry_out(const std::vector<RunCommand>& commands) {
  for (const RunCommand& command : commands) {
    visit([this](const auto& c) { carry_out(c); }, command);
  }
}

void TrainController::carry_out(const BeginGeneration& command) {
  GenerationPlan plan{.generation = command.generation, .purpose = command.purpose};
  std::vector<const Trainer*> ranks;
  for (const int trainer : command.trainers) {
    ranks.push_back(&trainers_[static_cast<std::size_t>(trainer)]);
    plan.ranks.push_back(ranks.back()->handle.id());
  }
  for (std::size_t i = 0; i < spec_.faults.size(); ++i) {
    if (!strikes_at_point(spec_.faults[i]) || fired_[i] >= spec_.faults[i].times) continue;
    plan.fault_numbers.push_back(static_cast<std::int32_t>(i));
    plan.faults.push_back(spec_.faults[i]);
    plan.faults.back().times -= fired_[i];
  }
  for (const Trainer* trainer : ranks) {
    // How it goes is told by report(), or by the actor's end.
    static_cast<void>(trainer->handle.call<&TrainerActor::begin>(plan));
  }
  if (spares_wanted_) place_spares();
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
  kill_and_restart(state_.trainer_of(command.rank), command.reason);
}

void TrainController::carry_out(const SaveAndStop&) {
  // Lost with the process; the next generation's rank 0 is told again.
  const auto& first = trainers_[static_cast<std::size_t>(state_.trainer_of(0))];
  static_cast<void>(first.handle.call<&TrainerActor::save_and_stop>());
}

void TrainController::carry_out(const RecordEvent& command) {
  journal_.record(to_event(command), command.text, clock_.now() - command.at);
}

json::Object TrainController::end_line(const Status& ended) const {
  Status status = ended;
  if (!status.ok() && status.code() != Code::kCancelled) {
    status = status.prefixed("training ended");
  }
  return {{"kind", "end"},
          {"code", static_cast<int>(status.code())},
          {"message", status.to_string()},
          {"failures", state_.failures()},
          {"last_step", state_.last_step()},
          {"last_checkpoint", last_checkpoint_}};
}

void TrainController::carry_out(const EndRun& command) {
  journal_.record({.event = events::kEnd,
                   .generation = static_cast<std::int64_t>(state_.generation()),
                   .step = state_.last_step(),
                   .cause = command.status.ok() ? "" : command.status.to_string(),
                   .code = static_cast<std::int64_t>(command.status.code())});
  journal_.finish(end_line(command.status));
  for (const Trainer& trainer : trainers_) {
    const Status killed = context_.kill(trainer.handle, {.reason = "the training run has ended"});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  }
}

// --- one controller after another ----------------------------------------------------------------

void TrainController::remember() {
  const Status saved = context_.save_now();
  if (!saved.ok()) context_.log().warning("what the run knows is not saved: {}", saved.to_string());
}

ControllerMemory TrainController::save() const {
  ControllerMemory memory{.run = state_.memory(),
                          .spares_wanted = spares_wanted_,
                          .fired = fired_,
                          .last_checkpoint = last_checkpoint_,
                          .total_steps = total_steps_};
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const Trainer& trainer = trainers_[i];
    const auto& process = processes_[static_cast<int>(i)];
    memory.trainers.push_back(
        {trainer.handle, process.served, process.died, process.node, trainer.node_id, trainer.pid});
  }
  return memory;
}

Status TrainController::load(ControllerMemory memory) {
  // Nothing is known where it died as it looked for the run, too.
  restored_ = !memory.trainers.empty();
  fired_ = std::move(memory.fired);
  last_checkpoint_ = std::move(memory.last_checkpoint);
  total_steps_ = memory.total_steps;
  spares_wanted_ = memory.spares_wanted;
  // The driver had not begun the run, and will hear that its call failed.
  if (memory.trainers.empty()) return {};
  state_ = RunState::adopt(settings(), std::move(memory.run), clock_.now());
  if (const Status restored = bundle_.restore(); !restored.ok()) {
    context_.log().warning("the run's data are asked of the driver again: {}",
                           restored.to_string());
    want_bundle();
  }
  TROUPE_RETURN_IF_ERROR(journal_.open(false));
  trainers_.resize(memory.trainers.size());
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    auto& known = memory.trainers[i];
    Trainer& trainer = trainers_[i];
    trainer.handle = std::move(known.handle);
    processes_.add();
    processes_.restore(static_cast<int>(i), known.served, known.died, std::move(known.node));
    trainer.node_id = known.node_id;
    trainer.pid = known.pid;
  }
  context_.executor().post([this] {
    journal_.record({.event = events::kController,
                     .generation = static_cast<std::int64_t>(state_.generation()),
                     .step = state_.last_step(),
                     .cause = fmt::format("process {} of the controller", context_.generation())},
                    "the run's controller was replaced");
    carry_out(state_.commands_again());
    if (state_.ended()) return;
    for (std::size_t i = 0; i < trainers_.size(); ++i) watch_trainer(static_cast<int>(i));
    start_watching();
  });
  return {};
}

void TrainController::found_run(const FoundRun& run) {
  finding_ = false;
  const auto unheard = std::exchange(unheard_, {});
  const auto hear = [&] {
    for (const auto& [rank, message] : unheard) report(rank, message);
  };
  if (!trainers_.empty()) return hear();  // the driver has begun it anew
  if (run.trainers.empty()) return;       // it has not begun it yet
  if (const Status opened = journal_.open(false); !opened.ok()) {
    context_.log().warning("events.jsonl: {}", opened.to_string());
  }
  const std::vector<TrainerFound> living = living_trainers(run.trainers);
  RunSettings all = settings();
  all.spares = std::max(0, static_cast<int>(run.trainers.size()) - spec_.world_size);
  state_ =
      RunState::adopt_found(all, living, run.generations, clock_.now(), run.steps, run.silent_for);
  spares_wanted_ = all.spares == 0;
  if (!bundle_.has_bundle()) want_bundle();
  for (const FoundTrainer& one : run.trainers) {
    trainers_.emplace_back();
    trainers_.back().handle = one.handle;
    processes_.add();
  }
  for (const TrainerFound& one : living) {
    Trainer& trainer = trainers_[static_cast<std::size_t>(one.trainer)];
    const TrainerStatus& status = *run.trainers[static_cast<std::size_t>(one.trainer)].status;
    processes_.found(one.trainer, status.incarnation, one.node);
    trainer.node_id = status.node_id;
    trainer.pid = status.pid;
  }
  journal_.record(
      {.event = events::kController,
       .generation = static_cast<std::int64_t>(state_.generation()),
       .step = state_.last_step(),
       .cause = fmt::format("process {} of the controller, which found no memory of the one "
                            "before",
                            context_.generation())},
      "the run's controller was replaced; its memory was lost");
  remember();
  carry_out(state_.commands_again());
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    watch_trainer(static_cast<int>(i));
    // What lives and does not say where it is could be in any generation.
    if (!run.trainers[i].status) kill_and_restart(static_cast<int>(i), "it does not answer");
  }
  start_watching();
  hear();
}

}  // namespace troupe::train
