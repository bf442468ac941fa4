"""tools/torture worlds: a training whose machines come and go. Of four machines two leave at once, are started again one
by one, and one is killed whole and started again, round after round. No step is lost, none of a world that changes by
intent is computed twice, and losses and weights are those of a run in which nothing happened."""

import random
import signal

from harness import results
from harness.figures import Fault, median
from harness.machines import TrainingMachines
from harness.run import Run

MACHINES = 4
LEAST = 2
STEPS_BETWEEN = (3, 8)
PACE_STEPS = 40
CHANGE_TIMEOUT_S = 60
# What the changes of a round take of a run's time besides its steps: five starts, and the wait for a lost machine.
ROUND_S = 9.0
SHRINK_P50_BAR_S = 3.0
SHRINK_MAX_BAR_S = 6.0
LEAVE_BAR_S = 1.0


class Worlds:
    """A run, and what its changes cost: seconds between the last step of a world and the first one of the next, beyond
    a normal step."""

    def __init__(self, machines, chance, step_s):
        self._machines = machines
        self._run = machines.run
        self._chance = chance
        self._step_s = step_s
        self._resizes = 0
        self.took = {"joined": [], "left": [], "lost": []}

    def _some_steps(self):
        target = self._run.last_step() + self._chance.randint(*STEPS_BETWEEN)
        if not self._run.wait_for_step(target, CHANGE_TIMEOUT_S):
            raise Fault(f"run {self._run.name} ended before its last change; {self._run.last_words()}")
        self._run.random_moment(self._chance, self._step_s)

    def _becomes(self, size, what):
        """Waits until the world has so many ranks and has finished a step; returns the last step before each change."""
        def resized():
            events = self._run.events("resize")
            return len(events) > self._resizes and events[-1][0]["world_size"] == size
        if not self._run.wait(resized, CHANGE_TIMEOUT_S, what):
            raise Fault(f"run {self._run.name} ended: {what}; {self._run.last_words()}")
        events = self._run.events("resize")
        last = [event["step"] for event, _ in events[self._resizes:]]
        self._resizes = len(events)
        self._run.wait_for_step(last[-1] + 1, CHANGE_TIMEOUT_S)
        return last

    def _pause(self, last):
        """Between the steps around a change."""
        at = self._run.step_at
        return at[last + 1] - at[last] - self._step_s

    def join(self, number, size):
        self._some_steps()
        self._machines.start(number)
        self.took["joined"] += map(self._pause, self._becomes(size, f"machine {number} joins"))

    def leave(self, numbers, size):
        self._some_steps()
        for number in numbers:
            self._machines.leave(number)
        self.took["left"] += map(self._pause, self._becomes(size, f"machines {numbers} leave"))
        for number in numbers:
            code = self._machines.left(number, CHANGE_TIMEOUT_S)
            if code != 128 + signal.SIGTERM:
                raise Fault(f"machine {number} left with code {code}")

    def lose(self, number, size):
        self._some_steps()
        last = self._run.last_step()
        at = self._machines.kill(number)
        self._becomes(size, f"machine {number} is lost")
        # The step under way may stand.
        first = last + 1 if self._run.step_at[last + 1] - at > self._step_s / 2 else last + 2
        self._run.wait_for_step(first, CHANGE_TIMEOUT_S)
        self.took["lost"].append(self._run.step_at[first] - at - self._step_s)


def _settings(place, options, strategy, steps):
    return place.settings(options.model, steps, troupe__strategy=strategy, troupe__last_call_s=10,
                          troupe__deterministic="across_world_sizes", save_strategy="steps", save_steps=50,
                          save_total_limit=1)


def worlds(figures, place, bin_folder, options):
    for strategy in options.strategies.split(","):
        if strategy in ("hsdp", "lora"):
            continue  # a mesh has one size; adapters take the same way as zero3
        torture(figures, place, bin_folder, options, strategy)


def torture(figures, place, bin_folder, options, strategy):
    rounds = options.rounds
    chance = random.Random(options.seed)

    def undisturbed(steps, of):
        settings = {**_settings(place, options, strategy, steps), "troupe.workers": MACHINES}
        return Run(place, bin_folder, f"{strategy}-{of}", settings).start().finish(options.timeout)

    # Alone on their machine, ranks share memory: in a world of machines a step takes longer.
    pace_s = undisturbed(PACE_STEPS, "pace").step_s()
    steps = int(20 + rounds * (6 * STEPS_BETWEEN[1] + ROUND_S / pace_s))
    plain = undisturbed(steps, "undisturbed")
    settings = _settings(place, options, strategy, steps)
    with TrainingMachines(place, bin_folder, MACHINES, LEAST, strategy, settings) as machines:
        machines.run.wait_for_step(12, CHANGE_TIMEOUT_S)
        worlds_ = Worlds(machines, chance, machines.run.step_s())
        for _ in range(rounds):
            others = chance.sample(range(1, MACHINES), 3)
            worlds_.leave(others[:2], 2)
            worlds_.join(others[0], 3)
            worlds_.join(others[1], 4)
            worlds_.lose(others[2], 3)
            worlds_.join(others[2], 4)
        machines.run.finish(options.timeout)
        _judge(figures, machines.run, plain, strategy, worlds_)


def _judge(figures, run, plain, what, changes):
    for difference in run.differences(plain):
        figures.note(f"  {what}: {difference}")
    recovered = results.events(run.folder, "recovered")
    sizes = [event["world_size"] for event in results.events(run.folder, "resize")]
    tokens = [sum(line["tokens"] for line in results.steps(folder)) for folder in (run.folder, plain.folder)]
    figures.note(f"  {what}: worlds of {' '.join(str(size) for size in [MACHINES, *sizes])} machines")
    figures.add(f"{what}: a normal step", run.step_s() * 1e3, "ms")
    for kind, times in changes.took.items():
        figures.add(f"{what}: machines {kind}", len(times), "times")
        figures.add(f"{what}: until the next step, beyond a normal one, p50", median(times), "s")
        figures.add(f"{what}: until the next step, beyond a normal one, max", max(times), "s")
    figures.add(f"{what}: tokens trained on, undisturbed {tokens[1]}", tokens[0], "")
    figures.bar(f"{what}: weights, and every step's loss, norm and tokens, equal to the undisturbed run's",
                not run.differences(plain))
    figures.bar(f"{what}: no step lost, none computed twice but the one under way when a machine was killed",
                all(event["lost_steps"] == 0 and results.recomputed_steps(event) <= 1 for event in recovered)
                and len(recovered) <= len(changes.took["lost"]) and not run.repeated)
    figures.bar(f"{what}: a machine that leaves hands over within {LEAVE_BAR_S} s", max(changes.took["left"]) <= LEAVE_BAR_S)
    figures.bar(f"{what}: lost, p50 at most {SHRINK_P50_BAR_S} s", median(changes.took["lost"]) <= SHRINK_P50_BAR_S)
    figures.bar(f"{what}: lost, max at most {SHRINK_MAX_BAR_S} s", max(changes.took["lost"]) <= SHRINK_MAX_BAR_S)
