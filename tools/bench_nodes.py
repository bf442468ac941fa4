#!/usr/bin/env python3
"""When a node counts as joined, and when as dead: killed, frozen, or merely slow; when a head is back.

    tools/bench nodes [--repeats 5] [--stall-minutes 10] [--actors 8] [--json]

A head, and a worker node with some idle actors. `killed`: kill -9 of every process of the node at
once. `frozen`: SIGSTOP of all of them. Both until the head's event `node_died`, by its time. Then
all of a node's processes are stopped for 200 ms again and again, at random, for --stall-minutes: no
node may die. `head`: kill -9 of a head under --watch, until its event `head_restarted`, and until the
node is with it again. Bars: a worker has joined within 100 ms of its command; killed: dead within
1 s; frozen: within 3 s; 0 false deaths; the head is back within 500 ms.
"""

import argparse
import random
import signal
import sys
import time

from harness import processes, script
from harness.cluster import Cluster
from harness.figures import Fault, median
from harness.workplace import Workplace, build

JOIN_BAR_MS, KILLED_BAR_S, FROZEN_BAR_S, HEAD_BAR_MS = 100, 1, 3, 500
STALL_S = 0.2
WAIT_S = 15


def of_node(place, cluster):
    """Every process of the one living node: daemon, keeper, actors."""
    found = [cluster.process("worker")]
    for pid in processes.marked(place.mark):
        words = processes.arguments(pid)
        if "keeper" in words[1:2] or "--actor" in words:
            found.append(pid)
    return found


def strike(place, cluster, number, options, bin_folder):
    """Seconds from the signal to the head's word that the node is dead."""
    driver = cluster.start_driver(f"{bin_folder}/bench_idle_driver", options.actors)
    pids = of_node(place, cluster)
    if len(pids) != options.actors + 2:
        raise Fault(f"{len(pids)} processes of the node instead of {options.actors + 2}")
    before = cluster.events()[-1]["sequence"]
    begun = time.time()
    for pid in pids:
        processes.send(pid, number)
    died = cluster.wait_for(lambda: [event for event in cluster.events(before) if event["event"] == "node_died"],
                            "the node's death", WAIT_S)
    for pid in pids:
        processes.send(pid, signal.SIGKILL)
    driver.stdin.close()
    driver.wait(WAIT_S)
    return died[0]["unix_s"] - begun


def deaths(figures, options, bin_folder):
    joined, killed, frozen = [], [], []
    with Workplace() as place, Cluster(place, bin_folder, options.actors, watch=False) as cluster:
        for number, found in ((signal.SIGKILL, killed), (signal.SIGSTOP, frozen)):
            for _ in range(options.repeats):
                found.append(strike(place, cluster, number, options, bin_folder))
                joined.append(cluster.join_ms())
    figures.add("a worker: command to joined, p50", median(joined), "ms")
    figures.add("a worker: command to joined, slowest", max(joined), "ms")
    figures.bar(f"joined within {JOIN_BAR_MS} ms", median(joined) <= JOIN_BAR_MS)
    for what, found, bar in (("killed", killed, KILLED_BAR_S), ("frozen", frozen, FROZEN_BAR_S)):
        figures.add(f"all of a node {what}: dead after, p50", median(found), "s")
        figures.add(f"all of a node {what}: dead after, slowest", max(found), "s")
        figures.bar(f"{what}: dead within {bar} s", max(found) <= bar)


def heads(figures, options, bin_folder):
    back, together = [], []
    with Workplace() as place, Cluster(place, bin_folder, options.actors) as cluster:
        driver = cluster.start_driver(f"{bin_folder}/bench_idle_driver", options.actors)
        pids = of_node(place, cluster)
        for _ in range(options.repeats):
            before = cluster.events()[-1]["sequence"]
            begun = time.time()
            processes.send(cluster.process("head"), signal.SIGKILL)

            def since(kind):
                return [event["unix_s"] for event in cluster.events(before) if event["event"] == kind]

            cluster.wait_for(lambda: since("head_restarted") and since("node_returned"), "the head with its node", WAIT_S)
            back.append((since("head_restarted")[0] - begun) * 1e3)
            together.append((since("node_returned")[0] - begun) * 1e3)
        if set(pids) != set(of_node(place, cluster)):
            raise Fault("processes of the node did not outlive the head")
        driver.stdin.close()
        driver.wait(WAIT_S)
    figures.add("kill -9 of the head: back after, p50", median(back), "ms")
    figures.add("kill -9 of the head: back after, slowest", max(back), "ms")
    figures.add("kill -9 of the head: its node is with it again after, p50", median(together), "ms")
    figures.bar(f"the head is back within {HEAD_BAR_MS} ms", max(back) <= HEAD_BAR_MS)


def stalls(figures, options, bin_folder):
    chance = random.Random(1)
    count = 0
    with Workplace() as place, Cluster(place, bin_folder, options.actors, watch=False) as cluster:
        driver = cluster.start_driver(f"{bin_folder}/bench_idle_driver", options.actors)
        pids = of_node(place, cluster)
        until = time.monotonic() + options.stall_minutes * 60
        while time.monotonic() < until:
            for pid in pids:
                processes.send(pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            for pid in pids:
                processes.send(pid, signal.SIGCONT)
            count += 1
            time.sleep(chance.uniform(0.05, 1.0))
        events = cluster.events()
        dead = [event for event in events if event["event"] in ("node_died", "node_left")]
        gone = [pid for pid in pids if processes.state(pid) in ("", "Z")]
        suspected = sum(event["event"] == "node_suspected" for event in events)
        driver.stdin.close()
        driver.wait(WAIT_S)
    figures.add(f"stalls of {STALL_S * 1e3:.0f} ms over {options.stall_minutes:g} min", count, "")
    figures.add("… after which the node was suspected", suspected, "")
    figures.add("… after which it was declared dead", len(dead), "")
    figures.bar("no false death, and no process of the node ended", not dead and not gone)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--stall-minutes", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def measure(figures):
        bin_folder = build("troupe", "bench_idle_driver")
        deaths(figures, options, bin_folder)
        heads(figures, options, bin_folder)
        stalls(figures, options, bin_folder)

    return script.run("nodes", options, measure, said_by="bench nodes")


if __name__ == "__main__":
    sys.exit(main())
