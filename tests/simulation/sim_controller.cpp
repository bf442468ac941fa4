#include "sim_controller.h"

#include <algorithm>

#include "train/report/run_event.h"
#include "train/trainer/told_reports.h"

namespace troupe::simulation {

using namespace train;
using std::chrono::seconds;

namespace {

constexpr auto kBundleTimeout = seconds(20);
constexpr auto kFindTimeout = seconds(3);
constexpr Duration kTickEvery = seconds(1);
// Of a run whose world may change.
constexpr Duration kElasticTickEvery = std::chrono::milliseconds(200);

RunSettings settings_of(const Run& run) {
  RunSettings settings;
  settings.world_size = run.ranks;
  if (run.options.elastic) {
    settings.ranks_per_machine = run.options.ranks_per_node;
    settings.machines_min = run.machines_min;
    for (int machine = 0; machine < run.first_machines; ++machine)
      settings.first_machines.push_back(machine);
  }
  settings.fruitless_failures_max = 1'000'000;
  settings.respawn_timeout = std::chrono::minutes(5);
  return settings;
}

}  // namespace

Controller::Controller(Cluster& cluster, Run& run, Place place)
    : Process(cluster, std::move(place)),
      run_(run),
      session_(settings_of(run), this->place().incarnation),
      head_(cluster, this->place().node,
            wire::ClientHello{
                .client_id = {this->place().spec.actor_id.high, this->place().spec.actor_id.low},
                .job_id = this->place().spec.job_id,
                .name = label(),
                .kind = "actor"},
            {},
            [this](Duration delay, std::function<void()> what) { later(delay, std::move(what)); }) {
}

// --- the actor -----------------------------------------------------------------------------------

void Controller::start(MemoryPtr saved) {
  later(world_.between(1, 20),
        [this, memory = std::dynamic_pointer_cast<SavedController>(saved)] { begin(memory); });
}

void Controller::begin(const std::shared_ptr<SavedController>& saved) {
  become_ready();
  later(kTickEvery, [this] { tick(); });
  // Its node kept the run's data, or its driver sends them again.
  act(session_.data_arrived(now()));
  if (saved && !saved->trainers.empty()) {
    act(session_.restore(saved->run, saved->trainers, now()));
  } else if (place().incarnation > 1) {
    find_run();
  } else {
    session_.add_trainers(run_.trainers.size());
    act({SaveMemory{}, WatchTrainers{}});
  }
}

void Controller::on_death() { head_.close(); }

void Controller::asked_to_stop(Duration) {
  later(world_.between(1, 50), [this] { cluster_.kill(*this, "its node ends it"); });
}

void Controller::tick() {
  later(run_.options.elastic ? kElasticTickEvery : kTickEvery, [this] { tick(); });
  if (session_.processes().size() != 0) act(session_.time_passed(now()));
}

void Controller::report(std::int32_t rank, const TrainerMessage& message) {
  act(session_.report(rank, message, now()));
  // Its host saves it with every call.
  act({SaveMemory{}});
}

void Controller::stuck(std::uint64_t pid, Duration silent_for) {
  if (session_.processes().size() == 0) return;
  for (int rank = 0; rank < state().world_size(); ++rank) {
    const int number = state().trainer_of(rank);
    Process* process = cluster_.ready_process(run_.trainers[static_cast<std::size_t>(number)]);
    if (process == nullptr || process->place().pid != pid) continue;
    return act(
        session_.tell(TrainerStuck{rank, state().generation(), true, silent_for, "", {}}, now()));
  }
}

void Controller::find_run() {
  world_.note("{} looks for its run", label());
  session_.find();
  const auto search = std::make_shared<Search>();
  search->found.trainers.resize(run_.trainers.size());
  const auto use = [this, search] {
    if (!std::exchange(search->used, true)) found_run(*search);
  };
  for (std::size_t i = 0; i < run_.trainers.size(); ++i) {
    cluster_.call(*this, run_.trainers[i],
                  {.what =
                       [this, search, i, use](Process& process) {
                         const TrainerStatus status = dynamic_cast<Trainer&>(process).status();
                         later(world_.delay(), [search, i, status, use] {
                           search->found.trainers[i] = status;
                           if (++search->answers == search->found.trainers.size()) use();
                         });
                       },
                   .timeout = kFindTimeout,
                   .failed = {}});
  }
  later(kFindTimeout, use);
}

void Controller::found_run(Search& search) {
  // Of the run's files.
  search.found.generations = std::max<std::uint64_t>(1, run_.told_generation);
  if (run_.options.elastic)
    search.found.worlds =
        worlds_told(run_.told_events, RunState(settings_of(run_)).world(), run_.told_step);
  act(session_.found(search.found, now()));
}

// --- actions -------------------------------------------------------------------------------------

void Controller::act(const ControllerActions& actions) {
  for (const ControllerAction& action : actions) {
    if (run_.ended) return;
    std::visit([this](const auto& one) { carry_out(one); }, action);
  }
}

void Controller::carry_out(const SaveMemory&) {
  auto memory = std::make_shared<SavedController>();
  memory->run = state().memory();
  memory->trainers = session_.processes().saved();
  cluster_.tell_node(*this, wire::HostSavedState{place().incarnation}, memory);
}

void Controller::carry_out(const WatchTrainers&) {
  for (std::size_t i = 0; i < run_.trainers.size(); ++i) {
    head_.watch(
        run_.trainers[i], "",
        [this, number = static_cast<int>(i)](const troupe::Result<wire::ActorInfo>& info, bool) {
          if (info.ok()) act(session_.changed(number, seen(number, *info), now()));
        });
  }
}

wire::ActorInfo Controller::seen(int trainer, wire::ActorInfo info) const {
  if (run_.options.mistake == Mistake::kNamesAfterNumber)
    info.node_id = {1, static_cast<std::uint64_t>(trainer / run_.options.ranks_per_node)};
  return info;
}

void Controller::carry_out(const GiveData& action) {
  const auto answer = [this, action] {
    later(world_.delay(), [this, action] {
      act(session_.data_given(action.trainer, action.incarnation, {}, "", now()));
    });
  };
  cluster_.call(*this, run_.trainers[static_cast<std::size_t>(action.trainer)],
                {.what =
                     [answer](Process& process) {
                       dynamic_cast<Trainer&>(process).take_bundle();
                       answer();
                     },
                 .timeout = kBundleTimeout,
                 .failed = {}});
  // Also a process that lives and does not answer.
  later(kBundleTimeout, [this, action] {
    if (session_.processes()[action.trainer].served >= action.incarnation) return;
    act(session_.data_given(action.trainer, action.incarnation,
                            Status(Code::kDeadlineExceeded, "no answer"), "", now()));
  });
}

void Controller::carry_out(const RestartTrainer& action) {
  world_.note("the controller ends trainer {}: {}", action.trainer, action.reason);
  wire::KillActor kill;
  kill.actor_id = run_.trainers[static_cast<std::size_t>(action.trainer)];
  kill.allow_restart = true;
  kill.reason = action.reason;
  head_.ask(std::move(kill), {});
}

void Controller::carry_out(const BeginGeneration& action) {
  world_.note("the controller begins generation {}", action.generation);
  GenerationPlan plan{.generation = action.generation, .purpose = action.purpose};
  plan.world = action.world;
  plan.former = action.former;
  plan.tries_newcomers = action.tries_newcomers;
  for (const int trainer : action.trainers) {
    plan.ranks.push_back(run_.trainers[static_cast<std::size_t>(trainer)]);
  }
  for (const ActorId& id : plan.ranks) {
    cluster_.call(
        *this, id,
        {.what = [plan](Process& process) { dynamic_cast<Trainer&>(process).begin(plan); },
         .timeout = seconds(30),
         .failed = {}});
  }
}

void Controller::carry_out(const AbortGeneration& action) {
  world_.note("the controller aborts generation {}: {}", action.generation,
              action.reason.message());
  for (const ActorId& id : run_.trainers) {
    cluster_.call(*this, id,
                  {.what =
                       [action](Process& process) {
                         dynamic_cast<Trainer&>(process).abort(action.generation, action.reason);
                       },
                   .timeout = seconds(10),
                   .failed = {}});
  }
}

void Controller::carry_out(const PauseAfterStep& action) {
  const int leader = state().trainer_of(0);
  cluster_.call(
      *this, run_.trainers[static_cast<std::size_t>(leader)],
      {.what =
           [action](Process& process) { dynamic_cast<Trainer&>(process).pause(action.generation); },
       .timeout = seconds(30),
       .failed = {}});
}

bool Controller::machine_leaves(int machine) {
  act(session_.machine_leaves(machine, now()));
  return session_.may_leave(machine);
}

void Controller::carry_out(const TellUser& action) {
  if (const auto* step = std::get_if<StepReport>(&action.message))
    run_.told_step = std::max(run_.told_step, step->step);
}

void Controller::carry_out(const RecordEvent& action) {
  if (action.event == events::kResize) {
    ++run_.result.resizes;
    run_.told_events.push_back(to_event(action));
  }
  if (action.event == events::kNotice) {
    std::vector<std::int32_t> barred;
    for (const auto& newcomer : state().memory().newcomers)
      if (newcomer.barred) barred.push_back(newcomer.machine);
    run_.when_done_without(barred);
  }
  run_.told_generation = std::max(run_.told_generation, action.generation);
  world_.note("event {} (generation {}): {}", action.event, action.generation, action.text);
}

void Controller::carry_out(const EndRun& action) {
  world_.note("the run ends: {}", action.status.to_string());
  run_.ended = true;
  run_.end = action.status;
}

std::string Controller::describe() const {
  std::string text = fmt::format("the controller has {} generation {}",
                                 state().running() ? "begun" : "lost", state().generation());
  const RunMemory& memory = state().memory();
  const auto expected =
      state().running() ? RunMemory::RankPhase::kRunning : RunMemory::RankPhase::kReady;
  int others = 0;
  for (std::size_t i = 0; i < memory.ranks.size(); ++i) {
    if (memory.ranks[i].phase == expected || ++others > 4) continue;
    text += fmt::format("; rank {} is in phase {}", i, static_cast<int>(memory.ranks[i].phase));
  }
  if (others > 4) text += fmt::format("; and {} ranks more", others - 4);
  return text;
}

}  // namespace troupe::simulation
