"""tools/torture lives: one driver makes, calls and ends actors, by default 10,000 with processes of their own and
1,000,000 light ones. What it, the head and the node hold in memory, and what an actor takes in time, must not grow
after the first tenth of either. The head also remembers 1,000 dead actors and 10,000 events, by design: its memory is
judged from when it has seen as many actors as fill that."""

import select
import subprocess

from harness import processes
from harness.cluster import Cluster
from harness.figures import Fault, median

ACTORS, LIGHT, CPUS = 10_000, 1_000_000, 4
TENTHS = 10
GROWTH_MAX = 1.05
HEAD_FULL_ACTORS = 4000
CHANNELS_MAX = 4  # of actors that have just ended: their deaths are on their way


def _start(cluster, place, bin_folder, actors, light):
    host, port = cluster.address.rsplit(":", 1)
    with open(place.file("driver.log"), "wb") as log:
        return subprocess.Popen([f"{bin_folder}/torture_lives_driver", host, port, cluster.token_file, str(actors),
                                 str(light)], env=place.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=log, text=True, start_new_session=True)


def _line(driver, place, timeout_s):
    if select.select([driver.stdout], [], [], timeout_s)[0]:
        if line := driver.stdout.readline().split():
            return line
    with open(place.file("driver.log"), encoding="utf-8", errors="replace") as log:
        raise Fault(f"the driver said nothing for {timeout_s} s or ended: {log.read()[-500:]}")


def _head_full(what, actors):
    """The first tenth, from 0, at whose end the head has seen enough; TENTHS where none is."""
    if what == "light":
        return 0 if actors >= HEAD_FULL_ACTORS else TENTHS
    return next((k for k in range(TENTHS) if (k + 1) * actors // TENTHS >= HEAD_FULL_ACTORS), TENTHS)


def _judge(figures, what, seconds, memory, head_full):
    for name, kib in memory.items():
        figures.note(f"  {what}, {name}: {' '.join(str(k) for k in kib)} KiB after each tenth")
        first = head_full if name == "head" else 0
        if first >= TENTHS - 1:
            figures.note(f"  {what}, {name}: not judged, its history is not full: more --actors")
            continue
        figures.bar(f"{what}: memory of the {name} flat within 5 % after tenth {first + 1}",
                    max(kib[first + 1:]) <= GROWTH_MAX * kib[first])
    # The machine is shared: the later half against the earlier one, each without its outliers.
    early, late = median(seconds[1:5]), median(seconds[6:])
    figures.bar(f"{what}: time flat within 5 % ({early:.2f} s, later {late:.2f} s a tenth)",
                late <= GROWTH_MAX * early)


def lives(figures, place, bin_folder, options):
    counts = {"actors": options.actors, "light": options.light}
    with Cluster(place, bin_folder, CPUS, watch=False) as cluster:
        pids = {"head": cluster.process("head"), "node": cluster.node_pids()[0]}
        driver = _start(cluster, place, bin_folder, *counts.values())
        pids["driver"] = driver.pid
        for what, count in counts.items():
            if not count:
                continue
            seconds, memory, channels = [], {name: [] for name in pids}, []
            for tenth in range(TENTHS):
                said, taken, kept = _line(driver, place, options.timeout)
                if said != what:
                    raise Fault(f"the driver is at {said}, not at {what}")
                seconds.append(float(taken))
                channels.append(int(kept))
                for name, pid in pids.items():
                    memory[name].append(processes.held_kib(pid))
                figures.add(f"{what}: time each, tenth {tenth + 1}", float(taken) / (count // TENTHS) * 1e6, "us")
                driver.stdin.write("\n")
                driver.stdin.flush()
            _judge(figures, what, seconds, memory, _head_full(what, options.actors))
            figures.bar(f"{what}: the driver keeps no channels of dead ones", max(channels) <= CHANNELS_MAX)
        if driver.wait(options.timeout) != 0:
            raise Fault("the driver failed at its end")
