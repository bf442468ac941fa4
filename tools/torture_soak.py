"""tools/torture soak: a run that is struck all the time, for minutes."""

import signal
import threading
import time

from harness import processes
from harness.figures import Fault, median
from harness.killer import RECOVERY_TIMEOUT_S, Killer, slow_down
from harness.run import Run, undisturbed
from torture_kills import judge

KILL_EVERY_S = 10
HINDER_EVERY_S = 60  # stopped and slowed down by turns
SLOW_S = 5
CALIBRATION_STEPS = 200
# Of what the run could do in the time, it is given so much: the rest is for recovering.
FILL = 0.92
# Strikes end so long before the run's end, in seconds of steps.
QUIET_END_S = 5
GOODPUT_BAR, DRIFT_BAR_PERCENT = 0.85, 5.0
# Equal by `tools/bench bits`, and the quickest.
REFERENCE_STRATEGY = "ddp"
# Of the samples: memory is compared between the first fifth after the start and the last.
WINDOW = 5


class Memory:
    """What a run's processes use, in MiB: their shares of what is resident, and what memory they
    keep for others, mapped or not."""

    def __init__(self, mark):
        self._mark = mark
        self.shares = []
        self.kept = []

    def sample(self):
        pids = processes.marked(self._mark)
        self.shares.append(sum(processes.pss_kib(pid) for pid in pids) / 1024)
        self.kept.append(processes.memfd_bytes(pids) / (1 << 20))

    @staticmethod
    def drift_percent(values):
        count = max(1, len(values) // WINDOW)
        first, last = median(values[1 : 1 + count]), median(values[-count:])
        return (last / first - 1) * 100 if first else 0.0


def _strike_until_the_end(run, killer, memory, last_strike_step, step_s):
    """A kill every 10 s at a random moment; every 60 s, between two kills, a stop or a slow-down."""
    began = time.monotonic()
    turn = hindered = 0
    while True:
        turn += 1
        moment = began + turn * KILL_EVERY_S
        run.wait(lambda: max(run.step_at, default=0) >= last_strike_step or time.monotonic() >= moment,
                 KILL_EVERY_S + RECOVERY_TIMEOUT_S, "the next moment")
        if run.ended_at is not None:
            raise Fault(f"the run ended before its time; {run.last_words()}")
        if run.last_step() >= last_strike_step:
            return turn - 1, hindered
        killer.all_there()
        memory.sample()  # with all processes there: right after a strike one is missing
        killer.random_moment(step_s)
        if turn * KILL_EVERY_S % HINDER_EVERY_S == 0:
            hindered += 1
            pid = killer.random.choice(killer.ranks())
            if hindered % 2:
                processes.send(pid, signal.SIGSTOP)  # whoever watches must find and end it
                killer.killed_by_others += 1
            else:
                threading.Thread(target=slow_down, args=(pid, SLOW_S), daemon=True).start()
        else:
            killer.kill_some()


def soak(figures, place, bin_folder, options):
    # Every log line stays in memory (trainer_state.json): as many as runs of this length have.
    common = dict(troupe__workers=options.world, troupe__strategy=options.strategy, logging_steps=500)
    calibration = undisturbed(place, bin_folder, place.settings(options.model, CALIBRATION_STEPS, **common),
                              options.timeout, "calibration")
    step_s = calibration.step_s()
    steps = int(options.minutes * 60 * FILL / step_s)
    figures.add("soak: a normal step", step_s * 1e3, "ms")
    figures.add("soak: steps", steps, "")
    limit_s = options.minutes * 60 * 2 + 120

    settings = place.settings(options.model, steps, **common)
    spares = {"troupe.spares": options.spares} if options.spares else {}
    run = Run(place, bin_folder, "soak", {**settings, **spares}).start()
    killer = Killer(run, options.seed, options.world, options.spares)
    memory = Memory(place.mark)
    run.wait_for_step(5, RECOVERY_TIMEOUT_S)
    kills, hindered = _strike_until_the_end(run, killer, memory, steps - int(QUIET_END_S / step_s), step_s)
    run.finish(limit_s)

    taken_s = run.step_at[steps] - run.step_at[1]
    # A machine that got slower meanwhile is no fault of the run; a run that did not recover its
    # pace is one of its own: the shorter of both steps is the normal one.
    goodput = (steps - 1) * min(step_s, run.step_s()) / taken_s
    figures.add("soak: the median step", run.step_s() * 1e3, "ms")
    figures.add("soak: from the first step to the last", taken_s, "s")
    figures.add("soak: kills", kills - hindered, "")
    figures.add("soak: stops and slow-downs", hindered, "")
    figures.add("soak: goodput", goodput * 100, "%")
    figures.bar(f"soak: goodput at least {GOODPUT_BAR * 100:.0f} %", goodput >= GOODPUT_BAR)
    for what, values in (("processes' shares (PSS)", memory.shares), ("memory kept", memory.kept)):
        drift = memory.drift_percent(values)
        figures.add(f"soak: {what}, median", median(values), "MiB")
        figures.add(f"soak: {what}, drift", drift, "%")
        figures.bar(f"soak: {what}: drift below {DRIFT_BAR_PERCENT:.0f} %", drift < DRIFT_BAR_PERCENT)

    quick = place.settings(options.model, steps, **{**common, "troupe__strategy": REFERENCE_STRATEGY})
    reference = undisturbed(place, bin_folder, quick, limit_s, "reference")
    judge(figures, run, reference, killer, "soak")
