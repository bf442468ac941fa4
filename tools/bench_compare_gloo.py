#!/usr/bin/env python3
"""The CPU communicator beside Gloo, on this machine in this run: 64 MiB between two ranks, 4 bytes.

    tools/bench compare-gloo [--json] [--mib N] [--repeats N]

Gloo comes with torch from PyPI (tools/peers/requirements.txt) into $TROUPE_PEERS_VENV, or build/peers/venv; that it
cannot be had, or does not run, is a failure. Gloo speaks TCP over loopback in any case; beside it stand the
communicator's own TCP, its shared memory, and shared memory whose buffers are registered.
"""

import os
import sys

from harness import peers, script
from harness.commands import output_of
from harness.workplace import Workplace, build

LARGE = ["all_reduce", "reduce_scatter", "all_gather"]
ROADS = [("registered_spin", "registered, a core each"), ("registered", "registered"), ("shm", "shared memory"),
         ("tcp", "TCP")]
IN_PLACE_GB_S = 10
TIMES_GLOO = 1.5
SMALL_US = 1
SMALL_CROWDED_US = 40
TIMEOUT_S = 240


def troupe(bin_folder, options):
    with Workplace() as place:
        text = output_of([f"{bin_folder}/bench_collective", str(options.mib)], "bench_collective", TIMEOUT_S,
                         place.environment())
    return {name: float(value) for name, value, _ in (line.split() for line in text.splitlines())}


def gloo(python, options):
    with Workplace() as place:
        program = os.path.join(peers.FOLDER, "gloo_rates.py")
        text = output_of([python, program, str(options.mib), str(options.repeats), place.path], "gloo_rates.py",
                         TIMEOUT_S, place.environment())
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: float(row[1]) for row in rows if len(row) == 3}


def compare(figures, options, python, bin_folder):
    # Gloo before and after: what else happens on the machine meets both.
    before, ours, after = gloo(python, options), troupe(bin_folder, options), gloo(python, options)
    theirs = {name: max(before[name], after[name]) for name in before}
    figures.add("memcpy", ours["memcpy"], "GB/s")
    figures.add("naive exchange in place", ours["naive_exchange"], "GB/s")
    figures.add("raw sockets, the same both ways at once", ours["tcp_both_ways"], "GB/s")
    for operation in LARGE:
        figures.add(f"{operation}: Gloo", theirs[operation], "GB/s")
        for road, text in ROADS:
            figures.add(f"{operation}: {text}", ours[f"{operation}_{road}"], "GB/s")
    small = min(before["all_reduce_4_bytes"], after["all_reduce_4_bytes"])
    figures.add("all_reduce of 4 bytes: Gloo", small, "us")
    for name, value in ours.items():
        if name.startswith("all_reduce_4_bytes"):
            figures.add(name.replace("all_reduce_4_bytes_", "all_reduce of 4 bytes: ").replace("_", " "), value, "us")
    for operation in LARGE:
        figures.bar(f"{operation} in place at least {IN_PLACE_GB_S} GB/s",
                    ours[f"{operation}_registered_spin"] >= IN_PLACE_GB_S)
        figures.bar(f"{operation} over TCP at least {TIMES_GLOO} x Gloo",
                    ours[f"{operation}_tcp"] >= TIMES_GLOO * theirs[operation])
    figures.bar(f"4 bytes, a core for each rank: at most {SMALL_US} us",
                ours["all_reduce_4_bytes_2_ranks_spin"] <= SMALL_US)
    figures.bar(f"4 bytes, 4 ranks on 2 cores: at most {SMALL_CROWDED_US} us",
                ours["all_reduce_4_bytes_4_ranks_futex"] <= SMALL_CROWDED_US)


def main():
    parser = script.parser("tools/bench compare-gloo", __doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the large operations (64)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of each of Gloo's measurements (15)")
    options = parser.parse_args()
    return script.run("compare-gloo", options, lambda figures: compare(
        figures, options, peers.python(figures), build("bench_collective")))


if __name__ == "__main__":
    sys.exit(main())
