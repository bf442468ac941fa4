#include "train/trainer/controller.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "train/report/run_event.h"
#include "train/trainer/told_reports.h"

namespace troupe::train {

TrainController::TrainController(ActorContext& context, RunSpec spec)
    : context_(context),
      spec_(std::move(spec)),
      journal_(files_, clock_, context.log(), spec_.output_dir),
      state_(settings()),
      bundle_(context),
      fleet_(context, {.spec = spec_,
                       .state = state_,
                       .bundle = bundle_,
                       .journal = journal_,
                       .clock = clock_,
                       .beside = beside_,
                       .feed = [this](const RunInput& input) { feed(input); },
                       .remember = [this] { remember(); }}),
      fired_(spec_.faults.size(), 0),
      last_checkpoint_(spec_.resume_path) {
  const auto on_own_thread = [this](void (TrainController::*then)(ByteStream, bool)) {
    return [this, then](ByteStream stream, std::string, bool same_node) {
      auto shared = std::make_shared<ByteStream>(std::move(stream));
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
          .post_mortem_timeout = TrainerFleet::kPostMortemTimeout};
}

// --- the run's data, the driver ------------------------------------------------------------------

void TrainController::take_bundle(ByteStream stream, bool same_node) {
  if (const Status received = bundle_.receive(std::move(stream), same_node); !received.ok()) {
    context_.log().error("the run's data did not arrive: {}", received.to_string());
    return;
  }
  fleet_.serve_waiting();
}

void TrainController::take_driver(ByteStream stream, bool) {
  json::Object first;
  if (state_.ended()) {
    first = end_line(*state_.memory().ended);
  } else if (context_.generation() > 1) {
    first = snapshot_line();
  }
  journal_.driver().connect(std::move(stream), first);
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

// --- the ranks, while they run -------------------------------------------------------------------

Status TrainController::start() {
  if (!fleet_.trainers().empty())
    return error(Code::kFailedPrecondition, "the run was started before");
  if (!bundle_.has_bundle())
    return error(Code::kFailedPrecondition, "the run's data have not arrived");
  TROUPE_RETURN_IF_ERROR(journal_.open(spec_.resume_path.empty()));
  TROUPE_RETURN_IF_ERROR(fleet_.place());
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
      const TrainerFleet::Trainer& trainer = fleet_[number];
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

void TrainController::tick(TimePoint at) {
  journal_.driver().flush();
  if (!state_.ended() && !bundle_.wants_bundle()) fleet_.end_unserved(at);
  // This thread may have been busy for long: what was posted before the tick has been handled, what
  // came later must not seem late.
  feed(TimePassed{}, at);
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
  if (state_.ended() || fleet_.trainers().empty()) return;
  const auto& first = fleet_[state_.trainer_of(0)];
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
  fleet_.serve_later_ones();
}

// --- commands ------------------------------------------------------------------------------------

void TrainController::carry_out(const std::vector<RunCommand>& commands) {
  for (const RunCommand& command : commands) {
    visit([this](const auto& c) { carry_out(c); }, command);
  }
}

void TrainController::carry_out(const BeginGeneration& command) {
  GenerationPlan plan{.generation = command.generation, .purpose = command.purpose};
  for (const int trainer : command.trainers) plan.ranks.push_back(fleet_[trainer].handle.id());
  for (std::size_t i = 0; i < spec_.faults.size(); ++i) {
    if (!strikes_at_point(spec_.faults[i]) || fired_[i] >= spec_.faults[i].times) continue;
    plan.fault_numbers.push_back(static_cast<std::int32_t>(i));
    plan.faults.push_back(spec_.faults[i]);
    plan.faults.back().times -= fired_[i];
  }
  for (const int trainer : command.trainers) {
    // How it goes is told by report(), or by the actor's end.
    static_cast<void>(fleet_[trainer].handle.call<&TrainerActor::begin>(plan));
  }
  fleet_.place_spares();
}

void TrainController::carry_out(const AbortGeneration& command) {
  for (const TrainerFleet::Trainer& trainer : fleet_.trainers()) {
    // The dead one's call ends by itself.
    static_cast<void>(trainer.handle.with({.timeout = std::chrono::seconds(10)})
                          .call<&TrainerActor::abort>(command.generation, command.reason));
  }
}

void TrainController::carry_out(const KillTrainer& command) {
  context_.log().warning("rank {} is killed: {}", command.rank, command.reason);
  fleet_.kill_and_restart(state_.trainer_of(command.rank), command.reason);
}

void TrainController::carry_out(const SaveAndStop&) {
  // Lost with the process; the next generation's rank 0 is told again.
  static_cast<void>(fleet_[state_.trainer_of(0)].handle.call<&TrainerActor::save_and_stop>());
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
  fleet_.end_all("the training run has ended");
}

// --- one controller after another ----------------------------------------------------------------

void TrainController::remember() {
  const Status saved = context_.save_now();
  if (!saved.ok()) context_.log().warning("what the run knows is not saved: {}", saved.to_string());
}

ControllerMemory TrainController::save() const {
  ControllerMemory memory{.run = state_.memory(),
                          .fired = fired_,
                          .last_checkpoint = last_checkpoint_,
                          .total_steps = total_steps_};
  fleet_.save(memory);
  return memory;
}

Status TrainController::load(ControllerMemory memory) {
  // Nothing is known where it died as it looked for the run, too.
  restored_ = !memory.trainers.empty();
  fired_ = std::move(memory.fired);
  last_checkpoint_ = std::move(memory.last_checkpoint);
  total_steps_ = memory.total_steps;
  // The driver had not begun the run, and will hear that its call failed.
  if (memory.trainers.empty()) return {};
  state_ = RunState::adopt(settings(), std::move(memory.run), clock_.now());
  if (const Status restored = bundle_.restore(); !restored.ok()) {
    context_.log().warning("the run's data are asked of the driver again: {}",
                           restored.to_string());
    want_bundle();
  }
  TROUPE_RETURN_IF_ERROR(journal_.open(false));
  fleet_.restore(memory);
  context_.executor().post([this] {
    journal_.record({.event = events::kController,
                     .generation = static_cast<std::int64_t>(state_.generation()),
                     .step = state_.last_step(),
                     .cause = fmt::format("process {} of the controller", context_.generation())},
                    "the run's controller was replaced");
    carry_out(state_.commands_again());
    if (state_.ended()) return;
    fleet_.watch();
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
  if (!fleet_.trainers().empty()) return hear();  // the driver has begun it anew
  if (run.trainers.empty()) return;               // it has not begun it yet
  if (const Status opened = journal_.open(false); !opened.ok()) {
    context_.log().warning("events.jsonl: {}", opened.to_string());
  }
  const std::vector<TrainerFound> living = living_trainers(run.trainers);
  RunSettings all = settings();
  all.spares = std::max(0, static_cast<int>(run.trainers.size()) - spec_.world_size);
  state_ =
      RunState::adopt_found(all, living, run.generations, clock_.now(), run.steps, run.silent_for);
  if (!bundle_.has_bundle()) want_bundle();
  fleet_.adopt(run, living);
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
  fleet_.watch();
  for (std::size_t i = 0; i < run.trainers.size(); ++i) {
    // What lives and does not say where it is could be in any generation.
    if (!run.trainers[i].status) fleet_.kill_and_restart(static_cast<int>(i), "it does not answer");
  }
  start_watching();
  hear();
}

}  // namespace troupe::train
