#include "machines.h"

#include "sim_controller.h"

namespace troupe::simulation {

// Up or not, and not about to go; -1: there is none.
int Machines::one_of(bool up) {
  std::vector<int> found;
  for (int machine = 0; machine < cluster_.nodes(); ++machine) {
    if (cluster_.node_up(machine) == up && !leaving_.contains(machine)) found.push_back(machine);
  }
  return found.empty() ? -1 : found[world_.random.below(found.size())];
}

bool Machines::enough() const {
  int there = 0;
  for (int machine = 0; machine < cluster_.nodes(); ++machine)
    there += cluster_.node_up(machine) && !leaving_.contains(machine) ? 1 : 0;
  return there >= run_.machines_min;
}

int Machines::join() {
  const int machine = one_of(false);
  if (machine < 0) return machine;
  ++run_.result.joins;
  cluster_.boot_node(machine);
  return machine;
}

void Machines::start_anew(const std::vector<std::int32_t>& machines) {
  for (const std::int32_t machine : machines) {
    if (!cluster_.node_up(machine) || !leaving_.insert(machine).second) continue;
    coming_again_.insert(machine);
    ask(machine, cluster_.boots(machine));
  }
}

void Machines::leave() {
  const int machine = one_of(true);
  if (machine < 0) return;
  world_.note("machine {} is to leave", machine);
  leaving_.insert(machine);
  ask(machine, cluster_.boots(machine));
}

void Machines::ask(int machine, std::uint64_t boot) {
  if (run_.ended || !cluster_.node_up(machine) || cluster_.boots(machine) != boot ||
      !leaving_.contains(machine)) {
    leaving_.erase(machine);
    return;
  }
  if (auto* controller = dynamic_cast<Controller*>(cluster_.ready_process(run_.controller))) {
    controller->later(world_.delay(), [this, controller, machine] {
      const bool may = controller->machine_leaves(machine);
      answered(machine, may, controller->has_machine(machine));
    });
  }
  world_.timeline.after(world_.between(10, 40), [this, machine, boot] { ask(machine, boot); });
}

void Machines::answered(int machine, bool may, bool needed) {
  if (run_.options.mistake == Mistake::kGoesWhenHeard) needed = !may;
  if (may && needed) return;
  world_.timeline.after(world_.delay(), [this, machine, may, boot = cluster_.boots(machine)] {
    if (leaving_.erase(machine) == 0) return;  // it was answered before
    world_.note("machine {} {}", machine, may ? "is let go" : "is needed, and stays");
    if (!may || !cluster_.node_up(machine) || cluster_.boots(machine) != boot) return;
    ++run_.result.leaves;
    run_.let_go(machine, [this](const Run::Where& at) {
      return cluster_.has_memory(at.node, at.memory_life);
    });
    go(machine, boot);
  });
}

void Machines::go(int machine, std::uint64_t boot) {
  if (run_.ended || cluster_.boots(machine) != boot) return;
  if (!cluster_.node_up(machine)) {
    // One that was lost unnoticed may have made it needed.
    if (coming_again_.erase(machine) != 0 || !enough()) cluster_.boot_node(machine);
    return;
  }
  cluster_.leave(machine);
  // A daemon that was killed has not heard it.
  world_.timeline.after(std::chrono::milliseconds(200),
                        [this, machine, boot] { go(machine, boot); });
}

}  // namespace troupe::simulation
