"""A cluster on loopback: a head and a worker, which come back by themselves unless told not to (--watch)."""

import datetime
import json
import os
import subprocess
import time

from . import head, processes
from .figures import Fault

_READY_S = 20


class Cluster:
    """with Cluster(place, bin, cpus) as cluster: its processes have the workplace's mark. Of several nodes each
    has a home of its own."""

    def __init__(self, place, bin_folder, cpus, watch=True, nodes=1, head_environment=None):
        self._place = place
        self._program = os.path.join(bin_folder, "troupe")
        self._cpus = cpus
        self._nodes = nodes
        self._watch = ["--watch"] if watch else []
        self._head_environment = head_environment or {}
        self.address = None
        self.token_file = None

    def __enter__(self):
        head = self._start("head", "--address", "127.0.0.1", "--json", *self._watch, out=subprocess.PIPE,
                           environment=self._head_environment)
        line = head.stdout.readline()
        if not line:
            raise Fault(f"the head did not start: {self._last_words('head')}")
        place = json.loads(line)
        self.address = f"{place['address']}:{place['port']}"
        self.token_file = place["token_file"]
        for number in range(self._nodes):
            self.add_worker(home=self._place.file(f"node-{number}") if self._nodes > 1 else None)
        self.wait_for(lambda: len(self.node_pids()) == self._nodes, "all worker nodes")
        return self

    def __exit__(self, *_):
        try:
            self._ask("stop")
        except Fault:
            pass  # it does not answer: what is left is killed with the workplace
        processes.end_all(self._place.mark)

    def _start(self, *words, out=subprocess.DEVNULL, home=None, environment=None):
        environment = {**self._place.environment(), **(environment or {})}
        if home is not None:
            os.makedirs(home, exist_ok=True)
            environment["HOME"] = home
        with open(self._place.file(words[0] + ".log"), "ab") as log:
            return subprocess.Popen([self._program, *words], env=environment, stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=log, text=True, start_new_session=True)

    def add_worker(self, out=subprocess.DEVNULL, home=None):
        return self._start("worker", "--address", self.address, "--token-file", self.token_file, "--num-cpus",
                           str(self._cpus), *self._watch, out=out, home=home)

    def join_ms(self):
        """Another worker: from its command to its line that it has joined."""
        begin = time.monotonic()
        line = self.add_worker(out=subprocess.PIPE).stdout.readline()
        taken = (time.monotonic() - begin) * 1e3
        if "joined" not in line:
            raise Fault(f"the worker did not join: {line!r}")
        return taken

    def start_driver(self, program, count, environment=None):
        """A program that gives this cluster `count` actors, says "ready", and ends with its input."""
        host, port = self.address.rsplit(":", 1)
        with open(self._place.file("driver.log"), "wb") as log:
            driver = subprocess.Popen([program, host, port, self.token_file, str(count)],
                                      env={**self._place.environment(), **(environment or {})},
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=log, text=True, start_new_session=True)
        if driver.stdout.readline() != "ready\n":
            raise Fault(f"the driver's actors did not start: {self._last_words('driver')[-1000:]}")
        return driver

    def _last_words(self, name):
        with open(self._place.file(name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def _ask(self, *words):
        return head.ask([self._program], words, self.address, self._place.environment())

    def wait_for(self, condition, what, timeout_s=_READY_S):
        return head.wait_for(condition, what, timeout_s)

    # --- what it says of itself

    def actors(self):
        return json.loads(self._ask("actors", "--json"))["actors"]

    def node_pids(self):
        """The daemons of the living nodes."""
        return [node["pid"] for node in self.nodes() if node["state"] == "alive"]

    def jobs(self):
        return json.loads(self._ask("jobs", "--json"))["jobs"]

    def drain(self, node_id):
        self._ask("drain", node_id)

    def nodes(self):
        return json.loads(self._ask("nodes", "--json"))["nodes"]

    def events(self, after=0):
        """What happened, each with "unix_s"; those after a number alone."""
        found = json.loads(self._ask("events", "--json", *(["--after", str(after)] if after else [])))["events"]
        for event in found:
            event["unix_s"] = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
        return found

    # --- what is there

    def process(self, role):
        """The process that does the work of `troupe head` or `troupe worker`: not the one that
        watches it, which is its parent."""
        pids = [pid for pid in processes.marked(self._place.mark) if processes.arguments(pid)[1:2] == [role]]
        if not self._watch and len(pids) == 1:
            return pids[0]
        workers = [pid for pid in pids if processes.parent(pid) in pids]
        if len(pids) != 2 or len(workers) != 1:
            raise Fault(f"'troupe {role}' and who watches it should be two processes, not {pids}")
        return workers[0]

    def controllers(self):
        return list(processes.actors(self._place.mark, "TrainController"))
