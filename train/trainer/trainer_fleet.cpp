#include "train/trainer/trainer_fleet.h"

#include <algorithm>
#include <utility>

#include "train/progress/progress_record.h"
#include "train/report/run_event.h"
#include "train/trainer/controller.h"
#include "train/trainer/progress_memory.h"

namespace troupe::train {
namespace {

// For the answer of a trainer that has taken the run's data.
constexpr auto kStatusTimeout = std::chrono::seconds(20);
// A keeper's processes end together.
constexpr auto kKeeperEventsApart = std::chrono::seconds(3);

}  // namespace

GangMember<TrainerActor> TrainerFleet::member(int number, const std::optional<SparePlace>& place) {
  return GangMember<TrainerActor>(trainer_options(run_.spec, number, place),
                                  context_.self<TrainController>(),
                                  trainer_setup(run_.spec, number));
}

Status TrainerFleet::place() {
  std::vector<GangMember<TrainerActor>> members;
  for (int rank = 0; rank < run_.spec.world_size; ++rank) members.push_back(member(rank));
  const auto handles = TROUPE_TRY(context_.spawn_gang(std::move(members), run_.spec.no_wait));
  for (const auto& handle : handles) add(handle);
  return {};
}

void TrainerFleet::place_spares() {
  if (!std::exchange(spares_wanted_, false) || run_.spec.spares == 0) return;
  std::vector<PlacedTrainer> placed;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const auto* known = run_.state.places().find(static_cast<int>(i));
    placed.push_back({trainers_[i].node_id, known->rank, known->gpu});
  }
  std::vector<GangMember<TrainerActor>> members;
  for (const SparePlace& place : spare_places(run_.spec, placed)) {
    for (int i = 0; i < run_.spec.spares; ++i) {
      members.push_back(member(run_.spec.world_size + static_cast<int>(members.size()), place));
    }
  }
  auto shared = std::make_shared<std::vector<GangMember<TrainerActor>>>(std::move(members));
  run_.beside.run([this, shared] {
    auto handles = context_.spawn_gang(std::move(*shared));
    context_.executor().post([this, handles = std::move(handles)] {
      if (!handles.ok()) {
        context_.log().warning("no spares: {}", handles.status().to_string());
        spares_wanted_ = true;  // after the next begin
        return;
      }
      run_.feed(SparesPlaced{static_cast<int>(handles->size())});
      for (const auto& handle : *handles) add(handle);
      run_.remember();
    });
  });
}

void TrainerFleet::add(const ActorHandle<TrainerActor>& handle) {
  trainers_.emplace_back();
  trainers_.back().handle = handle;
  processes_.add();
  watch(static_cast<int>(trainers_.size()) - 1);
}

void TrainerFleet::save(ControllerMemory& memory) const {
  memory.spares_wanted = spares_wanted_;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const Trainer& trainer = trainers_[i];
    const auto& process = processes_[static_cast<int>(i)];
    memory.trainers.push_back(
        {trainer.handle, process.served, process.died, process.node, trainer.node_id, trainer.pid});
  }
}

void TrainerFleet::restore(const ControllerMemory& memory) {
  spares_wanted_ = memory.spares_wanted;
  for (const ControllerMemory::Trainer& known : memory.trainers) {
    trainers_.push_back({.handle = known.handle, .node_id = known.node_id, .pid = known.pid});
    processes_.add();
    processes_.restore(static_cast<int>(trainers_.size()) - 1, known.served, known.died,
                       known.node);
  }
}

void TrainerFleet::adopt(const FoundRun& run, const std::vector<TrainerFound>& living) {
  spares_wanted_ = std::ssize(run.trainers) <= run_.spec.world_size;
  for (const FoundTrainer& one : run.trainers) {
    trainers_.push_back({.handle = one.handle});
    processes_.add();
  }
  for (const TrainerFound& one : living) {
    const auto number = static_cast<std::size_t>(one.trainer);
    const TrainerStatus& status = *run.trainers[number].status;
    processes_.found(one.trainer, status.incarnation, one.node);
    trainers_[number].node_id = status.node_id;
    trainers_[number].pid = status.pid;
  }
}

void TrainerFleet::watch() {
  for (std::size_t i = 0; i < trainers_.size(); ++i) watch(static_cast<int>(i));
}

void TrainerFleet::watch(int number) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  trainer.watch = context_.watch(trainer.handle, [this, number](const wire::ActorInfo& info) {
    context_.executor().post([this, number, info] { changed(number, info); });
  });
}

void TrainerFleet::kill_and_restart(int number, const std::string& reason) {
  run_.beside.run([this, handle = (*this)[number].handle, reason] {
    const Status killed = context_.kill(handle, {.allow_restart = true, .reason = reason});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  });
}

void TrainerFleet::changed(int number, const wire::ActorInfo& info) {
  if (run_.state.ended()) return;
  Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  // They are placed together: where one has left the cluster's line, all have.
  if (run_.state.generation() == 0 && info.state != wire::ActorState::kPending)
    run_.feed(TrainersPlaced{});
  const auto change = processes_.changed(number, info, run_.clock.now());
  if (change.died != 0) {
    trainer.served_later = false;
    const int rank = run_.state.places().find(number)->rank;
    if (change.was_alive) {
      if (change.cause.context("keeper")) keeper_lost(change.node);
      if (rank >= 0) look_back(number, rank, change.died);
    }
    run_.feed(TrainerDied{number, change.died, change.node, change.cause});
    if (!change.was_alive) run_.feed(PostMortem{number, change.died, {}, ""});
  }
  if (change.gone) return run_.feed(TrainerGone{number, info.death});
  if (!info.pending_why.empty()) run_.feed(TrainerWaiting{number, info.pending_why});
  if (!change.wants_data) return;
  trainer.node_id = info.node_id;
  trainer.pid = info.pid;
  // What a new spare does to be ready would take the processors from the step that everybody waits
  // for.
  trainer.served_later = run_.state.places().find(number)->rank < 0 && run_.state.recovering();
  if (!trainer.served_later) give_bundle(number);
}

// Told of each process that ended with it.
void TrainerFleet::keeper_lost(const std::string& node) {
  const TimePoint now = run_.clock.now();
  auto& told = keepers_lost_[node];
  if (told && now - *told < kKeeperEventsApart) return;
  told = now;
  run_.journal.record(
      {.event = events::kKeeper,
       .generation = static_cast<std::int64_t>(run_.state.generation()),
       .node = node,
       .step = run_.state.last_step()},
      fmt::format("the keeper of node {} died, and with it its trainers and their memory", node));
}

void TrainerFleet::serve_waiting() {
  for (const int number : processes_.unserved()) give_bundle(number);
}

void TrainerFleet::end_unserved(TimePoint now) {
  for (const int number : processes_.to_end(now))
    kill_and_restart(number, "it did not take the run's data");
}

void TrainerFleet::end_all(const std::string& reason) {
  for (const Trainer& trainer : trainers_) {
    const Status killed = context_.kill(trainer.handle, {.reason = reason});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  }
}

void TrainerFleet::serve_later_ones() {
  if (run_.state.ended() || run_.state.recovering()) return;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (std::exchange(trainers_[i].served_later, false)) give_bundle(static_cast<int>(i));
  }
}

void TrainerFleet::give_bundle(int number) {
  const std::uint64_t incarnation = processes_[number].alive;
  if (!run_.bundle.has_bundle()) {
    processes_.cannot_serve(number, run_.clock.now());
    return run_.feed(TrainerWaiting{number, "the controller waits for the run's data"});
  }
  processes_.serving(number);
  const auto deliver = run_.bundle.delivery();
  if (!deliver.ok()) return gave_bundle(number, incarnation, deliver.status());
  const auto handle = (*this)[number].handle;
  run_.beside.run([this, number, deliver = *deliver, handle, incarnation] {
    Status given = deliver(handle.id());
    TrainerStatus status;
    if (given.ok() && run_.spec.gpus_per_trainer > 0) {
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

void TrainerFleet::gave_bundle(int number, std::uint64_t incarnation, const Status& given,
                               const TrainerStatus& status) {
  if (!processes_.served(number, incarnation, given.ok(), run_.clock.now())) return;
  if (!given.ok()) {
    // Most likely it died meanwhile, which the head will tell. A process that lives is ended: its
    // successor may take them, and the failure counts.
    context_.log().warning("trainer {} did not get the run's data: {}", number, given.to_string());
    run_.feed(TrainerWaiting{number,
                             fmt::format("it did not get the run's data: {}", given.to_string())});
    return;
  }
  run_.feed(TrainerAlive{number, incarnation, processes_[number].node, status.gpu});
}

void TrainerFleet::look_back(int number, int rank, std::uint64_t incarnation) {
  const Trainer& trainer = (*this)[number];
  run_.beside.run([this, number, rank, incarnation, id = trainer.handle.id(), pid = trainer.pid,
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
    context_.executor().post([this, found] { run_.feed(found); });
  });
}

}  // namespace troupe::train
