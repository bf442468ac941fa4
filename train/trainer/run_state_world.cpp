// The part of RunState on worlds that change: machines that come, leave and are lost.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "train/report/run_event.h"
#include "train/trainer/run_state.h"

namespace troupe::train {

namespace {

// Of a world with machines that have just come, before the others go on without them.
constexpr int kAttemptsWithNewcomers = 2;
// Of a world in which two machines do not reach each other.
constexpr int kAttemptsWithUnmet = 2;

}  // namespace

void RunState::on(const MachineLeaves& event, TimePoint now) {
  if (!elastic() || announced(event.machine)) return;
  if (in_world(event.machine)) {
    if (staying(now) - 1 < settings_.machines_min) return;
  } else if (!any_alive(event.machine)) {
    return;  // it would be taken for the next one with its number
  }
  known_.leaving.push_back(event.machine);
  if (!known_.running) return begin_when_ready(now);
  pause_for_world(now);
  // It came with this world, in which no step stands yet: none may ever, for want of it.
  if (!in_world(event.machine) || !is_new(event.machine)) return;
  give_up_generation(
      error(Code::kAborted, "machine {} leaves before the first step with it", event.machine), now);
}

int RunState::staying(TimePoint now) const {
  return static_cast<int>(std::ranges::count_if(
      machines(), [&](int machine) { return !leaves(machine) && !given_up(machine, now); }));
}

// Where one was lost for good too few may be left: who announced its end is needed yet, and hears
// of it when it asks again.
void RunState::withdraw_leaves(TimePoint now) {
  while (staying(now) < settings_.machines_min) {
    const auto needed = std::ranges::find_if(
        known_.leaving, [this](int machine) { return in_world(machine) && any_alive(machine); });
    if (needed == known_.leaving.end()) return;
    known_.leaving.erase(needed);
  }
}

// Where too few are left, those that were done without are tried once more; that they fail counts
// then, as the run needs them.
void RunState::try_barred_again(TimePoint now) {
  int there = 0;
  for (int machine = 0; machine < machines_max(); ++machine) {
    const bool may_be = machine_alive(machine) || (in_world(machine) && !given_up(machine, now));
    if (may_be && !leaves(machine)) ++there;
  }
  if (there >= settings_.machines_min) return;
  for (auto& newcomer : known_.newcomers) {
    if (!newcomer.barred || !machine_alive(newcomer.machine)) continue;
    newcomer.barred = false;
    newcomer.attempts = 0;
  }
}

void RunState::machine_came(int machine) {
  // What was known is of the machine which had this number before.
  std::erase(known_.leaving, machine);
  std::erase_if(known_.newcomers, [&](const auto& n) { return n.machine == machine; });
  if (known_.generation > 0) known_.newcomers.push_back({machine, known_.generation});
}

void RunState::newcomers_are_members() {
  std::erase_if(known_.newcomers, [this](const auto& n) {
    return in_world(n.machine) && n.came_in < known_.generation;
  });
}

bool RunState::is_new(int machine) const {
  return std::ranges::find(known_.newcomers, machine, &RunMemory::Newcomer::machine) !=
         known_.newcomers.end();
}

RunMemory::Newcomer& RunState::newcomer(int machine) {
  const auto found = std::ranges::find(known_.newcomers, machine, &RunMemory::Newcomer::machine);
  TROUPE_CHECK(found != known_.newcomers.end());
  return *found;
}

void RunState::count_attempts(int by) {
  for (auto& newcomer : known_.newcomers) {
    if (in_world(newcomer.machine)) newcomer.attempts = std::max(0, newcomer.attempts + by);
  }
}

std::vector<int> RunState::newcomers_to_spare() const {
  if (!elastic()) return {};
  std::vector<int> in_it = machines();
  // One of the others that leaves does so once a step stands with them.
  std::erase_if(in_it, [this](int machine) { return leaves(machine) && is_new(machine); });
  std::vector<int> to_spare;
  for (const int machine : in_it) {
    if (std::ssize(in_it) - std::ssize(to_spare) <= settings_.machines_min) break;
    if (is_new(machine)) to_spare.push_back(machine);
  }
  return to_spare;
}

bool RunState::in_world(int machine) const {
  return elastic() && std::ranges::any_of(places_.by_rank(), [&](int trainer) {
           return machine_of(trainer) == machine;
         });
}

bool RunState::in_former(int machine) const {
  return elastic() && std::ranges::any_of(known_.former, [&](const World& former) {
           return std::ranges::any_of(former.trainers, [&](std::int32_t trainer) {
             return machine_of(trainer) == machine;
           });
         });
}

bool RunState::has_machine(int machine) const { return in_world(machine) || in_former(machine); }

bool RunState::announced(int machine) const {
  return std::ranges::find(known_.leaving, machine) != known_.leaving.end();
}

bool RunState::leaves(int machine) const {
  return announced(machine) || std::ranges::any_of(known_.newcomers, [&](const auto& n) {
           return n.machine == machine && n.barred;
         });
}

template <typename Is>
bool RunState::any_trainer(int machine, Is is) const {
  for (int i = 0; i < settings_.ranks_per_machine; ++i) {
    const auto* trainer = places_.find(machine * settings_.ranks_per_machine + i);
    if (trainer && is(*trainer)) return true;
  }
  return false;
}

bool RunState::any_alive(int machine) const {
  return any_trainer(machine, [](const auto& trainer) { return trainer.alive; });
}

bool RunState::was_on(int machine, const std::string& node) const {
  // Where one had no process while a controller without memory looked for the run nobody knows.
  if (has_machine(machine) &&
      !any_trainer(machine, [](const auto& trainer) { return !trainer.node.empty(); }))
    return known_.generation > 0;
  return any_trainer(machine, [&](const auto& trainer) { return trainer.node == node; });
}

bool RunState::machine_alive(int machine) const {
  return machine < machines_max() &&
         !any_trainer(machine, [](const auto& trainer) { return !trainer.fit(); });
}

bool RunState::given_up(int machine, TimePoint now) const {
  bool placeless = false;
  for (std::size_t i = 0; i < known_.ranks.size(); ++i) {
    if (machine_of(places_.trainer_of(static_cast<int>(i))) != machine) continue;
    const Rank& rank = known_.ranks[i];
    if (!rank.absent_since) continue;
    // Before the run's end there is no time to wait for another one.
    if (known_.save_by &&
        (!rank.has_place || now - *rank.absent_since >= settings_.step_patience() / 2))
      return true;
    if (now - *rank.absent_since < settings_.shrink_after) return false;
    placeless = placeless || !rank.has_place;
  }
  return placeless;
}

std::vector<int> RunState::machines() const {
  std::vector<int> machines;
  for (const int trainer : places_.by_rank()) {
    if (machines.empty() || machines.back() != machine_of(trainer))
      machines.push_back(machine_of(trainer));
  }
  return machines;
}

// A rank's state may have no more than one copy, on another machine: one of those that leave goes
// with each step that stands. Where one is lost none does, nor before a step stands with whoever
// took its place; and one that has just gone comes back with what it holds yet.
std::optional<std::vector<int>> RunState::wanted_machines(TimePoint now) const {
  const auto in_it = machines();
  std::vector<int> newcomers = in_it;
  std::erase_if(newcomers, [this](int machine) { return !is_new(machine); });
  // What a machine before held is lost, too, where another one has its number by now.
  bool lost = known_.found ||
              std::ranges::any_of(newcomers, [this](int machine) { return in_former(machine); });
  for (const int machine : in_it) {
    if (machine_alive(machine) || ((leaves(machine) || known_.save_by) && is_new(machine)))
      continue;
    if (!given_up(machine, now)) return std::nullopt;
    lost = true;
  }
  bool goes = !newcomers.empty() || !known_.former.empty();
  std::vector<int> wanted;
  for (int machine = 0; machine < machines_max(); ++machine) {
    if (!machine_alive(machine)) continue;
    // Before the run's end whoever holds nothing is not waited for.
    if (known_.save_by && (is_new(machine) || !has_machine(machine))) continue;
    if (leaves(machine)) {
      const bool holds = !is_new(machine) && (lost ? has_machine(machine) : in_world(machine));
      const bool stays = holds && (lost || std::exchange(goes, true));
      if (!stays) continue;
    }
    wanted.push_back(machine);
  }
  if (wanted.empty() || (std::ssize(wanted) < settings_.machines_min && !known_.save_by))
    return std::nullopt;
  return wanted;
}

// All others are there and no step came of it: whoever came last crashes, or is not to be met by
// some other one.
void RunState::do_without_newcomers(TimePoint now) {
  if (!std::ranges::all_of(
          machines(), [this](int machine) { return machine_alive(machine) || is_new(machine); }))
    return;
  for (const int machine : newcomers_to_spare()) {
    RunMemory::Newcomer& tried = newcomer(machine);
    if (tried.attempts < kAttemptsWithNewcomers) continue;
    bar(machine,
        fmt::format(
            "no step came of {} attempts with it{}{}", tried.attempts,
            known_.newcomers_failed.empty() ? "" : ", the last one: ", known_.newcomers_failed),
        now);
  }
  withdraw_leaves(now);  // they may be needed in its place
}

void RunState::bar(int machine, const std::string& why, TimePoint now) {
  newcomer(machine).barred = true;
  const std::string text = fmt::format(
      "machine {} is done without: {}; start it anew when the others reach it", machine, why);
  record({.event = events::kNotice,
          .generation = known_.generation,
          .step = known_.last_step,
          .text = text,
          .cause = text},
         now);
}

void RunState::note_unmet(const Status& cause, const Loss& loss) {
  if (!elastic()) return;
  std::vector<std::int32_t> ends;
  const auto peer = parse_integer<int>(cause.context("peer").value_or(""));
  if (loss.told_by >= 0 && peer && rank_of(*peer)) {
    for (const int rank : {loss.told_by, *peer})
      ends.push_back(machine_of(places_.trainer_of(rank)));
    if (ends.front() == ends.back()) ends.clear();
  }
  std::vector<std::int32_t> of_both = ends;
  if (known_.unmet_attempts > 0)
    std::erase_if(of_both, [this](std::int32_t machine) {
      return std::ranges::find(known_.unmet, machine) == known_.unmet.end();
    });
  known_.unmet_attempts = ends.empty() ? 0 : of_both.empty() ? 1 : known_.unmet_attempts + 1;
  known_.unmet = of_both.empty() ? ends : of_both;
}

// Two of the machines do not reach each other, though the head reaches both: the others go on
// without one of them, as if it were lost. Not while more than a link failed since the last step:
// the only copy of a state may lie on either.
void RunState::do_without_unmet(TimePoint now) {
  if (known_.unmet_attempts < kAttemptsWithUnmet ||
      known_.unmet_attempts < known_.fruitless_failures || !known_.former.empty() || known_.found)
    return;
  const std::vector<int> in_it = machines();
  if (std::ssize(in_it) <= settings_.machines_min ||
      !std::ranges::all_of(in_it, [this](int machine) { return machine_alive(machine); }))
    return;
  // Who has rank 0 has the run's history, and writes its files.
  std::vector<std::int32_t> ends = known_.unmet;
  std::erase(ends, machine_of(places_.trainer_of(0)));
  if (ends.empty()) return;
  const int machine = std::ranges::max(ends);
  known_.unmet_attempts = 0;
  if (!is_new(machine)) known_.newcomers.push_back({machine, known_.generation});
  bar(machine, "it and another one of the run's machines do not reach each other", now);
  withdraw_leaves(now);
}

bool RunState::settle_world(TimePoint now) {
  withdraw_leaves(now);
  try_barred_again(now);
  if (!running_ranks().empty()) return false;
  do_without_newcomers(now);
  do_without_unmet(now);
  const auto wanted = wanted_machines(now);
  if (!wanted) return false;
  if (*wanted != machines()) change_world(*wanted, now);
  return true;
}

void RunState::change_world(const std::vector<int>& wanted, TimePoint now) {
  const std::vector<int> before = machines();
  std::string why;
  const auto say = [&](int machine, const char* what) {
    why += fmt::format("{}machine {} {}", why.empty() ? "" : ", ", machine, what);
  };
  for (const int machine : before) {
    if (std::ranges::find(wanted, machine) == wanted.end())
      say(machine, leaves(machine) ? "leaves" : "is lost");
  }
  for (const int machine : wanted) {
    if (std::ranges::find(before, machine) != before.end()) continue;
    say(machine, "came");
    // It was cut off, and steps stood without it: its process is the one that it was.
    if (known_.generation > 0 && !is_new(machine) && !in_former(machine))
      known_.newcomers.push_back({machine, known_.generation});
  }
  const int ranks_before = places_.world_size();
  if (known_.generation > 0) known_.former.insert(known_.former.begin(), world());
  ++known_.world;
  const std::vector<int> trainers = trainers_of(wanted, settings_.ranks_per_machine);
  places_.set_world(trainers);
  known_.ranks.assign(trainers.size(),
                      Rank{.phase = RankPhase::kReady, .generation = known_.generation});
  if (recovery_) recovery_->respawned(now);
  record({.event = events::kResize,
          .generation = known_.generation,
          .step = known_.last_step,
          .text = fmt::format(
              "the world has {} rank{} on {} machine{} from here on, it had {} on {}: {}",
              trainers.size(), trainers.size() == 1 ? "" : "s", wanted.size(),
              wanted.size() == 1 ? "" : "s", ranks_before, before.size(), why),
          .cause = why,
          .world = world()},
         now);
}

void RunState::pause_for_world(TimePoint now) {
  if (!elastic() || ended() || !known_.running || known_.pausing || known_.save_by || recovery_ ||
      known_.purpose != GenerationPurpose::kTrain)
    return;
  const auto wanted = wanted_machines(now);
  if (!wanted || *wanted == machines()) return;
  known_.pausing = true;
  commands_.push_back(PauseAfterStep{known_.generation});
}

}  // namespace troupe::train
