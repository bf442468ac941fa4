"""tools/torture head: the head killed, stopped for seconds, and its journal's disk slow, at random
moments, under calls, spawns and a training. None of them may notice more than that what needs the
head waits for it: no actor is lost or started again, every count is exact, the training's bits are
those of an undisturbed run."""

import json
import os
import random
import signal
import time

from harness import processes, results
from harness.cluster import Cluster
from harness.figures import Fault
from harness.run import Run, undisturbed

COUNTERS = 6
WORLD = 2
# How long a stopped head stands still, and how slow its disk gets: each shorter and longer than a lease (2.5 s).
STOPPED_S = (1.0, 10.0)
SYNC_MS = (100, 4000)
SLOW_FOR_S = (1.0, 6.0)
PAUSE_S = (0.1, 1.0)
# What the load may take to its end: longer than the longest of its calls.
END_S = 120


def _slow(place, wait_ms):
    """What the head's disk adds to each sync from now on."""
    path = place.file("slow-disk")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(f"{wait_ms}\n")
    os.replace(path + ".new", path)


def _kill(cluster, place, chance):
    pid = cluster.process("head")
    processes.send(pid, signal.SIGKILL)
    cluster.wait_for(lambda: cluster.process("head") != pid, "another head")


def _stop(cluster, place, chance):
    pid = cluster.process("head")
    processes.send(pid, signal.SIGSTOP)
    try:
        time.sleep(chance.uniform(*STOPPED_S))
    finally:
        processes.send(pid, signal.SIGCONT)


def _slow_disk(cluster, place, chance):
    _slow(place, chance.randint(*SYNC_MS))
    try:
        time.sleep(chance.uniform(*SLOW_FOR_S))
    finally:
        _slow(place, 0)


STRIKES = {"killed": _kill, "stopped": _stop, "slow": _slow_disk}


def head(figures, place, bin_folder, options):
    rounds = options.kills or 30
    chance = random.Random(options.seed)
    strikes = [kind for kind in options.strikes.split(",") for _ in range(rounds)]
    chance.shuffle(strikes)
    strikes = strikes[:rounds]
    # The run outlasts the strikes: they take 4 s each on average, with their pauses.
    settings = place.settings("small", max(100, int(rounds * 4.5 * options.steps_a_second)), troupe__workers=WORLD,
                              troupe__strategy="ddp")
    slow = {"LD_PRELOAD": os.path.join(bin_folder, "libtorture_slow_disk.so"),
            "TROUPE_SLOW_DISK": place.file("slow-disk")}
    wrong = []
    with Cluster(place, bin_folder, WORLD + 2, head_environment=slow) as cluster:
        address = ["--address", cluster.address]
        plain = undisturbed(place, bin_folder, settings, options.timeout, arguments=address)
        driver = cluster.start_driver(f"{bin_folder}/torture_head_driver", COUNTERS)
        run = Run(place, bin_folder, "struck", settings, address).start()
        run.wait_for_step(5, 60)
        trainers = processes.trainers(place.mark)
        daemon = cluster.node_pids()
        struck = {kind: 0 for kind in STRIKES}
        for kind in strikes:
            time.sleep(chance.uniform(*PAUSE_S))
            STRIKES[kind](cluster, place, chance)
            struck[kind] += 1
            cluster.wait_for(lambda: cluster.node_pids() == daemon, f"the node again (head {kind})")
            if driver.poll() is not None:
                raise Fault(f"the load ended with code {driver.returncode} (head {kind})")
        ended_before = run.ended_at is not None
        run.finish(options.timeout)
        lost = [event for event in cluster.events() if event["event"] == "node_died"]
        driver.stdin.close()
        told = json.loads(_last_line(driver))
        if processes.trainers(place.mark):
            wrong.append("trainers are left")
        _report(figures, told, struck, wrong, lost)
    what = ", ".join(f"{kind} {count}" for kind, count in struck.items() if count)
    for difference in run.differences(plain):
        figures.note(f"  {difference}")
    figures.note(f"  the training {'ended before the last strike' if ended_before else 'was struck to the end'}; "
                 f"its trainers were {sorted(trainers)}")
    figures.bar(f"head {what}: the training's weights, losses and norms equal to the undisturbed run's",
                not run.differences(plain))
    figures.bar(f"head {what}: no rank died", not results.events(run.folder, "death") and not run.repeated)


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


def _report(figures, told, struck, wrong, lost):
    counters, made = told["counters"], told["made"]
    what = ", ".join(f"{kind} {count}" for kind, count in struck.items() if count)
    figures.add(f"head {what}: calls of kept handles", sum(row["calls"] for row in counters), "calls")
    figures.add("  the longest of them", max(row["longest_ms"] for row in counters), "ms")
    figures.add("  actors made, called and ended", made["acknowledged"], "actors")
    figures.add("  the longest of those", made["longest_ms"], "ms")
    for row in [*counters, made]:
        for text, count in row["failures"].items():
            figures.note(f"  {count} x {text}")
    for text in wrong:
        figures.note(f"  {text}")
    for event in lost:
        figures.note(f"  {event['text']}")
    figures.bar("no call failed, no handle is dead", not any(row["failures"] for row in counters))
    figures.bar("every actor made was placed once, answered and ended", not made["failures"])
    figures.bar("nothing twice: every count is what was acknowledged",
                all(row["count"] == row["acknowledged"] for row in counters))
    figures.bar("no actor lost: the processes are those of the beginning", all(row["same_process"] for row in counters))
    figures.bar("no node was declared lost", not lost and not wrong)
