#!/usr/bin/env python3
"""An object's way from one machine to another and to four, beside raw TCP of the same run. Machines are network and
process namespaces with a worker node each (needs root).

    tools/bench object-transfers [--mib 1024] [--slow-mib 100] [--megabytes-per-s 100] [--repeats 3]

Without encryption; then with links of so many megabytes per second in each direction. Bars: an object to another machine at
least 0.8 times as fast as raw TCP; to four in at most 1.15 times the time of four raw transfers; over slow links to four in
at most 1.6 times the time of one.
"""

import argparse
import subprocess
import sys

from harness.figures import BAR_NOT_MET, Fault
from harness.machines import Machines
from harness.workplace import Workplace, build

COUNT = 5
WAIT_S = 900


def measure(place, bin_folder, machines, mib, repeats):
    # A driver needs a node on its machine: the one whose objects are read last.
    words = [*machines.inside(COUNT - 1), f"{bin_folder}/bench_objects", "--mib", str(mib), "--repeats", str(repeats), "--nodes",
             str(COUNT), "--source", machines.address_of(0)]
    environment = {**place.environment(), **machines.environment, "TROUPE_ADDRESS": machines.address,
                   "TROUPE_TOKEN_FILE": machines.token_file}
    done = subprocess.run(words, env=environment, timeout=WAIT_S, check=False)
    if done.returncode != 0:
        raise Fault(f"bench_objects ended with {done.returncode}")


def main():
    parser = argparse.ArgumentParser(prog="tools/bench object-transfers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="of the object (1024)")
    parser.add_argument("--slow-mib", type=int, default=100, help="of that which goes over slow links; 0: none does (100)")
    parser.add_argument("--megabytes-per-s", type=int, default=100, help="of a slow link (100)")
    parser.add_argument("--repeats", type=int, default=3, help="of each transfer (3)")
    options = parser.parse_args()
    try:
        bin_folder = build("bench_objects", "troupe")
        with Workplace() as place, Machines(place, bin_folder, COUNT, insecure=True) as machines:
            measure(place, bin_folder, machines, options.mib, options.repeats)
            if options.slow_mib == 0:
                return 0
            for number in range(COUNT):
                machines.limit(number, options.megabytes_per_s)
            print(f"links of {options.megabytes_per_s} MB/s:", flush=True)
            measure(place, bin_folder, machines, options.slow_mib, options.repeats)
    except Fault as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return BAR_NOT_MET
    return 0


if __name__ == "__main__":
    sys.exit(main())
