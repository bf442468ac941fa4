"""What strikes a run from outside: it knows nothing of what the program is doing at that moment."""

import random
import signal
import time

from . import processes
from .figures import Fault

# The longest wait for a step after a strike: a hang is found in 3 s, a slow machine needs more.
RECOVERY_TIMEOUT_S = 60


class Strike:
    def __init__(self, at, pids, last_step):
        self.at = at
        self.pids = pids
        self.last_step = last_step  # finished before it


class Killer:
    """`world` ranks, and as many spares as the run was given."""

    def __init__(self, run, seed, world, spares=0):
        self.run = run
        self.random = random.Random(seed)
        self.world = world
        self.spares = spares
        self.strikes = []
        self.killed_by_others = 0  # by the program itself, because of what we did to them

    def all_there(self, timeout_s=RECOVERY_TIMEOUT_S):
        """Until every rank, and every spare, has a process."""
        until = time.monotonic() + timeout_s
        while len(self.run.ranks()) != self.world + self.spares:
            if self.run.ended_at is not None:
                raise Fault(f"run {self.run.name} ended before its time; {self.run.last_words()}")
            if time.monotonic() > until:
                raise Fault(f"run {self.run.name}: {len(self.run.ranks())} trainers instead of "
                            f"{self.world} and {self.spares} spare(s) after {timeout_s} s")
            time.sleep(0.005)

    def ranks(self, over_s=0.15):
        """The processes that are ranks now; spares are those that do not compute."""
        by_rank = self.run.ranks()
        pids = sorted(by_rank, key=by_rank.get)
        return processes.busiest(pids, self.world, over_s) if self.spares else pids

    def kill(self, pids):
        """kill -9, all of them as one as can be."""
        last_step = self.run.last_step()
        at = time.monotonic()
        hit = [pid for pid in pids if processes.send(pid, signal.SIGKILL)]
        if hit:
            self.strikes.append(Strike(at, hit, last_step))
        return hit

    def kill_some(self, count=1):
        """`count` ranks at once, chosen by chance."""
        pids = self.ranks()
        return self.kill(self.random.sample(pids, min(count, len(pids))))

    def further_steps(self, count, timeout_s=RECOVERY_TIMEOUT_S):
        """Waits until so many more steps are finished than now. False: the run has ended."""
        return self.run.wait_for_step(self.run.last_step() + count, timeout_s)

    def random_moment(self, step_s):
        self.run.random_moment(self.random, step_s)

    @property
    def killed(self):
        return sum(len(strike.pids) for strike in self.strikes) + self.killed_by_others


def stop_for(pid, seconds):
    """A process that is stopped for a while; it may have been killed meanwhile."""
    processes.send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    processes.send(pid, signal.SIGCONT)


def slow_down(pid, seconds, slice_s=0.02):
    """A process that gets half of the time, for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and processes.state(pid) not in ("", "Z"):
        stop_for(pid, slice_s)
        time.sleep(slice_s)
