#!/usr/bin/env python3
"""An unmodified PyTorch DDP script (2 ranks, gloo) under `troupe run` and under torchrun, by turns in this run:
from the command to the first step, and from the kill -9 of rank 1 to the next attempt's first step.

    tools/bench compare-torchrun [--repeats 3] [--settle 15] [--json]

The kill strikes --settle seconds after the first step. Both have three restarts (torchrun may fail in its first), and log nothing to files; torchrun
polls every 100 ms as it does by default. `troupe run` keeps interpreters that have done the script's imports
standing by; with --no-standby also measured, without. Bars: the first step not later than torchrun's; the
restart in at most half of its time.

PyTorch comes from PyPI (tools/peers/requirements-adapters.txt) into build/peers/adapters. Everything runs in
namespaces of its own, with loopback alone.
"""

import os
import signal
import subprocess
import sys
import time

from harness import peers, processes, script
from harness.figures import Fault, median
from harness.workplace import Workplace, build

RESTART_BAR = 0.5
TIMEOUT_S = 120


def events_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [(int(rank), int(pid), int(attempt), int(step), float(when)) for rank, pid, attempt, step, when in lines]


def wait_for(condition, process, what):
    until = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        if process.poll() is not None:
            raise Fault(f"{what}: the launcher ended with {process.returncode} before")
        if time.monotonic() > until:
            raise Fault(f"{what}: not within {TIMEOUT_S} s")
        time.sleep(0.01)
    return found


def measure_once(place, name, command, settle_s):
    """(first step, restart) in seconds."""
    events = place.file(name + ".events")
    environment = {**place.environment(), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": command[0]}
    words = [word for part in command[1:] for word in part] + [os.path.join(peers.FOLDER, "train_ddp.py"), events,
                                                               str(settle_s + TIMEOUT_S)]
    begun = time.time()
    with open(place.file(name + ".log"), "wb") as log:
        process = subprocess.Popen(words, env=environment, cwd=place.path, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    first = wait_for(lambda: [e for e in events_of(events) if e[3] == 1], process, f"{name}'s first step")[0]
    until = time.time() + settle_s
    victim = wait_for(lambda: [e for e in events_of(events) if e[0] == 1 and e[4] >= until], process,
                      f"{name}'s steps")[-1][1]
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    again = wait_for(lambda: [e for e in events_of(events) if e[2] >= 1], process, f"{name}'s next attempt")[0]
    try:
        code = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = None
    processes.end_all(place.mark)
    if code is None:
        raise Fault(f"{name} did not end within {TIMEOUT_S} s of its last step")
    return first[4] - begun, again[4] - killed


def main():
    parser = script.parser("tools/bench compare-torchrun", __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--settle", type=float, default=15, help="seconds of training before the kill (15)")
    inside, arguments = peers.arguments()
    options = parser.parse_args(arguments)

    def measured(figures):
        python = peers.own_python(figures, "adapters", "requirements-adapters.txt", "peft, torch, transformers")
        bin_folder = build("troupe")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
        troupe = os.path.join(bin_folder, "troupe")
        commands = {"torchrun": (python, [python, "-m", "torch.distributed.run"], flags),
                    "troupe": (python, [troupe, "run"], flags),
                    "troupe without standbys": (python, [troupe, "run"], flags + ["--no-standby"])}
        found = {name: [] for name in commands}
        with Workplace() as place:
            for number in range(options.repeats):
                for name, command in commands.items():
                    found[name].append(measure_once(place, f"{name} {number}", command, options.settle))
        starts = {name: median([start for start, _ in runs]) for name, runs in found.items()}
        restarts = {name: median([restart for _, restart in runs]) for name, runs in found.items()}
        for name in commands:
            figures.add(f"{name}: from the command to the first step", starts[name], "s")
            figures.add(f"{name}: from the kill to the next step", restarts[name], "s")
        share = restarts["troupe"] / restarts["torchrun"]
        figures.add("restart, of torchrun's time", share, "")
        figures.bar(f"first step not later than torchrun's ({starts['troupe'] / starts['torchrun']:.2f} of its time)",
                    starts["troupe"] <= starts["torchrun"])
        figures.bar(f"restart in at most {RESTART_BAR} of torchrun's time ({share:.2f})", share <= RESTART_BAR)

    return script.run("compare-torchrun", options, measured)


if __name__ == "__main__":
    sys.exit(main())
