#!/usr/bin/env python3
"""What a kill costs a training run, Troupe beside its peers: wall time of the disturbed run minus
that of the undisturbed one. The same model and batches (15.2 M parameters, 4 × 256 tokens a rank,
fp32, two ranks with one thread each), a checkpoint every 10 steps, `kill -9` of rank 1 when it has
finished step 17.

    tools/bench compare-recovery [--json] [--repeats N] [--peer-repeats N] [--steps N]

The peers are installed from PyPI (tools/peers/requirements.txt) into $TROUPE_PEERS_VENV, or
build/peers/venv; one that cannot be had is a failure. A peer's run that does not end within
--timeout is ended, told as such, and counted as if it had ended then: what its kill costs is at
least that. Everything runs in namespaces of its own, with loopback alone, and ends with them. Bars:
at most a tenth of torchrun's, a fifteenth of Ray Train's.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from harness import peers, processes, script
from harness.figures import Fault, median
from harness.lines import LineWatch
from harness.run import Run
from harness.workplace import Workplace, build

SAVE_EVERY, KILL_AFTER = 10, 17
# Wall times of equal runs differ by so much: a smaller difference is not divided by.
NOISE_S = 0.1


class Hang(Fault):
    """A run that did not end within its time, and was ended."""


class PeerRun:
    """A peer's job, known by the lines that its ranks write."""

    def __init__(self, place, name, command, timeout_s):
        self._folder = place.file(name)
        os.makedirs(self._folder)
        self._events = os.path.join(self._folder, "events")
        self._log = place.file(name + ".log")
        self.name = name
        self._command = [word.format(events=self._events, folder=self._folder) for word in command]
        self._place = place
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._steps = []  # (rank, pid, step) in the order in which they came

    def _on_line(self, _, line, __):
        event = json.loads(line)
        with self._changed:
            self._steps.append((event["rank"], event["pid"], event["step"]))
            self._changed.notify_all()

    def wall_s(self, steps, kill):
        """From the command to its end; `kill`: rank 1 after step KILL_AFTER."""
        watch = LineWatch([self._events], self._on_line)
        environment = {**self._place.environment(), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
                       "PATH": os.path.dirname(self._command[0]) + ":" + os.environ["PATH"]}
        started = time.monotonic()
        with open(self._log, "wb") as log:
            process = subprocess.Popen(self._command, env=environment, cwd=self._folder, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        victim = self._kill_when_due(process, started) if kill else None
        try:
            process.wait(max(1, started + self._timeout_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Hang(f"{self.name} did not end within {self._timeout_s:.0f} s; {self.last_words()}") from None
        finally:
            watch.close()
            processes.end_all(self._place.mark)
        wall = time.monotonic() - started
        self._check(process.returncode, steps, victim)
        return wall

    def _kill_when_due(self, process, started):
        def victims():
            return [pid for rank, pid, step in self._steps if rank == 1 and step == KILL_AFTER]

        with self._changed:
            while not victims():
                if process.poll() is not None or time.monotonic() > started + self._timeout_s:
                    raise Fault(f"{self.name}: step {KILL_AFTER} was not seen; {self.last_words()}")
                self._changed.wait(0.2)
            pid = victims()[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def _check(self, code, steps, victim):
        """It must have trained to its end, in another process where one was killed."""
        last = {rank: (pid, step) for rank, pid, step in self._steps}
        if code != 0 or [last.get(rank, (0, 0))[1] for rank in (0, 1)] != [steps, steps]:
            raise Fault(f"{self.name} ended with code {code} at {last}; {self.last_words()}")
        if victim is not None and last[1][0] == victim:
            raise Fault(f"{self.name}: rank 1 was not replaced")

    def steps_again(self):
        """Steps of rank 1 that were done more than once."""
        mine = [step for rank, _, step in self._steps if rank == 1]
        return len(mine) - len(set(mine))

    def last_words(self):
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return "its last words:\n    " + "\n    ".join(file.read().strip().splitlines()[-8:])


def troupe_settings(place, steps):
    return place.settings("15m", steps, save_strategy="steps", save_steps=SAVE_EVERY, save_total_limit=2,
                          troupe__workers=2, troupe__strategy="ddp")


def troupe_wall_s(place, bin_folder, steps, kill, name, timeout_s):
    run = Run(place, bin_folder, name, troupe_settings(place, steps)).start()
    if kill:
        if not run.wait_for_step(KILL_AFTER, timeout_s):
            raise Fault(f"{name} ended before step {KILL_AFTER}; {run.last_words()}")
        pid = next(pid for pid, rank in run.ranks().items() if rank == 1)
        os.kill(pid, signal.SIGKILL)
    run.finish(timeout_s)
    if kill and not run.events("recovered"):
        raise Fault(f"{name}: nothing was recovered from; {run.last_words()}")
    return run


def cost_of_troupe(figures, options, bin_folder):
    plain, killed = [], []
    with Workplace() as place:
        for i in range(options.repeats):
            plain.append(troupe_wall_s(place, bin_folder, options.steps, False, f"plain-{i}", options.timeout))
            killed.append(troupe_wall_s(place, bin_folder, options.steps, True, f"killed-{i}", options.timeout))
        for run in killed:
            for difference in run.differences(plain[0]):
                figures.note(f"troupe: {difference}")
        equal = all(not run.differences(plain[0]) for run in killed)
    figures.bar("Troupe: the disturbed run's weights are the undisturbed one's", equal)
    return report(figures, "Troupe", [run.wall_s for run in plain], [run.wall_s for run in killed])


def cost_of_peer(figures, options, what, command):
    """What a kill costs it; None where a run in which nobody was killed did not end either."""
    plain, killed, again, hung = [], [], 0, 0
    for _ in range(options.peer_repeats):
        with Workplace() as place:
            try:
                plain.append(PeerRun(place, "plain", command, options.timeout).wall_s(options.steps, False))
            except Hang as hang:
                figures.note(f"{what}, undisturbed: {hang}")
                continue
            run = PeerRun(place, "killed", command, options.timeout)
            try:
                killed.append(run.wall_s(options.steps, True))
            except Hang as hang:
                figures.note(f"{what}, after the kill: {hang}")
                killed.append(options.timeout)
                hung += 1
            again = run.steps_again()
    figures.add(f"{what}: runs that hung, and were ended after {options.timeout:.0f} s",
                hung + options.peer_repeats - len(plain), "runs")
    if not plain:
        return None
    cost = report(figures, what, plain, killed)
    figures.add(f"{what}: steps done again", again, "steps")
    return cost


def report(figures, what, plain, killed):
    cost = median([b - a for a, b in zip(plain, killed)])
    figures.add(f"{what}: undisturbed run", median(plain), "s")
    figures.add(f"{what}: disturbed run", median(killed), "s")
    figures.add(f"{what}: what the kill costs", cost, "s")
    return cost


def warm_up(python):
    """Reads the peers' libraries from disk once, so that the first run is not charged for it."""
    subprocess.run([python, "-c", "import ray.train.torch, torch, transformers.models.llama"],
                   capture_output=True, timeout=120, check=False)


def compare(figures, options, python, bin_folder):
    bin_of_peers = os.path.dirname(python)
    job = ["{events}", "{folder}", str(options.steps), str(SAVE_EVERY)]
    commands = {
        "torchrun elastic, DDP": (10, [os.path.join(bin_of_peers, "torchrun"), "--standalone", "--nproc-per-node=2",
                                       "--max-restarts=3", os.path.join(peers.FOLDER, "elastic_ddp.py"), *job]),
        "Ray Train": (15, [python, os.path.join(peers.FOLDER, "ray_train.py"), *job]),
    }
    ours = cost_of_troupe(figures, options, bin_folder)
    warm_up(python)
    for what, (times, command) in commands.items():
        theirs = cost_of_peer(figures, options, what, command)
        if theirs is None:
            figures.note(f"{what}: not compared, since no run of it ended by itself")
            continue
        ratio = theirs / max(ours, NOISE_S)
        figures.add(f"{what}: times what it costs Troupe", ratio, "")
        figures.bar(f"a kill costs Troupe at most 1/{times} of what it costs {what}", ratio >= times)


def main():
    inside, arguments = peers.arguments()
    parser = script.parser("tools/bench compare-recovery", __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs of Troupe (3)")
    parser.add_argument("--peer-repeats", type=int, default=1, help="pairs of runs of each peer (1)")
    parser.add_argument("--steps", type=int, default=25, help="of a run (25)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that a run may take (180)")
    options = parser.parse_args(arguments)

    def measure(figures):
        if options.steps < KILL_AFTER + 3:
            raise Fault(f"--steps must be at least {KILL_AFTER + 3}")
        python = peers.python(figures)
        bin_folder = build("troupe")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        compare(figures, options, python, bin_folder)

    return script.run("compare-recovery", options, measure)


if __name__ == "__main__":
    sys.exit(main())
