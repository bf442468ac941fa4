"""Two simulated nodes: network namespaces with a cable between them, and a training run on both."""

import json
import os
import shutil
import subprocess
import time

from .commands import output_of
from .figures import Fault
from .run import Run

# How long the nodes may take to find each other.
_JOIN_S = 60


class TwoNodes:
    """with TwoNodes() as nodes: 10.214.0.1 and 10.214.0.2 on the ends of a veth pair. Needs root."""

    def __init__(self):
        self._names = [f"troupe-bench-{os.getpid()}{side}" for side in "ab"]
        self._ends = [f"tb{os.getpid()}{side}" for side in "ab"]

    def __enter__(self):
        if not shutil.which("ip"):
            raise Fault("ip is missing (package iproute2)")
        (a, b), (a_end, b_end) = self._names, self._ends
        commands = [["netns", "add", a], ["netns", "add", b],
                    ["link", "add", a_end, "netns", a, "type", "veth", "peer", "name", b_end, "netns", b]]
        for side, (name, end) in enumerate(zip(self._names, self._ends)):
            commands += [["-n", name, "addr", "add", self.address(side) + "/24", "dev", end],
                         ["-n", name, "link", "set", end, "up"], ["-n", name, "link", "set", "lo", "up"]]
        for command in commands:
            done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self._take_down()
                raise Fault(f"network namespaces cannot be made here: ip {' '.join(command)}: {done.stderr.strip()}")
        return self

    def __exit__(self, *_):
        self._take_down()

    def _take_down(self):
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def address(self, side):
        return f"10.214.0.{side + 1}"

    def bytes_on_cable(self):
        """What both have put on it so far."""
        total = 0
        for name, end in zip(self._names, self._ends):
            path = f"/sys/class/net/{end}/statistics/tx_bytes"
            done = subprocess.run(["ip", "netns", "exec", name, "cat", path], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Fault(f"{path} cannot be read: {done.stderr.strip()}")
            total += int(done.stdout)
        return total

    def train(self, place, bin_folder, name, chosen, timeout_s=120):
        """`troupe train` on both, as the README starts it, to its end. Returns the first node's Run, and
        the bytes that went over the cable."""
        before = self.bytes_on_cable()
        homes = [place.file(f"{name}-home-{side}") for side in (0, 1)]
        runs = []
        for side, home in enumerate(homes):
            os.makedirs(os.path.join(home, ".troupe"), exist_ok=True)
            environment = {"HOME": home, "TMPDIR": home, "USE_RAY": "1", "NNODES": "2", "NODE_RANK": str(side),
                           "MASTER_ADDR": self.address(0), "MASTER_PORT": "6379"}
            runs.append(Run(place, bin_folder, f"{name}-{side}", chosen,
                            inside=("ip", "netns", "exec", self._names[side]), environment=environment))
        first, second = runs
        first.start()
        token = [os.path.join(home, ".troupe/token") for home in homes]
        until = time.monotonic() + _JOIN_S
        while not os.path.exists(token[0]):
            if first.ended_at is not None or time.monotonic() > until:
                raise Fault(f"run {name}: no head came up; {first.last_words()}")
            time.sleep(0.05)
        shutil.copyfile(token[0], token[1])
        os.chmod(token[1], 0o600)
        second.start()
        first.finish(timeout_s)
        second.finish(timeout_s)
        return first, self.bytes_on_cable() - before


def planned(place, bin_folder, chosen):
    """What `troupe plan` says of the strategy that is chosen: among others `sent_formula_bytes`, which a
    rank sends in a step, and `state_formula_bytes`, by the textbook's formulas."""
    command = [os.path.join(bin_folder, "troupe"), "plan", "--json"]
    command += [f"{key}={value}" for key, value in chosen.items()]
    told = output_of(command, "troupe plan", 60, place.environment())
    return next(row for row in _objects(json.loads(told)) if row.get("configured"))


def _objects(value):
    """All JSON objects within a value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
