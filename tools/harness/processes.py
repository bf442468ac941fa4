"""Processes as /proc shows them. Nothing is asked of the program itself."""

import os
import signal
import time

MARK = "TROUPE_HARNESS_MARK"


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended meanwhile, or is not ours
        return b""


def arguments(pid):
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")[:-1]


def state(pid):
    """One letter: R, S, D, T (stopped), Z (ended, not reaped); '' where there is no such process."""
    text = _read(f"/proc/{pid}/stat")
    return text[text.rfind(b")") + 2 : text.rfind(b")") + 3].decode()


def parent(pid):
    text = _read(f"/proc/{pid}/stat")
    return int(text[text.rfind(b")") + 4 :].split()[0]) if text else 0


def variable(pid, name):
    """A variable of its environment as it was when it began; None where it has none, or has ended."""
    wanted = name.encode() + b"="
    found = [entry for entry in _read(f"/proc/{pid}/environ").split(b"\0") if entry.startswith(wanted)]
    return found[0][len(wanted):].decode(errors="replace") if found else None


def marked(mark):
    """The processes that run with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [
        pid
        for pid in pids
        if wanted in _read(f"/proc/{pid}/environ").split(b"\0") and state(pid) not in ("", "Z")
    ]


def actors(mark, kind):
    """pid -> rank of the workplace's actor processes of a class; rank -1: it has none."""
    found = {}
    for pid in marked(mark):
        words = arguments(pid)
        if "--actor" not in words or words[words.index("--actor") + 1] != kind:
            continue
        rank = words[words.index("--rank") + 1] if "--rank" in words else "-1"
        found[pid] = int(rank)
    return found


def trainers(mark):
    return actors(mark, "TrainerActor")


def cpu_s(pid):
    """Processor time of all its threads, in ticks of 10 ms."""
    text = _read(f"/proc/{pid}/stat")
    fields = text[text.rfind(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0


def run_ns(pid):
    """Processor time of all its living threads, as the scheduler counts it."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    texts = [_read(f"/proc/{pid}/task/{task}/schedstat").split() for task in tasks]
    return sum(int(text[0]) for text in texts if text)


def sleeps(pid):
    """How often its threads have gone to sleep by themselves so far."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    lines = [line for task in tasks for line in _read(f"/proc/{pid}/task/{task}/status").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(b"voluntary_ctxt_switches"))


def busiest(pids, count, over_s):
    """The `count` processes that use most processor time in the next `over_s` seconds. Ranks
    compute, spares wait: so they are told apart without asking anybody."""
    before = {pid: cpu_s(pid) for pid in pids}
    time.sleep(over_s)
    used = {pid: cpu_s(pid) - before[pid] for pid in pids if state(pid) not in ("", "Z")}
    return sorted(used, key=used.get, reverse=True)[:count]


def pss_kib(pid):
    """Its share of what is resident; 0 where it has ended."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1])
    return 0


def held_kib(pid):
    """What is resident and its own: without pages of files, whose shares change with who else has them."""
    lines = [line.split() for line in _read(f"/proc/{pid}/smaps_rollup").splitlines()]
    return sum(int(words[1]) for words in lines if words[0] in (b"Pss_Anon:", b"Pss_Shmem:"))


def send(pid, number):
    """Whether the process was there to be told."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end_all(mark, timeout_s=10):
    """Kills what is left of a workplace. The number of processes that had to be."""
    ended = set()
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        left = [pid for pid in marked(mark) if pid != os.getpid()]
        if not left:
            return len(ended)
        for pid in left:
            send(pid, signal.SIGKILL)
            ended.add(pid)
        time.sleep(0.02)
    raise RuntimeError(f"processes {left} do not end")


def memfd_bytes(pids):
    """Memory behind the shared-memory files that the processes hold, each counted once."""
    held = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                if os.readlink(path).startswith("/memfd:"):
                    facts = os.stat(path)
                    held[facts.st_ino] = facts.st_blocks * 512
            except OSError:
                continue
    return sum(held.values())
