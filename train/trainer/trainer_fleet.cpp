#include "train/trainer/trainer_fleet.h"

#include <algorithm>
#include <utility>

#include "train/progress/progress_record.h"
#include "train/trainer/controller.h"
#include "train/trainer/progress_memory.h"

namespace troupe::train {
namespace {

// For the answer of a trainer that has taken the run's data.
constexpr auto kStatusTimeout = std::chrono::seconds(20);

}  // namespace

GangMember<TrainerActor> TrainerFleet::member(int number, const std::optional<SparePlace>& place) {
  return GangMember<TrainerActor>(
      trainer_options(run_.spec, number, place),
      seal(StartedTrainer{context_.self<TrainController>(), trainer_setup(run_.spec, number)}));
}

Status TrainerFleet::place() {
  if (run_.spec.elastic()) return place_machines();
  std::vector<GangMember<TrainerActor>> members;
  for (int rank = 0; rank < run_.spec.world_size; ++rank) members.push_back(member(rank));
  add(TROUPE_TRY(context_.spawn_gang(std::move(members), run_.spec.no_wait)));
  return {};
}

// Those of machines that are not there yet wait for them.
Status TrainerFleet::place_machines() {
  const RunSpec& spec = run_.spec;
  std::vector<ActorHandle<TrainerActor>> handles(static_cast<std::size_t>(spec.world_size));
  const auto place = [&](const std::vector<std::int32_t>& machines, bool no_wait) -> Status {
    std::vector<GangMember<TrainerActor>> members;
    const std::vector<int> numbers = trainers_of(machines, spec.ranks_per_node);
    for (const int number : numbers) members.push_back(member(number));
    const auto placed = TROUPE_TRY(context_.spawn_gang(std::move(members), no_wait));
    for (std::size_t i = 0; i < placed.size(); ++i)
      handles[static_cast<std::size_t>(numbers[i])] = placed[i];
    return {};
  };
  std::vector<std::int32_t> waited_for;
  for (int machine = 0; machine < spec.machines; ++machine) {
    if (std::ranges::find(spec.first_machines, machine) == spec.first_machines.end())
      waited_for.push_back(machine);
  }
  if (const Status together = place(spec.first_machines, spec.no_wait); !together.ok()) {
    // One may have been lost since they met: those that are left may be enough.
    int placed = 0;
    for (const int machine : spec.first_machines) {
      if (place({machine}, spec.no_wait).ok()) {
        ++placed;
      } else {
        waited_for.push_back(machine);
      }
    }
    if (placed < spec.machines_min || std::ranges::find(waited_for, 0) != waited_for.end())
      return together;
    run_.act({TellUser{
        -1, WarningReport{fmt::format("the run begins with {} of {} machines: {}", placed,
                                      spec.first_machines.size(), together.to_string())}}});
  }
  for (const int machine : waited_for) TROUPE_RETURN_IF_ERROR(place({machine}, false));
  add(handles);
  return {};
}

void TrainerFleet::place_spares() {
  const std::uint64_t generation = run_.session.state().generation();
  if (spares_tried_in_ == generation || !spares_wanted_ || run_.spec.spares == 0) return;
  spares_tried_in_ = generation;
  spares_wanted_ = false;
  std::vector<PlacedTrainer> placed;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const auto number = static_cast<int>(i);
    const auto* known = run_.session.state().places().find(number);
    placed.push_back({run_.session.processes()[number].node_id, known->rank, known->gpu});
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
        spares_wanted_ = true;  // in the next generation
        return;
      }
      run_.act(
          run_.session.tell(SparesPlaced{static_cast<int>(handles->size())}, run_.clock.now()));
      add(*handles);
      run_.act({SaveMemory{}});
    });
  });
}

void TrainerFleet::add(const std::vector<ActorHandle<TrainerActor>>& handles) {
  run_.session.add_trainers(handles.size());
  for (const auto& handle : handles) {
    trainers_.emplace_back();
    trainers_.back().handle = handle;
    watch(static_cast<int>(trainers_.size()) - 1);
  }
}

void TrainerFleet::save(ControllerMemory& memory) const {
  memory.spares_wanted = spares_wanted_;
  const auto processes = run_.session.processes().saved();
  for (std::size_t i = 0; i < trainers_.size(); ++i)
    memory.trainers.push_back({trainers_[i].handle, processes[i]});
}

void TrainerFleet::restore(const ControllerMemory& memory) {
  spares_wanted_ = memory.spares_wanted;
  for (const ControllerMemory::Trainer& known : memory.trainers)
    trainers_.push_back({.handle = known.handle});
}

void TrainerFleet::adopt(const std::vector<ActorHandle<TrainerActor>>& found) {
  spares_wanted_ = std::ssize(found) <= run_.spec.world_size;
  for (const auto& handle : found) trainers_.push_back({.handle = handle});
}

void TrainerFleet::watch() {
  for (std::size_t i = 0; i < trainers_.size(); ++i) watch(static_cast<int>(i));
}

void TrainerFleet::watch(int number) {
  Trainer& trainer = trainers_[static_cast<std::size_t>(number)];
  trainer.watch = context_.watch(trainer.handle, [this, number](const wire::ActorInfo& info) {
    context_.executor().post(
        [this, number, info] { run_.act(run_.session.changed(number, info, run_.clock.now())); });
  });
}

void TrainerFleet::restart(int number, const std::string& reason) {
  context_.log().warning("trainer {} is ended: {}", number, reason);
  run_.beside.run([this, handle = (*this)[number], reason] {
    const Status killed = context_.kill(handle, {.allow_restart = true, .reason = reason});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  });
}

void TrainerFleet::end_all(const std::string& reason) {
  for (const Trainer& trainer : trainers_) {
    const Status killed = context_.kill(trainer.handle, {.reason = reason});
    if (!killed.ok()) context_.log().warning("ending a trainer: {}", killed.to_string());
  }
}

void TrainerFleet::give_data(int number, std::uint64_t incarnation) {
  const auto deliver = run_.bundle.delivery(run_.spec.token_cache);
  if (!deliver.ok()) return gave_data(number, incarnation, deliver.status());
  run_.beside.run([this, number, deliver = *deliver, handle = (*this)[number], incarnation] {
    Status given = deliver(handle.id());
    TrainerStatus status;
    if (given.ok() && run_.spec.gpus_per_trainer > 0) {
      auto told =
          handle.with({.timeout = kFindTimeout}).call<&TrainerActor::status>().get(kStatusTimeout);
      given = told.status();
      if (told.ok()) status = *told->value;
    }
    context_.executor().post([this, number, incarnation, given, status] {
      gave_data(number, incarnation, given, status);
    });
  });
}

void TrainerFleet::gave_data(int number, std::uint64_t incarnation, const Status& given,
                             const TrainerStatus& status) {
  if (!given.ok())
    context_.log().warning("trainer {} did not get the run's data: {}", number, given.to_string());
  run_.act(run_.session.data_given(number, incarnation, given, status.gpu, run_.clock.now()));
}

void TrainerFleet::look_back(const LookBack& dead) {
  const auto& process = run_.session.processes()[dead.trainer];
  const std::string prefix = rank_memory(run_.session.state().world().number, dead.rank);
  run_.beside.run([this, dead, prefix, id = (*this)[dead.trainer].id(), pid = process.pid,
                   same_node = process.node_id == context_.node_id()] {
    PostMortem found{dead.trainer, dead.incarnation, {}, ""};
    const auto deadline = Deadline::after(kPostMortemTimeout);
    // The rank's next process may have put its own there already.
    for (const char* name : {kProgressName, kProgressBeforeName}) {
      const auto bytes = context_.read_segment(id, fmt::format("{}/{}", prefix, name),
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
    context_.executor().post(
        [this, found] { run_.act(run_.session.tell(found, run_.clock.now())); });
  });
}

}  // namespace troupe::train
