#!/usr/bin/env python3
"""A shuffle of data that are many times what the object stores hold, on two machines (network and process namespaces with a
worker node each; needs root), beside what a program without a cluster does with the same bytes on the same disk.

    tools/bench shuffle [--mib 4096] [--store-mib 256] [--parts 64] [--kills 2]

Tasks make chunks and cut them into parts, each an object; others read one part of every chunk. Once undisturbed, and once with
workers that are killed with -9. Bars: at most 1.5 times as long as writing the bytes to files, reading them again and copying
them once in memory; no more bytes come back from disk than are read; the sums are right.
"""

import argparse
import os
import subprocess
import sys
import time

from harness.figures import BAR_NOT_MET, Fault
from harness.machines import Machines
from harness.workplace import Workplace, build

WAIT_S = 1200
BAR = 1.5
PIECE = 16 << 20


def raw_s(folder, mib):
    """Seconds for files of 16 MiB that are written, read again, and copied in memory."""
    chunk = bytearray(os.urandom(1 << 20) * (PIECE >> 20))
    names = [os.path.join(folder, f"raw-{number}") for number in range((mib << 20) // PIECE)]
    started = time.monotonic()
    for name in names:
        with open(name, "wb", buffering=0) as file:
            file.write(chunk)
    for name in names:
        with open(name, "rb", buffering=0) as file:
            file.readinto(chunk)
        os.remove(name)
    into = bytearray(PIECE)
    for _ in names:
        into[:] = chunk
    return time.monotonic() - started


def shuffle(place, bin_folder, machines, options, kills):
    marks = [place.file(f"killed-{number}") for number in range(kills)]
    words = [*machines.inside(1), f"{bin_folder}/bench_shuffle", str(options.mib), str(options.parts), *marks]
    environment = {**place.environment(), **machines.environment, "TROUPE_ADDRESS": machines.address,
                   "TROUPE_TOKEN_FILE": machines.token_file}
    done = subprocess.run(words, env=environment, timeout=WAIT_S, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Fault(f"bench_shuffle ended with {done.returncode}")
    if missing := [mark for mark in marks if not os.path.exists(mark)]:
        raise Fault(f"{len(missing)} workers were not killed")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(prog="tools/bench shuffle", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4096, help="that are shuffled (4096)")
    parser.add_argument("--store-mib", type=int, default=256, help="of each node's object store (256)")
    parser.add_argument("--parts", type=int, default=64, help="into which each chunk is cut (64)")
    parser.add_argument("--kills", type=int, default=2, help="of workers, in the second shuffle (2)")
    options = parser.parse_args()
    met = True
    try:
        bin_folder = build("bench_shuffle", "troupe")
        for kills in (0, options.kills):
            with Workplace() as place:
                raw = raw_s(place.file(""), options.mib)
                store = ("--object-store-memory", f"{options.store_mib}MiB")
                with Machines(place, bin_folder, 2, insecure=True, worker_options=store) as machines:
                    told = shuffle(place, bin_folder, machines, options, kills)
            what = f"{options.mib} MiB through stores of {options.store_mib} MiB, {kills} workers killed"
            print(f"{what}: written, read and copied without a cluster {raw:.2f} s", flush=True)
            print(f"{what}: {told['whole_s']:.2f} s, {told['whole_s'] / raw:.2f} times that (bar {BAR}); "
                  f"until all was cut {told['cut_s']:.2f} s", flush=True)
            print(f"{what}: back from disk {told['restored_mib']:.0f} MiB", flush=True)
            met = met and told["whole_s"] <= BAR * raw and told["restored_mib"] <= options.mib
    except Fault as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return BAR_NOT_MET
    return 0 if met else BAR_NOT_MET


if __name__ == "__main__":
    sys.exit(main())
