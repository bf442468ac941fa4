"""tools/torture head: the head killed, stopped for seconds, its journal's disk slow, and these on top
of each other, at random moments, under calls, spawns, deaths of actors and a training. None of them
may notice more than that what needs the head waits for it: no actor is lost or started twice, every
count is exact, the training's bits are those of an undisturbed run."""

import json
import os
import random
import signal
import time

from harness import processes, results
from harness.cluster import Cluster
from harness.figures import Fault
from harness.run import Run, undisturbed

STRIKES_TOLD = 100
COUNTERS = 6
WORLD = 2
# How long a stopped head stands still, and how slow its disk gets: each shorter and longer than a lease (2.5 s).
STOPPED_S = (1.0, 10.0)
SYNC_MS = (100, 4000)
SLOW_FOR_S = (1.0, 6.0)
PAUSE_S = (0.1, 1.0)
# Of several at once: how many, and how long the head has between them, often too short for anybody to come back.
MIXED = (2, 4)
MIXED_STOPPED_S = (0.3, 4.0)
MIXED_PAUSE_S = (0.0, 0.4)
# Steps after which the training's pace is known; the first ones are slower.
PACE_STEPS = 100
PACE_FROM = 20
# What of a training's time is left to strikes that take longer than they do on average.
STRIKE_S = 5.5
# What the load may take to its end: longer than the longest of its calls.
END_S = 240
# What is still to be told, or to end, is so within these.
SETTLE_S = 20


def _slow(place, wait_ms):
    """What the head's disk adds to each sync from now on."""
    path = place.file("slow-disk")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(f"{wait_ms}\n")
    os.replace(path + ".new", path)


def _waits(place):
    """How many syncs have waited so far."""
    try:
        return os.path.getsize(place.file("slow-disk.waits"))
    except FileNotFoundError:
        return 0


def _kill(cluster, place, chance):
    pid = cluster.process("head")
    processes.send(pid, signal.SIGKILL)
    cluster.wait_for(lambda: cluster.process("head") != pid, "another head")


def _stop(cluster, place, chance, times_s=STOPPED_S):
    pid = cluster.process("head")
    processes.send(pid, signal.SIGSTOP)
    try:
        time.sleep(chance.uniform(*times_s))
        if processes.state(pid) != "T":
            raise Fault(f"the head (process {pid}) did not stand still")
    finally:
        processes.send(pid, signal.SIGCONT)


def _slow_disk(cluster, place, chance):
    before = _waits(place)
    _slow(place, chance.randint(*SYNC_MS))
    try:
        time.sleep(chance.uniform(*SLOW_FOR_S))
    finally:
        _slow(place, 0)
    if _waits(place) == before:
        raise Fault("no sync of the head met the slow disk")


def _mix(cluster, place, chance):
    """Killed and stopped several times in a row, with nobody waiting for who comes back, on a slow disk or not."""
    if chance.random() < 0.5:
        _slow(place, chance.randint(*SYNC_MS))
    try:
        for _ in range(chance.randint(*MIXED)):
            if chance.random() < 0.4:
                _kill(cluster, place, chance)
            else:
                _stop(cluster, place, chance, MIXED_STOPPED_S)
            time.sleep(chance.uniform(*MIXED_PAUSE_S))
    finally:
        _slow(place, 0)


STRIKES = {"killed": _kill, "stopped": _stop, "slow": _slow_disk, "mixed": _mix}


class Witness:
    """What the cluster has told while it was struck: it forgets old events."""

    GRAVE = ("node_died", "owner_gone", "journal_failed", "journal_damaged", "journal_full", "state_lost")

    def __init__(self, cluster):
        self._cluster = cluster
        self._after = 0
        self.grave = []

    def look(self):
        events = self._cluster.wait_for(lambda: self._cluster.events(self._after) or True, "the events")
        if events is not True:
            self._after = events[-1]["sequence"]
            self.grave += [event["text"] for event in events if event["event"] in self.GRAVE]


def _pace(place, bin_folder, settings, timeout_s, address):
    """Steps a second of a training on this machine."""
    run = Run(place, bin_folder, "pace", settings, address).start()
    run.finish(timeout_s)
    return (PACE_STEPS - PACE_FROM) / (run.step_at[PACE_STEPS] - run.step_at[PACE_FROM])


def head(figures, place, bin_folder, options):
    rounds = options.kills or STRIKES_TOLD
    chance = random.Random(options.seed)
    strikes = [kind for kind in options.strikes.split(",") for _ in range(rounds)]
    chance.shuffle(strikes)
    strikes = strikes[:rounds]
    # The run outlasts the strikes.
    lasts_s = rounds * STRIKE_S
    timeout_s = max(options.timeout, 3 * lasts_s)

    def settings_of(steps):
        return place.settings("small", steps, troupe__workers=WORLD, troupe__strategy="ddp", save_strategy="steps",
                              save_steps=100, save_total_limit=2)

    slow = {"LD_PRELOAD": os.path.join(bin_folder, "libtorture_slow_disk.so"),
            "TROUPE_SLOW_DISK": place.file("slow-disk")}
    if not os.path.exists(slow["LD_PRELOAD"]):
        raise Fault(f"{slow['LD_PRELOAD']} is not there")
    told_in = place.file("told")
    os.makedirs(told_in)
    wrong = []
    with Cluster(place, bin_folder, WORLD + 2, head_environment=slow) as cluster:
        address = ["--address", cluster.address]
        pace = options.steps_a_second or _pace(place, bin_folder, settings_of(PACE_STEPS), timeout_s, address)
        settings = settings_of(max(100, int(lasts_s * pace)))
        plain = undisturbed(place, bin_folder, settings, timeout_s, arguments=address)
        driver = cluster.start_driver(f"{bin_folder}/torture_head_driver", COUNTERS,
                                      {"TROUPE_TORTURE_FOLDER": told_in})
        run = Run(place, bin_folder, "struck", settings, address).start()
        run.wait_for_step(5, 60)
        trainers = processes.trainers(place.mark)
        daemon = cluster.node_pids()
        witness = Witness(cluster)
        struck = {kind: 0 for kind in STRIKES}
        begin = time.monotonic()
        for number, kind in enumerate(strikes, 1):
            time.sleep(chance.uniform(*PAUSE_S))
            during = run.ended_at is None
            STRIKES[kind](cluster, place, chance)
            struck[kind] += during
            what = f"strike {number}, head {kind}"
            cluster.wait_for(lambda: cluster.node_pids() == daemon, f"the node again ({what})")
            witness.look()
            if driver.poll() is not None:
                raise Fault(f"the load ended with code {driver.returncode} ({what})")
            if run.ended_at is None and processes.trainers(place.mark) != trainers and run.ended_at is None:
                wrong.append(f"{what}: the trainers were {trainers}, are {processes.trainers(place.mark)}")
        took_s = time.monotonic() - begin
        run.finish(timeout_s)
        driver.stdin.close()
        told = json.loads(_last_line(driver))
        witness.look()
        wrong += _left(cluster, place)
    what = ", ".join(f"{kind} {count}" for kind, count in struck.items() if count)
    figures.add(f"head {what}: all of it", took_s, "s")
    _report(figures, told, wrong, witness.grave, told_in)
    for difference in run.differences(plain):
        figures.note(f"  {difference}")
    if sum(struck.values()) < rounds:
        figures.note("  the training ended before the last strike: --steps-a-second makes it longer")
    figures.bar(f"struck {rounds} times while it trained", sum(struck.values()) == rounds)
    figures.bar("the training's weights, losses and norms are the undisturbed run's", not run.differences(plain))
    figures.bar("no rank died, no step was computed twice",
                not results.events(run.folder, "death") and not run.repeated)


def _left(cluster, place):
    """What is there still when all of the load has ended."""
    def processes_left():
        return {kind: found for kind in ("TrainerActor", "TrainController", "Counter", "Passing")
                if (found := sorted(processes.actors(place.mark, kind)))}

    try:
        cluster.wait_for(lambda: not processes_left() and all(actor["state"] == "dead" for actor in cluster.actors()),
                         "the end of all actors", SETTLE_S)
    except Fault:
        return [f"left: processes {processes_left()}, actors {cluster.actors()}"[:1000]]
    return []


def _last_line(driver):
    """What the load says at its end."""
    try:
        driver.wait(END_S)
    except Exception:
        driver.kill()
        raise Fault(f"the load did not end within {END_S} s") from None
    lines = driver.stdout.read().strip().splitlines()
    if not lines:
        raise Fault(f"the load ended with code {driver.returncode} and said nothing")
    return lines[-1]


def _lines(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def _report(figures, told, wrong, grave, told_in):
    counters, made, found, killed = told["counters"], told["made"], told["found"], told["killed"]
    figures.add("  calls of handles held from the start", sum(row["calls"] for row in counters), "calls")
    for kind in ("kept", "fenced", "mortal", "supervised"):
        figures.add(f"  the longest of those to {kind} actors",
                    max(row["longest_ms"] for row in counters if row["kind"] == kind), "ms")
    figures.add("  actors made, called and ended", made["acknowledged"], "actors")
    figures.add("  the longest of those", made["longest_ms"], "ms")
    figures.add("  drivers that came, found an actor and called it", found["acknowledged"], "drivers")
    figures.add("  the longest of those", found["longest_ms"], "ms")
    figures.add("  actors killed beside the head", killed["calls"], "actors")
    for row in [*counters, made, found, killed]:
        for text, count in row["failures"].items():
            figures.note(f"  {count} x {text}")
    for text in [*wrong, *grave]:
        figures.note(f"  {text}")
    starts = _lines(told_in, "made")
    figures.bar("no call failed, no handle is dead", not any(row["failures"] for row in [*counters, killed]))
    figures.bar("every actor made answered and ended", not made["failures"])
    figures.bar("every driver that came found its actor", not found["failures"])
    figures.bar("each of them was started once", sorted(map(int, starts)) == list(range(made["calls"])))
    figures.bar("no counter ran twice at a time", not _lines(told_in, "twice"))
    figures.bar("nothing twice: every count is what was acknowledged",
                all(row["count"] == row["acknowledged"] for row in counters))
    figures.bar("no actor lost: processes that nobody killed are those of the beginning",
                all(row["same_process"] for row in counters if row["kind"] == "kept"))
    figures.bar("no node or driver was declared lost, nothing is left", not grave and not wrong)
