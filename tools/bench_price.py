#!/usr/bin/env python3
"""What recovery costs a run in which nothing dies: the same training with and without transactions,
progress records and watchdogs (CMake's TROUPE_RECOVERY), in interleaved pairs.

    tools/bench price [--pairs 7] [--steps 40] [--model 15m] [--world 2] [--json]

A step: the median time between two steps' lines. The price: the median of the pairs' ratios. Bar:
at most 2 % of the step. Both builds give the same weights.
"""

import os
import subprocess
import sys

from harness import script
from harness.figures import Fault, median
from harness.run import undisturbed
from harness.workplace import ROOT, Workplace

BAR_PERCENT = 2.0
BUILDS = {"with": "ON", "without": "OFF"}


def build(name, recovery):
    """A build folder of its own: neither is the one that is worked with."""
    folder = os.path.join(ROOT, "build", "price-" + name)
    for command in (["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                     "-DTROUPE_BUILD_TESTS=OFF", f"-DTROUPE_RECOVERY={recovery}"],
                    ["cmake", "--build", folder, "--target", "troupe"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fault(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return os.path.join(folder, "bin")


def measure(figures, options, bins):
    steps = {name: [] for name in bins}
    with Workplace() as place:
        settings = place.settings(options.model, options.steps, troupe__workers=options.world,
                                  troupe__strategy=options.strategy)
        first, equal = None, True
        for pair in range(options.pairs):
            # Each of the two is the first one as often as the second.
            for name in sorted(bins, reverse=pair % 2 == 1):
                run = undisturbed(place, bins[name], settings, options.timeout, f"{name}-{pair}")
                steps[name].append(run.step_s() * 1e3)
                first = first or run
                equal = equal and not run.differences(first)
    return steps, equal


def report(figures, steps, equal):
    percent = [(a / b - 1) * 100 for a, b in zip(steps["with"], steps["without"])]
    for name in BUILDS:
        figures.add(f"a step {name} recovery", median(steps[name]), "ms")
        figures.add(f"a step {name} recovery, fastest run", min(steps[name]), "ms")
    figures.add("price of recovery, median of pairs", median(percent), "%")
    figures.add("price of recovery, smallest and", min(percent), "%")
    figures.add("price of recovery, largest of a pair", max(percent), "%")
    figures.bar(f"at most {BAR_PERCENT:.0f} % of the step", median(percent) <= BAR_PERCENT)
    figures.bar("both builds give the same weights", equal)


def main():
    parser = script.parser("tools/bench price", __doc__)
    parser.add_argument("--pairs", type=int, default=7, help="of runs (7)")
    parser.add_argument("--steps", type=int, default=40, help="of a run (40)")
    parser.add_argument("--model", default="15m", help="15m, small or tiny (15m)")
    parser.add_argument("--strategy", default="ddp", help="troupe.strategy (ddp)")
    parser.add_argument("--world", type=int, default=2, help="ranks (2)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that a run may take (180)")
    options = parser.parse_args()
    return script.run("price", options, lambda figures: report(figures, *measure(
        figures, options, {name: build(name, recovery) for name, recovery in BUILDS.items()})))


if __name__ == "__main__":
    sys.exit(main())
