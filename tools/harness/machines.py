"""Machines: network namespaces with a cable each to one bridge, in each a worker node whose processes have a
process namespace of their own, so that all of them can be killed at once as by a power cut."""

import json
import os
import shutil
import signal
import subprocess
import time

from . import head, processes
from .figures import Fault
from .run import Run

_READY_S = 30
_HOME = "10.215.0.1"
# A link address that no machine has.
_NOBODY = "02:00:00:00:00:01"
# The head's place, beside the machines' numbers.
HEAD = -1


class Machines:
    """with Machines(place, bin, count) as machines: a head in a namespace of its own, and so many worker nodes,
    10.215.0.11 and up, labelled machine=0 and up. Needs root, and iproute2 and util-linux. Connections are
    encrypted unless `insecure`. `pinned`: each machine has a processor for itself, as far as there are some."""

    _command = "worker"  # what runs on a machine

    def __init__(self, place, bin_folder, count, cpus=1, insecure=False, pinned=False, worker_options=()):
        self._place = place
        self._program = os.path.join(bin_folder, "troupe")
        self.count = count
        self._cpus = cpus
        self._pinned = pinned
        self._worker_options = worker_options
        self.environment = {"TROUPE_INSECURE": "1"} if insecure else {}
        self._names = [f"troupe-m{os.getpid()}-{number}" for number in range(count)]
        self._hub = f"troupe-m{os.getpid()}-hub"
        self._workers = {}  # machine -> the process outside its namespace
        self._head = None
        self.address = None
        self.token_file = None

    def __enter__(self):
        for tool in ("ip", "unshare"):
            if not shutil.which(tool):
                raise Fault(f"{tool} is missing (packages iproute2, util-linux)")
        try:
            self._ip("netns", "add", self._hub)
            self._ip("-n", self._hub, "link", "set", "lo", "up")
            self._ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
            self._ip("-n", self._hub, "addr", "add", _HOME + "/24", "dev", "hub")
            self._ip("-n", self._hub, "link", "set", "hub", "up")
            for number, name in enumerate(self._names):
                self._ip("netns", "add", name)
                self._ip("-n", name, "link", "set", "lo", "up")
                self._ip("-n", self._hub, "link", "add", f"to{number}", "type", "veth", "peer", "name", "cable",
                         "netns", name)
                self._ip("-n", self._hub, "link", "set", f"to{number}", "master", "hub", "up")
                self._ip("-n", name, "addr", "add", self.address_of(number) + "/24", "dev", "cable")
                self._ip("-n", name, "link", "set", "cable", "up")
            self._start_head()
            for number in range(self.count):
                self.start(number)
        except Fault:
            self._take_down()
            raise
        return self

    def __exit__(self, *_):
        self._take_down()

    def _ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fault(f"network namespaces cannot be made here: ip {' '.join(words)}: {done.stderr.strip()}")

    def _take_down(self):
        for worker in self._workers.values():
            worker.kill()
            worker.wait()
        processes.end_all(self._place.mark)
        for name in [*self._names, self._hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    @property
    def inside_hub(self):
        """What stands before a command that is to run beside the head."""
        return ("ip", "netns", "exec", self._hub)

    def inside(self, number):
        """What stands before a command that is to run on a machine, beside its node."""
        return ("ip", "netns", "exec", self._names[number])

    def _start_head(self):
        with open(self._place.file("head.log"), "ab") as log:
            self._head = subprocess.Popen(
                [*self.inside_hub, self._program, "head", "--address", _HOME, "--json"],
                env={**self._place.environment(), **self.environment}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        line = self._head.stdout.readline()
        if not line:
            raise Fault("the head did not start")
        told = json.loads(line)
        self.address = f"{told['address']}:{told['port']}"
        self.token_file = told["token_file"]

    def address_of(self, number):
        return f"10.215.0.{11 + number}"

    def is_up(self, number):
        return number in self._workers and self._workers[number].poll() is None

    @property
    def mark(self):
        return self._place.mark

    # --- one of them

    def start(self, number, wait=True):
        """Its worker node, with nothing of an earlier one but its disk."""
        home = self._home(number)
        os.makedirs(home, exist_ok=True)
        before = {node["node_id"] for node in self.nodes(number)} if wait else set()
        with open(self._place.file(f"machine-{number}.log"), "ab") as log:
            self._workers[number] = subprocess.Popen(
                ["ip", "netns", "exec", self._names[number], *self._on_processor(number), "unshare", "--pid", "--fork", "--kill-child",
                 "--mount-proc", self._program, "worker", "--address", self.address, "--token-file",
                 self.token_file, "--num-cpus", str(self._cpus), "--labels", f"machine={number}", *self._worker_options],
                env={**self._place.environment(), **self.environment, "HOME": home, "TMPDIR": home}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True)
        if wait:
            self.wait_for(lambda: any(node["node_id"] not in before for node in self.nodes(number)),
                          f"machine {number}")

    def _home(self, number):
        return self._place.file(f"machine-{number}")

    def _on_processor(self, number):
        return ["taskset", "-c", str(number % os.cpu_count())] if self._pinned else []

    def kill(self, number):
        """All of its processes at once; their sockets close. When it was done."""
        worker = self._workers.pop(number)
        at = time.monotonic()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        return at

    def cut(self, number):
        """Nothing reaches it any more, nor anybody from it, and nobody is told."""
        self._ip("-n", self._hub, "link", "set", f"to{number}", "down")
        return time.monotonic()

    def mend(self, number):
        self._ip("-n", self._hub, "link", "set", f"to{number}", "up")

    def part(self, one, other, both=True):
        """Nothing that machine `one` sends reaches the other one (HEAD: the head), nor, where `both`, the other way round;
        nobody is told. When it was done."""
        for sender, receiver in ((one, other), (other, one))[:2 if both else 1]:
            self._neighbour(sender, "replace", self._address(receiver), "lladdr", _NOBODY, "nud", "permanent")
        return time.monotonic()

    def rejoin(self, one, other):
        for sender, receiver in ((one, other), (other, one)):
            if self._address(receiver) in self._neighbours(sender):
                self._neighbour(sender, "del", self._address(receiver))

    def _place_of(self, number):
        return (self._hub, "hub") if number == HEAD else (self._names[number], "cable")

    def _address(self, number):
        return _HOME if number == HEAD else self.address_of(number)

    def _neighbour(self, number, what, address, *words):
        name, device = self._place_of(number)
        self._ip("-n", name, "neigh", what, address, *words, "dev", device)

    def _neighbours(self, number):
        name, device = self._place_of(number)
        shown = subprocess.run(["ip", "-n", name, "neigh", "show", "dev", device, "nud", "permanent"],
                               capture_output=True, text=True, check=False)
        return [line.split()[0] for line in shown.stdout.splitlines() if line]

    def leave(self, number):
        """Its worker gets SIGTERM."""
        worker = next((pid for pid in self.pids(number) if processes.arguments(pid)[1:2] == [self._command]), None)
        if worker is None or not processes.send(worker, signal.SIGTERM):
            raise Fault(f"machine {number} has no worker")

    def slow(self, number, ms):
        """Everything that goes to it takes so long more; 0: no longer."""
        words = ["tc", "-n", self._hub, "qdisc", "replace", "dev", f"to{number}", "root"]
        words += ["netem", "delay", f"{ms}ms"] if ms else ["pfifo_fast"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fault(f"machine {number} is not slowed down, the kernel has no netem: {done.stderr.strip()}")

    def limit(self, number, megabytes_per_s):
        """So much goes to it in a second, and so much comes from it."""
        for name, device in ((self._hub, f"to{number}"), (self._names[number], "cable")):
            words = ["tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                     f"{megabytes_per_s * 8}mbit", "burst", "1mb", "latency", "50ms"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Fault(f"machine {number} has no slower link, the kernel has no tbf: {done.stderr.strip()}")

    def pids(self, number):
        """Its processes, as they are numbered outside."""
        home = self._home(number)
        return [pid for pid in processes.marked(self._place.mark) if processes.variable(pid, "HOME") == home]

    def ranks(self):
        """rank -> machine of the run's trainers that live."""
        found = {}
        for number in self._workers:
            for pid in self.pids(number):
                words = processes.arguments(pid)
                if "--actor" in words and words[words.index("--actor") + 1] == "TrainerActor" and "--rank" in words:
                    found[int(words[words.index("--rank") + 1])] = number
        return found

    def training(self):
        """The machines with trainers that have a rank."""
        return sorted(set(self.ranks().values()))

    # --- what the head says

    def _ask(self, *words):
        return json.loads(head.ask([*self.inside_hub, self._program], words, self.address,
                                   {**self._place.environment(), **self.environment}))

    def nodes(self, number):
        """The living nodes that were started on it."""
        return [node for node in self._ask("nodes", "--json")["nodes"]
                if node["state"] == "alive" and node.get("labels", {}).get("machine") == str(number)]

    def wait_for(self, condition, what, timeout_s=_READY_S):
        return head.wait_for(condition, what, timeout_s)


class TrainingMachines(Machines):
    """Machines without a cluster: on each `troupe train` is started with the same settings, MIN_NNODES and MAX_NNODES,
    as they come and go. Machine 0 leads; `run` is its command's."""

    _command = "train"

    def __init__(self, place, bin_folder, count, least, name, settings):
        super().__init__(place, bin_folder, count)
        self._least = least
        self._run_name = name
        self._settings = settings
        self.run = None

    def _start_head(self):
        pass  # machine 0 has it

    def _home(self, number):
        return self._place.path if number == 0 else super()._home(number)

    def _variables(self, number):
        home = self._home(number)
        return {**self.environment, "HOME": home, "TMPDIR": home, "RDZV_ID": "job", "MIN_NNODES": str(self._least),
                "MAX_NNODES": str(self.count), "MASTER_ADDR": self.address_of(0), "MASTER_PORT": "6379"}

    def start(self, number, wait=False):
        inside = ["ip", "netns", "exec", self._names[number]]
        if number == 0:
            bin_folder = os.path.dirname(self._program)
            self.run = Run(self._place, bin_folder, self._run_name, self._settings, inside=inside,
                           environment=self._variables(0)).start()
            self.address = f"{self.address_of(0)}:6379"
            self.token_file = self._place.file(".troupe/token")
            self.wait_for(lambda: os.path.exists(self.token_file), "the head's token")
            return
        home = self._home(number)
        os.makedirs(os.path.join(home, ".troupe"), exist_ok=True)
        shutil.copy(self.token_file, os.path.join(home, ".troupe/token"))
        words = [f"{key}={value}" for key, value in {**self._settings, "output_dir": self.run.folder}.items()]
        with open(self._place.file(f"machine-{number}.log"), "ab") as log:
            self._workers[number] = subprocess.Popen(
                [*inside, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", self._program, "train", *words],
                env={**self._place.environment(), **self._variables(number)}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True)

    def left(self, number, timeout_s):
        """The exit code of one that ends by itself."""
        return self._workers.pop(number).wait(timeout_s)
