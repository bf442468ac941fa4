#!/usr/bin/env python3
"""Actors, objects and tasks in Troupe beside those of Ray, on this machine in this run: start, calls,
creation, what a kill costs, put, get, wait, tasks, memory at rest.

    tools/bench compare-ray [--json] [--repeats N]

Ray comes from PyPI (tools/peers/requirements.txt) into $TROUPE_PEERS_VENV, or build/peers/venv; that
it cannot be had, or does not run, is a failure. Everything runs in namespaces of its own, with
loopback alone, and ends with them. Ray's own way of measuring (microbenchmark): 1,000 asynchronous
calls are sent, then awaited; Troupe keeps 1,000 on their way. Processes are where the kernel puts
them, but for Troupe's "a core for each side", which pins both.
"""

import json
import os
import re
import secrets
import subprocess
import sys
import time

from harness import peers, processes, script
from harness.cluster import Cluster
from harness.figures import Fault
from harness.workplace import Workplace, build

# What is compared: its name in Ray's programs, in ours, and whether more is better.
ROWS = [
    ("start: one node, ready for actors", "start", "embedded head ready and node joined p50", False),
    ("synchronous call, p50", "sync p50", "sync call, same node, spinning p50", False),
    ("synchronous call, p99", "sync p99", "sync call, same node, spinning p99", False),
    ("asynchronous calls, one caller, one actor", "async", "async calls 1 to 1, same node", True),
    ("synchronous calls with 1 MiB", "1 MiB", "sync calls with a 1 MiB argument", True),
    ("create an actor, to its first answer, p50", "create", "create a process actor to first answer p50", False),
    ("kill -9 to the next process's first answer, p50", "respawn",
     "kill -9 to the respawned actor's first answer p50", False),
    ("put 100 MiB, memory that was used before", "put 100 MiB", "put, 100 MiB, memory that was used before", True),
    ("get 100 MiB, first and last byte read", "get 100 MiB", "get, 102400 KiB, mapped already", False),
    ("wait for 1,000 references", "wait 1000", "wait for 1,000 references", False),
    ("10,000 references as arguments of one call", "10000 references",
     "10,000 references as arguments of one call", False),
    ("a task, one after the other, p50", "task p50", "a task, one after the other, p50", False),
    ("tasks, 1,000 under way", "tasks", "tasks, 1,000 under way", True),
    ("3,000 results of one task, and read", "3000 results",
     "3,000 results of one task, each an object of its own, and read", False),
]
IDLE_S = 5
START_S = 60


def run(place, command, what, environment=None, timeout_s=600):
    log = place.file(what.replace(" ", "-") + ".log")
    with open(log, "wb") as errors:
        try:
            done = subprocess.run(command, env={**place.environment(), **(environment or {})}, cwd=place.path,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=timeout_s,
                                  check=False)
        except subprocess.TimeoutExpired:
            raise Fault(f"{what} did not end within {timeout_s} s") from None
    if done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            raise Fault(f"{what} failed with code {done.returncode}: {file.read()[-1500:]}")
    return done.stdout.decode(errors="replace")


def lines(text):
    """The "name value unit" lines of a peer's program, among whatever its system prints."""
    found = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 3:
            found[fields[0]] = (float(fields[1]), fields[2])
    return found


def ray_environment(python):
    return {"PATH": os.path.dirname(python) + ":" + os.environ["PATH"], "RAY_USAGE_STATS_ENABLED": "0"}


def ray_python(python, options):
    with Workplace() as place:
        program = os.path.join(peers.FOLDER, "ray_calls.py")
        return lines(run(place, [python, program, str(options.repeats)], "Ray Python", ray_environment(python)))


def ray_cpp(python, options):
    """Builds the program against the wheel's library, whose ABI is the old one, and runs it."""
    asked = subprocess.run([python, "-c", "import ray, os; print(os.path.join(os.path.dirname(ray.__file__), 'cpp'))"],
                           capture_output=True, text=True, check=False)
    library = asked.stdout.strip()
    source = os.path.join(peers.FOLDER, "ray_calls.cc")
    flags = ["-O2", "-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{library}/include"]
    link = [f"-L{library}/lib", "-lray_api", f"-Wl,-rpath,{library}/lib", "-lpthread"]
    with Workplace() as place:
        shared, program = place.file("ray_calls.so"), place.file("ray_calls")
        run(place, ["g++", *flags, "-fPIC", "-shared", "-o", shared, source, *link], "building for Ray C++")
        run(place, ["g++", *flags, "-o", program, source, *link], "building for Ray C++")
        # The C++ driver does not find the token that its own head makes: both are given one.
        environment = {**ray_environment(python), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
                       "RAY_CALLS_REPEATS": str(options.repeats)}
        head = "--num-cpus=2 --include-dashboard=false --object-store-memory=1000000000"
        return lines(run(place, [program, f"--ray_code_search_path={shared}", f"--ray_head_args={head}"],
                         "Ray C++", environment))


def ray_memory_mb(python):
    """Of everything that `ray start --head` leaves running."""
    with Workplace() as place:
        command = [os.path.join(os.path.dirname(python), "ray"), "start", "--head", "--node-ip-address=127.0.0.1",
                   "--port=6399", "--num-cpus=2", "--object-store-memory=1000000000", "--include-dashboard=false",
                   "--disable-usage-stats"]
        start = time.monotonic()
        # Elsewhere than Ray's own folder, where it leaves word of a cluster that later programs would join.
        run(place, command, "ray start", {**ray_environment(python), "RAY_TMPDIR": place.path}, START_S)
        ready_ms = (time.monotonic() - start) * 1e3
        time.sleep(IDLE_S)
        pids = processes.marked(place.mark)
        return ready_ms, len(pids), sum(processes.pss_kib(pid) for pid in pids) * 1024 / 1e6


def troupe_memory_mb(bin_folder):
    with Workplace() as place:
        start = time.monotonic()
        with Cluster(place, bin_folder, 2, watch=False):
            ready_ms = (time.monotonic() - start) * 1e3
            time.sleep(IDLE_S)
            pids = processes.marked(place.mark)
            return ready_ms, len(pids), sum(processes.pss_kib(pid) for pid in pids) * 1024 / 1e6


def troupe(bin_folder, options):
    with Workplace() as place:
        text = run(place, [f"{bin_folder}/bench_actors", "--json", "--repeats", str(options.repeats)], "Troupe")
        more = run(place, [f"{bin_folder}/bench_objects", "--only", "one-node", "--repeats", str(options.repeats)], "objects")
        more += run(place, [f"{bin_folder}/bench_tasks", str(options.repeats)], "tasks")
    ours = {name: (figure["value"], figure["unit"]) for name, figure in json.loads(text).items()}
    for line in more.splitlines():
        name, value, unit = re.fullmatch(r"\s*(.*?)\s{2,}([-+.0-9e]+) (\S*).*", line).groups()
        ours[name] = (float(value), unit)
    return ours


def show(figures, options, text, unit, more, values):
    """One line of the table; with --json, figures. `values`: Troupe's, Ray C++'s, Ray Python's; None: not measured."""
    if options.json:
        for name, value in zip(("Troupe", "Ray C++", "Ray Python"), values):
            if value is not None:
                figures.add(f"{text}: {name}", value, unit)
        return
    ours, others = values[0], [value for value in values[1:] if value is not None]
    times = min(ours / value if more else value / ours for value in others)
    cells = "".join(f"{value:>12.4g}" if value is not None else f"{'-':>12}" for value in values)
    figures.note(f"{text:<50}{cells} {unit:<4}{times:>9.3g} x")


def compare(figures, options, python, bin_folder):
    ours = troupe(bin_folder, options)
    in_python = ray_python(python, options)
    in_cpp = ray_cpp(python, options)
    if not options.json:
        figures.note(f"{'':<50}{'Troupe':>12}{'Ray C++':>12}{'Ray Python':>12}")
    for text, theirs, mine, more in ROWS:
        value, unit = ours[mine]
        show(figures, options, text, unit, more,
             [value, *[peer.get(theirs, (None, unit))[0] for peer in (in_cpp, in_python)]])
    ready, count, memory = troupe_memory_mb(bin_folder)
    their_ready, their_count, their_memory = ray_memory_mb(python)
    show(figures, options, "head and node: command to ready", "ms", False, [ready, None, their_ready])
    show(figures, options, f"the same at rest: PSS of {count} and {their_count} processes", "MB", False,
         [memory, None, their_memory])


def versions(python):
    asked = subprocess.run([python, "-c", "import ray, sys; print(ray.__version__, sys.version.split()[0])"],
                           capture_output=True, text=True, check=False)
    return "Ray {} (Python {})".format(*asked.stdout.split())


def main():
    inside, arguments = peers.arguments()
    parser = script.parser("tools/bench compare-ray", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each measurement, at least 5 (5)")
    options = parser.parse_args(arguments)

    def measure(figures):
        python = peers.python(figures)
        bin_folder = build("troupe", "bench_actors", "bench_objects", "bench_tasks")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        figures.note(f"{versions(python)}, {len(os.sched_getaffinity(0))} processors")
        compare(figures, options, python, bin_folder)

    return script.run("compare-ray", options, measure)


if __name__ == "__main__":
    sys.exit(main())
