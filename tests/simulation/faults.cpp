#include "faults.h"

#include <algorithm>

#include "sim_controller.h"
#include "sim_trainer.h"

namespace troupe::simulation {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr auto kHangTimeout = seconds(3);

}  // namespace

void Faults::begin() {
  run_.when_done_without = [this](const auto& machines) { machines_.start_anew(machines); };
  left_ = run_.options.faults;
  next();
}

void Faults::next() {
  if (left_ == 0) return;
  // Close together: within the recovery from the one before, and sometimes at its very begin.
  const Duration wait = world_.chance(4) ? world_.between(0, 5) : world_.between(5, 400);
  world_.timeline.after(wait, [this] {
    if (run_.ended) {
      left_ = 0;
      return;
    }
    --left_;
    strike();
    next();
  });
}

void Faults::for_a_while(Duration time, std::function<void()> mend) {
  ++lasting_;
  world_.timeline.after(time, [this, mend = std::move(mend)] {
    mend();
    --lasting_;
  });
}

void Faults::kill_trainers(std::size_t count) {
  auto trainers = cluster_.living("Trainer");
  for (std::size_t i = 0; i < count && !trainers.empty(); ++i) {
    const std::size_t which = world_.random.below(trainers.size());
    auto* trainer = dynamic_cast<Trainer*>(trainers[which]);
    trainers.erase(trainers.begin() + static_cast<std::ptrdiff_t>(which));
    ++run_.result.kills;
    if (world_.chance(2)) {
      trainer->die_in_chunk();
      continue;
    }
    cluster_.kill_from_outside(*trainer);
  }
}

void Faults::stop_trainer() {
  const auto trainers = cluster_.living("Trainer");
  if (trainers.empty()) return;
  Process* trainer = trainers[world_.random.below(trainers.size())];
  // One that is stopped while it starts ends the run: nobody watches it yet (README.md).
  if (trainer->stopped() || !trainer->ready()) return;
  world_.note("{} is stopped", trainer->label());
  trainer->stop();
  const std::uint64_t pid = trainer->place().pid;
  if (world_.chance(2)) {
    for_a_while(world_.between(10, 2500), [this, pid] {
      if (Process* process = cluster_.find(pid); process->alive()) process->go_on();
    });
    return;
  }
  // Nobody wakes it: whoever watches tells the controller until it is gone.
  const auto watch = std::make_shared<std::function<void()>>();
  ++lasting_;
  *watch = [this, pid, again = std::weak_ptr(watch)] {
    const auto self = again.lock();
    Process* process = cluster_.find(pid);
    if (!process->alive() || run_.ended) {
      --lasting_;
      return;
    }
    if (auto* controller = dynamic_cast<Controller*>(cluster_.ready_process(run_.controller))) {
      controller->later(Duration::zero(),
                        [controller, pid] { controller->stuck(pid, kHangTimeout); });
    }
    world_.timeline.after(milliseconds(500), [self] { (*self)(); });
  };
  world_.timeline.after(kHangTimeout, [watch] { (*watch)(); });
}

void Faults::kill_controller() {
  if (Process* controller = cluster_.ready_process(run_.controller)) {
    ++run_.result.controller_kills;
    cluster_.kill_from_outside(*controller);
  }
}

void Faults::strike() {
  const int node =
      static_cast<int>(world_.random.below(static_cast<std::uint64_t>(cluster_.nodes())));
  // These faults are there only where the world may change.
  if (run_.options.elastic && world_.chance(2)) {
    const std::uint64_t dice = world_.random.below(10);
    if (dice >= 8) return part(node, world_.between(10, 5000));
    if (dice >= 6) crash_node(node);
    if (dice >= 4 && (dice < 6 || world_.chance(2))) machines_.leave();
    if (dice >= 4) return;
    // Others may not reach it for so long that they go on without it.
    const int came = machines_.join();
    if (came >= 0 && world_.chance(4)) part(came, world_.between(100, 60'000));
    return;
  }
  const std::uint64_t dice = world_.random.below(100);
  if (dice < 30) {
    kill_trainers(1);
  } else if (dice < 42) {
    kill_trainers(2 + world_.random.below(3));
  } else if (dice < 45) {
    kill_trainers(1000);
  } else if (dice < 53) {
    stop_trainer();
  } else if (dice < 62) {
    kill_controller();
  } else if (dice < 68) {
    ++run_.result.head_crashes;
    cluster_.crash_head();
    for_a_while(world_.between(5, 2500), [this] {
      if (!cluster_.head_up()) cluster_.start_head();
    });
  } else if (dice < 71) {
    if (!cluster_.head_up() || cluster_.head_frozen()) return;
    ++run_.result.head_stalls;
    cluster_.freeze_head();
    for_a_while(world_.between(1000, 10'000), [this] { cluster_.thaw_head(); });
  } else if (dice < 79) {
    ++run_.result.daemon_kills;
    cluster_.kill_daemon(node);
  } else if (dice < 86) {
    cluster_.break_link(node);
  } else if (dice < 92) {
    cut(node);
  } else if (dice < 96) {
    ++run_.result.node_losses;
    cluster_.kill_keeper(node);
    run_.may_lose_steps();
  } else if (dice < 98) {
    crash_node(node);
  } else {
    // The one that knows that a step is decided, before the others do.
    run_.when_committed = [this](int of) {
      world_.timeline.after(Duration::zero(), [this, of] { crash_node(of); });
    };
  }
}

void Faults::cut(int node) {
  ++run_.result.node_losses;
  cluster_.cut(node);
  run_.cut_off(node);
  for_a_while(world_.chance(2) ? world_.between(50, 2500) : world_.between(2500, 9000),
              [this, node] {
                cluster_.mend(node);
                run_.reached(node);
              });
}

// From the other machines: the head reaches it.
void Faults::part(int node, Duration time) {
  ++run_.result.node_losses;
  world_.note("node {} and the others do not reach each other", node);
  run_.meetings.part(node);
  run_.cut_off(node);
  for_a_while(time, [this, node] {
    world_.note("node {} and the others reach each other again", node);
    run_.meetings.reach(node);
    run_.reached(node);
  });
}

void Faults::crash_node(int node) {
  // Where the controller and the head are, that is the run's end.
  if (!cluster_.node_up(node) || (run_.options.elastic && node == 0)) return;
  ++run_.result.node_losses;
  cluster_.crash_node(node);
  // The run needs some, and others come when they come.
  if (machines_.enough() && world_.chance(2)) return;
  for_a_while(world_.between(100, 4000), [this, node] { cluster_.boot_node(node); });
}

}  // namespace troupe::simulation
