"""tools/torture pipeline: a program as its users write it (reader, workers, aggregator; Cluster::connect() and
`troupe submit`) while something of the cluster is struck. Every item that was acknowledged is counted, once, or
its loss was told."""

import json
import os
import queue
import signal
import subprocess
import threading
import time

from harness import processes
from harness.cluster import Cluster
from harness.figures import Fault

NODES, CPUS, WORKERS = 4, 2, 3
# Fifteen seconds of work: what is struck is struck, and back, before the end.
ITEMS, ITEMS_PER_S = 120_000, 8_000
# How much is acknowledged when the strike falls, and how long a run may take in all.
STRIKE_AT = 30_000
RUN_S = 240
HEAD_STOPPED_S = 5
KILL_S = 5


class Pipeline:
    """One run of the program, and the lines that it prints."""

    def __init__(self, place, bin_folder, submitted):
        program = [os.path.join(bin_folder, "torture_pipeline"), str(ITEMS), str(WORKERS), str(ITEMS_PER_S)]
        command = [os.path.join(bin_folder, "troupe"), "submit", "--", *program] if submitted else program
        self._errors = place.file("pipeline.log")
        with open(self._errors, "wb") as log:
            self._process = subprocess.Popen(command, env=place.environment(), stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.acknowledged = 0
        self.result = None

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _take(self, line):
        if line.startswith("acknowledged "):
            self.acknowledged = int(line.split()[1])
        elif line.startswith("result "):
            self.result = json.loads(line[len("result "):])

    def hear(self):
        """Takes in what has been printed so far."""
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                return self._lines.put(None)
            self._take(line)
        return None

    def follow(self, until):
        """Reads on until `until()` holds or the program has ended. Whether it holds."""
        while not until():
            try:
                line = self._lines.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                raise Fault(f"the program has not ended within {RUN_S} s; {self.acknowledged} items are "
                            f"acknowledged. Its last words: {self.errors()}") from None
            if line is None:
                self._lines.put(None)
                return until()
            self._take(line)
        return True

    def __enter__(self):
        self._deadline = time.monotonic() + RUN_S
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def errors(self):
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:].strip()

    def ended_with(self):
        return self._process.wait(10)


class Struck:
    """The cluster of one run, with several nodes of which each has a home of its own."""

    def __init__(self, place, cluster):
        self._place = place
        self._cluster = cluster

    def _actors(self):
        return {actor["name"]: actor for actor in self._cluster.actors()}

    def _node_of(self, name):
        """The id of the node where the actor is."""
        return self._cluster.wait_for(lambda: self._actors().get(name, {}).get("node_id"), f"the actor {name}")

    def _daemon(self, node_id):
        return next(node["pid"] for node in self._cluster.nodes() if node["node_id"] == node_id)

    def kill_daemon(self):
        """The daemon of the node where the aggregator is; its actors run on."""
        processes.send(self._daemon(self._node_of("aggregator")), signal.SIGKILL)

    def kill_head(self):
        processes.send(self._cluster.process("head"), signal.SIGKILL)

    def stop_head(self):
        pid = self._cluster.process("head")
        processes.send(pid, signal.SIGSTOP)
        time.sleep(HEAD_STOPPED_S)
        processes.send(pid, signal.SIGCONT)

    def kill_node(self):
        """A node that has a worker and neither the aggregator nor the job's program."""
        kept = {self._node_of("aggregator")} | self._nodes_of_programs()
        nodes = {self._node_of(f"worker-{i}") for i in range(WORKERS)} - kept
        if not nodes:
            raise Fault("all workers are on the aggregator's node")
        self._end_node(min(nodes))

    def kill_state(self):
        """The node of the aggregator, with all that it had saved."""
        self._end_node(self._node_of("aggregator"))

    def drain(self):
        self._cluster.drain(self._node_of("aggregator"))

    def _nodes_of_programs(self):
        return {job["node_id"] for job in self._cluster.jobs() if job.get("node_id")}

    def _end_node(self, node_id):
        """Everything at once, as when a machine loses its power."""
        home = processes.variable(self._daemon(node_id), "HOME")
        until = time.monotonic() + KILL_S
        while pids := [pid for pid in processes.marked(self._place.mark) if processes.variable(pid, "HOME") == home]:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    processes.send(pid, number)
            if time.monotonic() > until:
                raise Fault(f"processes {pids} of the node do not end")


# What is struck, by which program's way of starting. "state": what the aggregator had is lost, and must be told.
FAULTS = {
    "none": None,
    "daemon": Struck.kill_daemon,
    "head": Struck.kill_head,
    "stop": Struck.stop_head,
    "node": Struck.kill_node,
    "drain": Struck.drain,
    "state": Struck.kill_state,
}
SUBMITTED = ("none", "head", "node")


def pipeline(figures, place, bin_folder, options):
    chosen = options.only.split(",") if options.only else list(FAULTS)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        raise Fault(f"there is no fault {', '.join(unknown)}: there are {', '.join(FAULTS)}")
    for name in chosen:
        for submitted in (False, True):
            if submitted and name not in SUBMITTED:
                continue
            what = f"{name}{', by submit' if submitted else ''}"
            try:
                _run(figures, place, bin_folder, name, submitted, what)
            except Fault as fault:
                figures.note(f"  {fault}")
                figures.bar(f"{what}: the program came to its end", False)


def _run(figures, place, bin_folder, name, submitted, what):
    begun = time.monotonic()
    with Cluster(place, bin_folder, CPUS, nodes=NODES) as cluster, Pipeline(place, bin_folder, submitted) as program:
        struck = Struck(place, cluster)
        if not program.follow(lambda: program.acknowledged >= STRIKE_AT):
            raise Fault(f"the program ended before the strike: {program.errors()}")
        if FAULTS[name] is not None:
            FAULTS[name](struck)
            program.hear()
            if program.result is not None:
                raise Fault("the strike took so long that the program had ended by then")
        at = program.acknowledged
        program.follow(lambda: program.result is not None)
        if program.result is None:
            raise Fault(f"the program ended with code {program.ended_with()}: {program.errors()}")
        ended = program.ended_with()
    _judge(figures, what, program, at, ended, time.monotonic() - begun)


def _judge(figures, what, program, struck_at, ended, seconds):
    found = program.result
    if not what.startswith("none"):
        figures.add(f"{what}: items acknowledged when the strike was over", struck_at, "")
    told = sum(entry["items"] for entry in found["told"])
    figures.add(f"{what}: items acknowledged", found["acknowledged"], "")
    figures.add(f"{what}: items counted", found["counted"], "")
    figures.add(f"{what}: items whose loss was told at their call", told, "")
    figures.add(f"{what}: taken in all", seconds, "s")
    for entry in found["told"]:
        figures.note(f"  told of {entry['items']} items: {entry['error']}")
    if program.errors():
        figures.note("  the program's standard error: " + program.errors()[-600:])
    lost = found["missing"]
    if lost and found["loss_told"]:
        figures.note(f"  {lost} acknowledged items are gone with the aggregator's state, which was told")
    figures.bar(f"{what}: every acknowledged item is counted, or its loss was told",
                lost == 0 or found["loss_told"])
    figures.bar(f"{what}: every item is acknowledged or told of", found["acknowledged"] + told >= ITEMS)
    figures.bar(f"{what}: nothing is counted wrongly or twice", found["wrong"] == 0 and found["counted"] <= ITEMS)
    figures.bar(f"{what}: the program ended well", ended == 0)
