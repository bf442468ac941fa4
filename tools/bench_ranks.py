#!/usr/bin/env python3
"""64 ranks on 8 nodes by `troupe run`: started, a node killed, all begun again, nothing left.

    tools/bench ranks [--nodes 8] [--ranks 8] [--repeats 3] [--json]

A head and one node more than is needed, of --ranks CPUs each, on loopback in namespaces of their own. The ranks
are sleeping programs that say a line first. `start`: from the command to the last rank's line. `restart`:
kill -9 of every process of a node that has ranks, until the last rank's line of the next attempt. Behind
Ctrl-C nothing of the ranks may run. Bars: 1 s, 3 s, 0 processes.
"""

import os
import signal
import subprocess
import sys
import threading
import time

from harness import peers, processes, script
from harness.cluster import Cluster
from harness.figures import Fault, median
from harness.workplace import Workplace, build

START_BAR_S, RESTART_BAR_S = 1, 3
WAIT_S = 60
# In the command line of every rank, to know it by.
PROGRAM = ": ranks-of-bench; echo up $RANK $TORCHELASTIC_RESTART_COUNT; exec sleep 300"


class Ranks:
    """`troupe run` and the lines of its ranks: (attempt, rank) -> when it was read."""

    def __init__(self, place, bin_folder, address, nodes, ranks):
        self._seen = {}
        self._changed = threading.Condition()
        command = [os.path.join(bin_folder, "troupe"), "run", "--nnodes", str(nodes), "--nproc-per-node", str(ranks),
                   "--max-restarts", "1", "--address", address, "sh", "-c", PROGRAM]
        self.begun = time.monotonic()
        self._log = open(place.file("run.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen(command, env=place.environment(), cwd=place.path, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["up"]:
                with self._changed:
                    self._seen[int(words[2]), int(words[1])] = time.monotonic()
                    self._changed.notify_all()

    def all_up(self, attempt, world):
        """When the last rank of the attempt had said its line."""
        def of_attempt():
            return [when for (number, _), when in self._seen.items() if number == attempt]

        with self._changed:
            if not self._changed.wait_for(lambda: len(of_attempt()) == world, WAIT_S):
                raise Fault(f"{len(of_attempt())} of {world} ranks of attempt {attempt} were up after {WAIT_S} s")
            return max(of_attempt())

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise Fault(f"'troupe run' did not end within {WAIT_S} s of Ctrl-C") from None
        self._reader.join()
        self._log.close()


def sleepers(place):
    return [pid for pid in processes.marked(place.mark) if processes.arguments(pid)[:1] == ["sleep"]]


def of_node(place, cluster):
    """Every process of one node that has ranks: by the home that it was started with."""
    victim = sleepers(place)[0]
    home = processes.variable(victim, "HOME")
    return [pid for pid in processes.marked(place.mark) if processes.variable(pid, "HOME") == home]


def measure_once(bin_folder, options):
    world = options.nodes * options.ranks
    with Workplace() as place, Cluster(place, bin_folder, options.ranks, watch=False, nodes=options.nodes + 1) as cluster:
        run = Ranks(place, bin_folder, cluster.address, options.nodes, options.ranks)
        start_s = run.all_up(0, world) - run.begun
        victims = of_node(place, cluster)
        begun = time.monotonic()
        for pid in victims:
            processes.send(pid, signal.SIGKILL)
        restart_s = run.all_up(1, world) - begun
        run.end()
        left = len(sleepers(place))
    return start_s, restart_s, left


def main():
    parser = script.parser("tools/bench ranks", __doc__)
    parser.add_argument("--nodes", type=int, default=8, help="nodes with ranks (8)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of a node (8)")
    parser.add_argument("--repeats", type=int, default=3, help="runs (3)")
    inside, arguments = peers.arguments()
    options = parser.parse_args(arguments)

    def measured(figures):
        bin_folder = build("troupe")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        runs = [measure_once(bin_folder, options) for _ in range(options.repeats)]
        starts, restarts, left = zip(*runs)
        figures.add("from the command to the last rank's line", median(starts), "s")
        figures.add("from a node's kill to the last rank's next line", median(restarts), "s")
        figures.add("ranks that run behind the end, of all runs", sum(left), "processes")
        figures.bar(f"started within {START_BAR_S} s", median(starts) <= START_BAR_S)
        figures.bar(f"begun again within {RESTART_BAR_S} s", median(restarts) <= RESTART_BAR_S)
        figures.bar("nothing is left", sum(left) == 0)

    return script.run("ranks", options, measured)


if __name__ == "__main__":
    sys.exit(main())
