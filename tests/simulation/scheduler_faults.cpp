#include "scheduler_faults.h"

#include <algorithm>

namespace troupe::simulation {

void SchedulerFaults::begin(const Plan& plan) {
  for (int i = 0; i < plan.faults; ++i) at_random(plan.time, [this] { strike(); });
  for (int i = 0; i < plan.kills; ++i) at_random(plan.time, [this] { kill_process(); });
  for (int i = 0; i < plan.nodes_lost; ++i) at_random(plan.time, [this] { lose_node(); });
}

void SchedulerFaults::at_random(Duration time, std::function<void()> what) {
  ++left_;
  const double time_ms = std::chrono::duration<double, std::milli>(time).count();
  world_.timeline.after(world_.between(0, time_ms), [this, what = std::move(what)] {
    --left_;
    what();
  });
}

void SchedulerFaults::for_a_while(Duration time, std::function<void()> mend) {
  ++lasting_;
  world_.timeline.after(time, [this, mend = std::move(mend)] {
    mend();
    --lasting_;
  });
}

int SchedulerFaults::any_node() {
  return static_cast<int>(world_.random.below(static_cast<std::uint64_t>(cluster_.nodes())));
}

void SchedulerFaults::kill_process() {
  const auto living = cluster_.living_pids();
  if (living.empty()) return;
  ++result_.kills;
  cluster_.kill_from_outside(*cluster_.find(living[world_.random.below(living.size())]));
}

void SchedulerFaults::kill_processes() {
  const std::uint64_t count = world_.chance(3) ? 1 + world_.random.below(5) : 1;
  for (std::uint64_t i = 0; i < count; ++i) kill_process();
}

void SchedulerFaults::crash(int node) {
  result_.crash_kills += static_cast<int>(cluster_.running(node).size());
  cluster_.crash_node(node);
}

// One that is up, or will be again; the last two stay.
void SchedulerFaults::lose_node() {
  std::vector<int> left;
  for (int node = 0; node < cluster_.nodes(); ++node) {
    if (!lost_.contains(node)) left.push_back(node);
  }
  if (left.size() <= 2) return;
  const int node = left[world_.random.below(left.size())];
  lost_.insert(node);
  ++result_.nodes_lost;
  crash(node);
}

void SchedulerFaults::crash_node() {
  const int node = any_node();
  if (!cluster_.node_up(node)) return;
  crash(node);
  for_a_while(world_.between(100, 6000), [this, node] {
    if (!lost_.contains(node)) cluster_.boot_node(node);
  });
}

void SchedulerFaults::cut_nodes() {
  const std::uint64_t count =
      world_.chance(3)
          ? 1 + world_.random.below(static_cast<std::uint64_t>(cluster_.nodes()) / 2 + 1)
          : 1;
  const Duration time = world_.chance(2) ? world_.between(50, 2500) : world_.between(2500, 9000);
  for (std::uint64_t i = 0; i < count; ++i) {
    const int node = any_node();
    ++result_.cuts;
    cluster_.cut(node);
    for_a_while(time, [this, node] { cluster_.mend(node); });
  }
}

void SchedulerFaults::freeze_node() {
  const int node = any_node();
  if (!cluster_.node_well(node)) return;
  ++result_.freezes;
  world_.note("node {} stands still", node);
  cluster_.freeze(node);
  const Duration time = world_.chance(2) ? world_.between(20, 400) : world_.between(400, 7000);
  for_a_while(time, [this, node] {
    world_.note("node {} goes on", node);
    cluster_.thaw(node);
  });
}

void SchedulerFaults::crash_head() {
  ++result_.head_crashes;
  if (world_.chance(2)) {
    cluster_.crash_head();
  } else {
    ++result_.torn_appends;
    cluster_.crash_head_in_flush();
  }
  bring_head_back();
}

void SchedulerFaults::bring_head_back() {
  const Duration away = world_.chance(6) ? world_.between(2500, 6000) : world_.between(20, 900);
  for_a_while(away, [this] {
    if (!cluster_.head_up()) return cluster_.start_head();
    if (!cluster_.head_is_to_die()) return;
    // It had nothing to keep until now.
    cluster_.crash_head();
    bring_head_back();
  });
}

// Stopped, or its disk hangs: from a moment to far beyond every lease.
void SchedulerFaults::stall_head() {
  if (!cluster_.head_up() || cluster_.head_frozen()) return;
  ++result_.head_stalls;
  cluster_.freeze_head();
  for_a_while(world_.between(1000, 10'000), [this] { cluster_.thaw_head(); });
}

void SchedulerFaults::strike() {
  const std::uint64_t dice = world_.random.below(100);
  if (dice < 24) {
    kill_processes();
  } else if (dice < 32) {
    crash_node();
  } else if (dice < 44) {
    cut_nodes();
  } else if (dice < 56) {
    freeze_node();
  } else if (dice < 64) {
    cluster_.break_link(any_node());
  } else if (dice < 74) {
    ++result_.daemon_kills;
    cluster_.kill_daemon(any_node());
  } else if (dice < 78) {
    cluster_.kill_keeper(any_node());
  } else if (dice < 82) {
    stall_head();
  } else if (dice < 91) {
    crash_head();
  } else if (dice < 94) {
    any_client_()->break_connection();
  } else if (dice < 96) {
    FaultyClient* driver = any_client_();
    if (driver->ended()) return;
    ++result_.owners_gone;
    driver->end();
  } else {
    const int node = any_node();
    if (!cluster_.node_well(node)) return;
    cluster_.leave(node);
    for_a_while(world_.between(3000, 8000), [this, node] {
      if (!lost_.contains(node)) cluster_.boot_node(node);
    });
  }
}

}  // namespace troupe::simulation
