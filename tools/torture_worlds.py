"""tools/torture worlds: a training whose machines come and go. Of four machines two leave at once, are started again one
by one, and one is killed whole and started again, round after round. No step is lost, none of a world that changes by
intent is computed twice, and losses and weights are those of a run in which nothing happened."""

import random
import re
import signal
import time

import torture_soak
from harness import processes, results
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
    """A run, and what its changes cost: seconds from the last step of a world, or the loss of a machine, to the first
    step of the next world, beyond a normal step of that one."""

    def __init__(self, machines, chance, step_s):
        self._machines = machines
        self._run = machines.run
        self._chance = chance
        self._step_s = step_s
        self._resizes = 0
        self._ends = []  # the last step of each world
        self._changes = {"joined": [], "left": [], "lost": []}  # (since when, the first step of the world)

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
        self._ends += last
        self._run.wait_for_step(last[-1] + 1, CHANGE_TIMEOUT_S)
        return last

    def _paused(self, kind, ends):
        self._changes[kind] += [(self._run.step_at[last], last + 1) for last in ends]

    def took(self, kind):
        return [self._run.step_at[first] - since - self._normal_behind(first) for since, first in self._changes[kind]]

    def handed_over(self, kind):
        """Seconds from the last step of a world until the next one has its state, and the first step of it begins."""
        took = results.step_seconds(self._run.folder)
        return [self._run.step_at[first] - took[first] - since for since, first in self._changes[kind]]

    def _normal_behind(self, first):
        """A normal step of the world that begins with this one."""
        end = min((last for last in self._ends if last > first), default=max(self._run.step_at))
        at = self._run.step_at
        intervals = [at[step] - at[step - 1] for step in range(first + 1, min(end, first + 5) + 1)]
        return median(intervals) if intervals else self._step_s

    def join(self, number, size):
        self._some_steps()
        self._machines.start(number)
        self._paused("joined", self._becomes(size, f"machine {number} joins"))

    def leave(self, numbers, size):
        self._some_steps()
        for number in numbers:
            self._machines.leave(number)
        self._paused("left", self._becomes(size, f"machines {numbers} leave"))
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
        self._changes["lost"].append((at, first))


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
        # One that was late joins.
        machines.wait_for(lambda: _world_size(machines.run) == MACHINES, "the world of all machines", CHANGE_TIMEOUT_S)
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


def _world_size(run):
    told = [event for event in results.events(run.folder) if event["event"] in ("start", "resize")]
    return told[-1]["world_size"] if told else 0


def _samples(run):
    said = (re.search(r"rows became (\d+) samples", line) for line, _ in run.said_at)
    return int(next(found for found in said if found).group(1))


def _judge(figures, run, plain, what, changes):
    for difference in run.differences(plain):
        figures.note(f"  {what}: {difference}")
    recovered = results.events(run.folder, "recovered")
    sizes = [event["world_size"] for event in results.events(run.folder, "resize")]
    steps, undisturbed = results.steps(run.folder), results.steps(plain.folder)
    tokens = [sum(line["tokens"] for line in lines) for lines in (steps, undisturbed)]
    figures.note(f"  {what}: worlds of {' '.join(str(size) for size in [MACHINES, *sizes])} machines")
    figures.add(f"{what}: a normal step", run.step_s() * 1e3, "ms")
    took = {kind: changes.took(kind) for kind in ("joined", "left", "lost")}
    for kind, times in took.items():
        figures.add(f"{what}: machines {kind}", len(times), "times")
        figures.add(f"{what}: {kind}: until the next step, beyond a normal one, p50", median(times), "s")
        figures.add(f"{what}: {kind}: until the next step, beyond a normal one, max", max(times), "s")
    handed_over = changes.handed_over("left")
    figures.add(f"{what}: left: until the state is handed over, max", max(handed_over), "s")
    figures.add(f"{what}: tokens trained on, undisturbed {tokens[1]}", tokens[0], "")
    figures.bar(f"{what}: weights, and every step's loss, norm and tokens, equal to the undisturbed run's",
                not run.differences(plain))
    out_of_order = results.samples_once(steps, _samples(run))
    if out_of_order:
        figures.note(f"  {what}: {out_of_order}")
    figures.add(f"{what}: epochs", steps[-1]["epoch"], "")
    figures.bar(f"{what}: every sample exactly once in each epoch, as steps.jsonl tells", not out_of_order)
    figures.bar(f"{what}: no step lost, none computed twice but the one under way when a machine was killed",
                all(event["lost_steps"] == 0 and results.recomputed_steps(event) <= 1 for event in recovered)
                and len(recovered) <= len(took["lost"]) and not run.repeated)
    figures.bar(f"{what}: a machine that leaves hands over within {LEAVE_BAR_S} s", max(handed_over) <= LEAVE_BAR_S)
    figures.bar(f"{what}: lost, p50 at most {SHRINK_P50_BAR_S} s", median(took["lost"]) <= SHRINK_P50_BAR_S)
    figures.bar(f"{what}: lost, max at most {SHRINK_MAX_BAR_S} s", max(took["lost"]) <= SHRINK_MAX_BAR_S)


# --- soak: all of it by the clock

EVERY_S = {"kill": 10, "lose": 60, "leave": 90}
# A machine that is down comes back after so long.
DOWN_S = 5
GOODPUT_BAR = 0.80
CALIBRATION_STEPS = 400


class Clock:
    """What is due: a rank's process is killed every 10 s, a machine every 60 s, one leaves every 90 s; those that are
    down come back."""

    def __init__(self, machines, chance):
        self._machines = machines
        self._chance = chance
        began = time.monotonic()
        self._due = {what: began + every for what, every in EVERY_S.items()}
        self._back = []  # (when, machine)
        self.done = {what: 0 for what in self._due}

    def next_due(self):
        return min([*self._due.values(), *(when for when, _ in self._back)])

    def all_up(self):
        return not self._back and len(processes.trainers(self._machines.mark)) == MACHINES

    def _world(self):
        resizes = self._machines.run.events("resize")
        return resizes[-1][0]["world_size"] if resizes else MACHINES

    def strike(self):
        now = time.monotonic()
        for when, number in [entry for entry in self._back if entry[0] <= now]:
            self._machines.start(number)
            self._back.remove((when, number))
        for what, when in self._due.items():
            if when > now:
                continue
            self._due[what] = when + EVERY_S[what]
            up = [number for number in range(1, MACHINES) if self._machines.is_up(number)]
            if what == "kill":
                pids = sorted(processes.trainers(self._machines.mark))
                processes.send(self._chance.choice(pids), signal.SIGKILL)
            elif len(up) < 2 or self._world() < LEAST + 1:
                # One is down, or not in the world yet: its copies may be the only ones, and a world that cannot get
                # smaller stops.
                self._due[what] = now + DOWN_S
                continue
            else:
                number = self._chance.choice(up)
                if what == "lose":
                    self._machines.kill(number)
                else:
                    self._machines.leave(number)
                    self._machines.left(number, CHANGE_TIMEOUT_S)
                self._back.append((time.monotonic() + DOWN_S, number))
            self.done[what] += 1


def soak(figures, place, bin_folder, options):
    strategy = options.strategy
    chance = random.Random(options.seed)

    def settings(steps):
        return {**_settings(place, options, strategy, steps), "save_strategy": "no", "logging_steps": 500}

    def train(steps, of, then=None):
        with TrainingMachines(place, bin_folder, MACHINES, LEAST, of, settings(steps)) as machines:
            if then:
                then(machines)
            machines.run.finish(options.minutes * 120 + options.timeout)
            return machines.run

    step_s = train(CALIBRATION_STEPS, "calibration").mean_step_s()
    steps = int(options.minutes * 60 * torture_soak.FILL / step_s)
    last_strike_step = steps - int(2 * DOWN_S / step_s)
    memory = torture_soak.Memory(place.mark)
    struck = {}

    def strike(machines):
        run = machines.run
        run.wait_for_step(5, CHANGE_TIMEOUT_S)
        clock = Clock(machines, chance)
        while run.last_step() < last_strike_step:
            due = clock.next_due()
            run.wait(lambda: max(run.step_at, default=0) >= last_strike_step or time.monotonic() >= due,
                     EVERY_S["kill"] + CHANGE_TIMEOUT_S, "the next moment")
            if run.ended_at is not None:
                raise Fault(f"the run ended before its time; {run.last_words()}")
            if clock.all_up():
                memory.sample()
            clock.strike()
        struck.update(clock.done)

    run = train(steps, "soak", strike)
    taken_s = run.step_at[steps] - run.step_at[1]
    # A machine that got slower meanwhile would look like a better run, and one that got faster like
    # a worse one: of the undisturbed paces before and after, the faster counts.
    after_s = train(CALIBRATION_STEPS, "calibration-after").mean_step_s()
    goodput = (steps - 1) * min(step_s, after_s) / taken_s
    what = f"soak of machines, {strategy}"
    figures.add(f"{what}: an undisturbed step, before", step_s * 1e3, "ms")
    figures.add(f"{what}: an undisturbed step, after", after_s * 1e3, "ms")
    figures.add(f"{what}: from the first step to the last", taken_s, "s")
    for kind, name in (("kill", "processes of ranks killed"), ("lose", "machines killed"), ("leave", "machines left")):
        figures.add(f"{what}: {name}", struck[kind], "")
    figures.add(f"{what}: goodput", goodput * 100, "%")
    figures.bar(f"{what}: goodput at least {GOODPUT_BAR * 100:.0f} %", goodput >= GOODPUT_BAR)
    for name, values in (("processes' shares (PSS)", memory.shares), ("memory kept", memory.kept)):
        drift = memory.drift_percent(values)
        figures.add(f"{what}: {name}, median", median(values), "MiB")
        figures.add(f"{what}: {name}, drift", drift, "%")
        figures.bar(f"{what}: {name}: drift below {torture_soak.DRIFT_BAR_PERCENT:.0f} %",
                    drift < torture_soak.DRIFT_BAR_PERCENT)
    plain = Run(place, bin_folder, "undisturbed", {**settings(steps), "troupe.workers": MACHINES}).start()
    plain.finish(options.minutes * 120 + options.timeout)
    for difference in run.differences(plain):
        figures.note(f"  {what}: {difference}")
    lost = sum(event["lost_steps"] for event in results.events(run.folder, "recovered"))
    figures.add(f"{what}: steps lost", lost, "")
    figures.bar(f"{what}: weights and every step's loss and norm equal to the undisturbed run's", not run.differences(plain))
    figures.bar(f"{what}: no step lost", lost == 0)
