#!/usr/bin/env python3
"""What a cluster costs that has nothing to do: head, node and 100 actors, each in its own process.

    tools/bench idle [--actors 100] [--seconds 20] [--repeats 5] [--json]

Processor time as the scheduler counts it, over `seconds`, of every process of the cluster; memory
as the processes' shares of what is resident (PSS). The driver, which holds the actors' handles, is
told apart. Bars: at most 1 % of a core for head, node and actors; at most 60 MB for head and node,
the node's keeper included.
"""

import argparse
import sys
import time

from harness import processes, script
from harness.cluster import Cluster
from harness.figures import Fault, median
from harness.workplace import Workplace, build

CORE_BAR_PERCENT = 1
MEMORY_BAR_MB = 60
START_S = 120
SETTLE_S = 3


def roles(cluster, place, driver):
    """Name -> pids of the cluster's processes."""
    found = {"head": [cluster.process("head")], "node": [cluster.process("worker")], "keeper": [], "actors": []}
    for pid in processes.marked(place.mark):
        words = processes.arguments(pid)
        if "keeper" in words[1:2]:
            found["keeper"].append(pid)
        elif "--actor" in words:
            found["actors"].append(pid)
    found["driver"] = [driver.pid]
    return found


def over(seconds, pids, count):
    """How much `count(pid)` of all the pids grows a second."""
    before = {pid: count(pid) for pid in pids}
    begin = time.monotonic()
    time.sleep(seconds)
    taken = time.monotonic() - begin
    return {pid: (count(pid) - before[pid]) / taken for pid in pids}


def measure(figures, options, bin_folder):
    with Workplace() as place, Cluster(place, bin_folder, options.actors, watch=False) as cluster:
        driver = cluster.start_driver(f"{bin_folder}/bench_idle_driver", options.actors)
        found = roles(cluster, place, driver)
        if len(found["actors"]) != options.actors or len(found["keeper"]) != 1:
            raise Fault(f"there are {len(found['actors'])} actor processes and {len(found['keeper'])} keepers")
        time.sleep(SETTLE_S)
        everybody = [pid for pids in found.values() for pid in pids]
        used = [over(options.seconds, everybody, processes.run_ns) for _ in range(options.repeats)]
        woken = over(min(options.seconds, 10), everybody, processes.sleeps)
        percent = {role: median([sum(run[pid] for pid in pids) / 1e7 for run in used]) for role, pids in found.items()}
        for role, pids in found.items():
            figures.add(f"idle: {role}, of a core", percent[role], "%")
            figures.add(f"idle: {role}, wake-ups", sum(woken[pid] for pid in pids), "1/s")
        memory = {role: sum(processes.pss_kib(pid) for pid in pids) * 1024 / 1e6 for role, pids in found.items()}
        for role in ("head", "node", "keeper", "actors"):
            figures.add(f"idle: {role}, memory (PSS)", memory[role], "MB")
        gone = [pid for pid in everybody if processes.state(pid) in ("", "Z")]
        if gone:
            raise Fault(f"{len(gone)} of the cluster's processes ended meanwhile: it was not idle, or the machine too busy")
        whole = percent["head"] + percent["node"] + percent["keeper"] + percent["actors"]
        daemons = memory["head"] + memory["node"] + memory["keeper"]
        figures.add(f"idle: head, node and {options.actors} actors", whole, "% of a core")
        figures.add("idle: head and node, memory (PSS)", daemons, "MB")
        figures.bar(f"at most {CORE_BAR_PERCENT} % of a core", whole <= CORE_BAR_PERCENT)
        figures.bar(f"at most {MEMORY_BAR_MB} MB for head and node", daemons <= MEMORY_BAR_MB)
        driver.stdin.close()
        driver.wait(START_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return script.run("idle", options, lambda figures: measure(figures, options, build("troupe", "bench_idle_driver")),
                      said_by="bench idle")


if __name__ == "__main__":
    sys.exit(main())
