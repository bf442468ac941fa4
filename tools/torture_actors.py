"""tools/torture actors: kill -9 of actors that share a cluster's CPUs, each with a child process of
its own. A CPU is free again only when the whole process group is gone: at no moment may more groups
run on a node than it has CPUs, and nothing may be left at the end."""

import os
import random
import signal
import time

from harness import processes
from harness.cluster import Cluster
from harness.figures import Fault, median

NODES, CPUS, WAITING = 2, 3, 3
START_S = 30
RESPAWN_S = 20


class Groups:
    """The process groups of actors, by node, as /proc shows them."""

    def __init__(self, place, keepers):
        self._place = place
        self._keepers = keepers
        self._members = {}  # pid -> (keeper, process group)

    def look(self):
        """keeper -> {process group -> pids}, of what was there at one moment."""
        while True:
            found = {pid: place for pid in processes.marked(self._place.mark) if (place := self._place_of(pid))}
            # Who is here still was here, beside all the others, when the last of them was seen.
            if all(processes.state(pid) not in ("", "Z") for pid in found):
                break
        groups = {keeper: {} for keeper in self._keepers}
        for pid, (keeper, group) in found.items():
            groups[keeper].setdefault(group, []).append(pid)
        return groups

    def _place_of(self, pid):
        if pid not in self._members:
            if "--actor" not in processes.arguments(pid):
                return None
            try:
                group = os.getpgid(pid)
            except ProcessLookupError:
                return None
            above = processes.parent(pid)
            if above not in self._keepers:
                above = self._members[above][0] if above in self._members else processes.parent(above)
            if above not in self._keepers:
                return None
            self._members[pid] = (above, group)
        return self._members[pid]


def _keepers(place):
    return [pid for pid in processes.marked(place.mark) if "keeper" in processes.arguments(pid)[1:2]]


def _wait_until(condition, what, timeout_s):
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise Fault(f"{what}: not within {timeout_s} s")
        time.sleep(0.002)


def actors(figures, place, bin_folder, options):
    count = options.kills or 1000
    chance = random.Random(options.seed)
    overlaps, respawns = [], []
    with Cluster(place, bin_folder, CPUS, watch=False) as cluster:
        for _ in range(NODES - 1):
            cluster.add_worker()
        cluster.wait_for(lambda: len(cluster.node_pids()) == NODES, "all nodes")
        driver = cluster.start_driver(f"{bin_folder}/torture_actors_driver", NODES * CPUS + WAITING)
        _wait_until(lambda: len(_keepers(place)) == NODES, "the nodes' keepers", START_S)
        groups = Groups(place, _keepers(place))

        def full():
            """All CPUs in use, by actors whose children are there, too."""
            now = groups.look()
            for keeper, found in now.items():
                if len(found) > CPUS:
                    overlaps.append((keeper, found))
            return all(len(found) == CPUS and all(len(pids) == 2 for pids in found.values())
                       for found in now.values())

        _wait_until(full, "the first actors", START_S)
        for _ in range(count):
            leaders = [group for found in groups.look().values() for group in found]
            begun = time.monotonic()
            processes.send(chance.choice(leaders), signal.SIGKILL)
            _wait_until(lambda: leaders != [g for found in groups.look().values() for g in found] and full(),
                        "another actor on the killed one's CPU", RESPAWN_S)
            respawns.append(time.monotonic() - begun)
        nodes_full = cluster.nodes()
        driver.stdin.close()
        driver.wait(START_S)
        _wait_until(lambda: not any(groups.look().values()), "the end of all actors", START_S)
        nodes_empty = cluster.wait_for(
            lambda: [node for node in cluster.nodes() if node["available"] == node["total"]], "free nodes")
    figures.add(f"{count} kills: a CPU in use again after, p50", median(respawns) * 1e3, "ms")
    figures.add(f"{count} kills: slowest", max(respawns) * 1e3, "ms")
    for keeper, found in overlaps[:3]:
        figures.note(f"  on the node of keeper {keeper}: groups {found}")
    figures.bar(f"{count} kills: no overlapping leases", not overlaps)
    figures.bar(f"{count} kills: no CPU lost", all(node["available"].get("CPU", 0) == 0 for node in nodes_full))
    figures.bar(f"{count} kills: no orphans, all CPUs free at the end", len(nodes_empty) == NODES)
