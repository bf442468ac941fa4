#include "train/trainer/controller.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "train/report/run_event.h"
#include "train/trainer/told_reports.h"

namespace troupe::train {
namespace {

constexpr Duration kTick = std::chrono::seconds(1);
// Whether a machine is done without is looked at more often.
constexpr Duration kElasticTick = std::chrono::milliseconds(200);

}  // namespace

TrainController::TrainController(ActorContext& context, RunSpec spec)
    : context_(context),
      spec_(std::move(spec)),
      journal_(files_, clock_, context.log(), spec_.output_dir),
      session_(settings(), context.generation()),
      bundle_(context),
      fleet_(context, {.spec = spec_,
                       .session = session_,
                       .bundle = bundle_,
                       .clock = clock_,
                       .beside = beside_,
                       .act = [this](ControllerActions actions) { act(std::move(actions)); }}),
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
      session_.find();
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
          .post_mortem_timeout = TrainerFleet::kPostMortemTimeout,
          .ranks_per_machine = spec_.elastic() ? spec_.ranks_per_node : 0,
          .machines_min = spec_.machines_min,
          .first_machines = {spec_.first_machines.begin(), spec_.first_machines.end()}};
}

// --- the run's data, the driver ------------------------------------------------------------------

void TrainController::take_bundle(ByteStream stream, bool same_node) {
  if (const Status received = bundle_.receive(std::move(stream), same_node); !received.ok()) {
    context_.log().error("the run's data did not arrive: {}", received.to_string());
    return;
  }
  act(session_.data_arrived(clock_.now()));
}

void TrainController::take_driver(ByteStream stream, bool) {
  json::Object first;
  if (state().ended()) {
    first = end_line(*state().memory().ended);
  } else if (context_.generation() > 1) {
    first = snapshot_line();
  }
  journal_.driver().connect(std::move(stream), first);
}

json::Object TrainController::snapshot_line() const {
  return {{"kind", "snapshot"},
          {"step", state().last_step()},
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
                   .world_size = state().world_size()});
  act({SaveMemory{}});
  start_watching();
  return {};
}

void TrainController::start_watching() {
  watch_.emplace(
      state().world_size(),
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
    while (!clock_changed_.wait_until(clock_mutex_,
                                      Deadline::after(spec_.elastic() ? kElasticTick : kTick),
                                      [this]() TROUPE_NO_ANALYSIS { return clock_stops_; })) {
      context_.executor().post([this, at = clock_.now()] { tick(at); });
    }
  });
}

void TrainController::look_at_ranks() {
  if (!watch_) return;
  RankWatch::Ranks ranks{.world = state().world().number,
                         .generation = state().generation(),
                         .running = state().running(),
                         .saving = state().saving()};
  for (const int number : state().places().by_rank()) {
    const auto* place = state().places().find(number);
    ranks.processes.emplace_back();
    if (place->alive && !state().ended()) {
      ranks.processes.back() = {fleet_[number].id(), place->incarnation,
                                session_.processes()[number].pid};
    }
  }
  watch_->look_at(std::move(ranks));
}

void TrainController::noticed(const RankWatch::Noticed& noticed) {
  if (noticed.saving_moves) {
    tell(SaveMoves{});
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
      tell(event);
    } else {
      tell(GenerationStalled{noticed.generation, std::get<Stalled>(verdict).to_string()});
    }
  }
  for (const StragglerReport& report : noticed.stragglers) {
    tell(TrainerSlow{report.rank, state().last_step(), report.to_string()});
  }
}

void TrainController::tick(TimePoint at) {
  journal_.driver().flush();
  // This thread may have been busy for long: what was posted before the tick has been handled, what
  // came later must not seem late.
  act(session_.time_passed(at));
}

// --- what trainers and the driver tell -----------------------------------------------------------

void TrainController::report(std::int32_t rank, TrainerMessage message) {
  act(session_.report(rank, std::move(message), clock_.now()));
}

bool TrainController::fault_fired(std::int32_t number) {
  if (number < 0 || static_cast<std::size_t>(number) >= fired_.size()) return false;
  auto& fired = fired_[static_cast<std::size_t>(number)];
  const Fault& fault = spec_.faults[static_cast<std::size_t>(number)];
  if (fired >= fault.times) return false;
  ++fired;
  journal_.record({.event = events::kFault,
                   .generation = static_cast<std::int64_t>(state().generation()),
                   .step = state().last_step(),
                   .fault = fault_text(fault)});
  return true;
}

void TrainController::save_and_stop() { tell(SaveRequested{}); }

void TrainController::stop(Status reason) { tell(StopRequested{std::move(reason)}); }

void TrainController::save_to(std::string folder) {
  if (state().ended() || fleet_.trainers().empty()) return;
  static_cast<void>(fleet_[state().trainer_of(0)].call<&TrainerActor::save_to>(std::move(folder)));
}

void TrainController::show(std::int32_t, const StepReport& message) {
  total_steps_ = message.total_steps;
  journal_.driver().send(driver_line(message));
}

void TrainController::show(std::int32_t, const EvaluationReport& message) {
  journal_.driver().send(driver_line(message));
}

void TrainController::show(std::int32_t, const CheckpointReport& message) {
  last_checkpoint_ = message.path;
  journal_.driver().send(driver_line(message));
}

void TrainController::show(std::int32_t, const WarningReport& message) {
  journal_.driver().send(driver_line(message));
}

void TrainController::show(std::int32_t rank, const TrainerUnfit& message) {
  if (spec_.elastic()) {
    return show(rank, WarningReport{fmt::format("machine {} cannot take part: {}",
                                                message.trainer / spec_.ranks_per_node,
                                                message.cause.to_string())});
  }
  const std::string& gpu = state().places().find(message.trainer)->gpu;
  show(rank,
       WarningReport{fmt::format("no spare{}: a trainer that dies there is started again: {}",
                                 gpu.empty() ? "" : " on " + gpu, message.cause.to_string())});
}

// --- actions -------------------------------------------------------------------------------------

void TrainController::act(ControllerActions actions) {
  look_at_ranks();
  for (const ControllerAction& action : actions)
    std::visit([this](const auto& one) { carry_out(one); }, action);
  // Where a GPU takes one process at a time a spare must not have it before its rank.
  if (state().steps()) fleet_.place_spares();
}

void TrainController::carry_out(const SaveMemory&) {
  const Status saved = context_.save_now();
  if (!saved.ok()) context_.log().warning("what the run knows is not saved: {}", saved.to_string());
}

void TrainController::carry_out(const WatchTrainers&) { fleet_.watch(); }

void TrainController::carry_out(const GiveData& action) {
  fleet_.give_data(action.trainer, action.incarnation);
}

void TrainController::carry_out(const RestartTrainer& action) {
  fleet_.restart(action.trainer, action.reason);
}

void TrainController::carry_out(const LookBack& action) { fleet_.look_back(action); }

void TrainController::carry_out(const TellUser& action) {
  std::visit([&](const auto& message) { show(action.rank, message); }, action.message);
}

void TrainController::carry_out(const BeginGeneration& action) {
  GenerationPlan plan{.generation = action.generation, .purpose = action.purpose};
  plan.world = action.world;
  plan.former = action.former;
  plan.tries_newcomers = action.tries_newcomers;
  for (const int trainer : action.trainers) plan.ranks.push_back(fleet_[trainer].id());
  for (std::size_t i = 0; i < spec_.faults.size(); ++i) {
    if (!strikes_at_point(spec_.faults[i]) || fired_[i] >= spec_.faults[i].times) continue;
    plan.fault_numbers.push_back(static_cast<std::int32_t>(i));
    plan.faults.push_back(spec_.faults[i]);
    plan.faults.back().times -= fired_[i];
  }
  for (const int trainer : action.trainers) {
    // How it goes is told by report(), or by the actor's end.
    static_cast<void>(fleet_[trainer].call<&TrainerActor::begin>(seal(plan)));
  }
}

void TrainController::carry_out(const AbortGeneration& action) {
  for (const TrainerFleet::Trainer& trainer : fleet_.trainers()) {
    // The dead one's call ends by itself.
    static_cast<void>(trainer.handle.with({.timeout = std::chrono::seconds(10)})
                          .call<&TrainerActor::abort>(action.generation, action.reason));
  }
}

void TrainController::carry_out(const SaveAndStop&) {
  // Lost with the process; the next generation's rank 0 is told again.
  static_cast<void>(fleet_[state().trainer_of(0)].call<&TrainerActor::save_and_stop>());
}

void TrainController::carry_out(const PauseAfterStep& action) {
  // Where the process dies, the generation is lost, too.
  static_cast<void>(fleet_[state().trainer_of(0)].call<&TrainerActor::pause>(action.generation));
}

bool TrainController::machine_leaves(std::int32_t machine) {
  act(session_.machine_leaves(machine, clock_.now()));
  return session_.may_leave(machine);
}

void TrainController::carry_out(const RecordEvent& action) {
  journal_.record(to_event(action), action.text, clock_.now() - action.at);
}

json::Object TrainController::end_line(const Status& ended) const {
  Status status = ended;
  if (!status.ok() && status.code() != Code::kCancelled) {
    status = status.prefixed("training ended");
  }
  return {{"kind", "end"},
          {"code", static_cast<int>(status.code())},
          {"message", status.to_string()},
          {"failures", state().failures()},
          {"last_step", state().last_step()},
          {"last_checkpoint", last_checkpoint_}};
}

void TrainController::carry_out(const EndRun& action) {
  journal_.record({.event = events::kEnd,
                   .generation = static_cast<std::int64_t>(state().generation()),
                   .step = state().last_step(),
                   .cause = action.status.ok() ? "" : action.status.to_string(),
                   .code = static_cast<std::int64_t>(action.status.code())});
  journal_.finish(end_line(action.status));
  fleet_.end_all("the training run has ended");
}

// --- one controller after another ----------------------------------------------------------------

ControllerMemory TrainController::save() const {
  ControllerMemory memory{.run = state().memory(),
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
  std::vector<TrainerProcesses::Saved> processes;
  for (const auto& trainer : memory.trainers) processes.push_back(trainer.process);
  auto actions = session_.restore(std::move(memory.run), processes, clock_.now());
  if (const Status restored = bundle_.restore(); restored.ok()) {
    act(session_.data_arrived(clock_.now()));
  } else {
    context_.log().warning("the run's data are asked of the driver again: {}",
                           restored.to_string());
    want_bundle();
  }
  TROUPE_RETURN_IF_ERROR(journal_.open(false));
  fleet_.restore(memory);
  context_.executor().post([this, actions = std::move(actions)] {
    act(actions);
    if (!state().ended()) start_watching();
  });
  return {};
}

void TrainController::found_run(const FoundRun& run) {
  // Else the driver has not begun it yet, or has begun it anew.
  const bool adopts = fleet_.trainers().empty() && !run.trainers.empty();
  if (adopts) {
    if (const Status opened = journal_.open(false); !opened.ok())
      context_.log().warning("events.jsonl: {}", opened.to_string());
    fleet_.adopt(run.trainers);
  }
  act(session_.found(run.known, clock_.now()));
  if (!adopts) return;
  if (!bundle_.has_bundle()) want_bundle();
  start_watching();
}

}  // namespace troupe::train
