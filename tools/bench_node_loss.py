#!/usr/bin/env python3
"""What the loss of a machine costs, and what it costs to be ready for it. Machines are network and process namespaces
with a worker node each (needs root).

    tools/bench node-loss [--only price|loss|peer] [--kills 10] [--pairs 5] [--model 15m] [--json]

Price: a step of ZeRO-3 on two machines with a processor each, where each rank's buddy keeps a copy of its state, beside
the same without (troupe.replicas=0), in interleaved pairs: plain and encrypted; and of DDP, where ranks are each other's
copies. Bars: at most 6 %, 10 %, 0.5 % of the step. Loss: all processes of a machine are killed at once, or its cable is
cut before, a spare machine is there: until the end of the first step that was begun afterwards, beyond a normal step.
Bars: p50 at most 1.5 s, no more than 6 s, beyond the failure detector's time-out where no connection closes. Peer: the same
of torchrun, of whose two elastic agents one is killed; one that does not go on within --timeout is told as such. It is
installed from PyPI as for compare-recovery.
"""

import sys

import bench_torchrun_agents
import torture_nodes
from harness import peers, script
from harness.figures import median
from harness.machines import Machines
from harness.run import Run
from harness.workplace import Workplace, build

PRICES = (("ZeRO-3, plain", "zero3", True, 6.0), ("ZeRO-3, encrypted", "zero3", False, 10.0),
          ("DDP, plain", "ddp", True, 0.5))
REPLICAS = ("auto", "0")


def price(figures, bin_folder, options):
    for what, strategy, insecure, bar in PRICES:
        with Workplace(options.keep) as place:
            with Machines(place, bin_folder, 2, insecure=insecure, pinned=True) as machines:
                steps, equal = _pairs(place, bin_folder, options, machines, strategy)
        percent = [(a / b - 1) * 100 for a, b in zip(steps["auto"], steps["0"])]
        figures.add(f"{what}: a step without copies", median(steps["0"]), "ms")
        figures.add(f"{what}: a step with copies", median(steps["auto"]), "ms")
        figures.add(f"{what}: price of copies, median of pairs", median(percent), "%")
        figures.add(f"{what}: price of copies, smallest of a pair", min(percent), "%")
        figures.add(f"{what}: price of copies, largest of a pair", max(percent), "%")
        figures.bar(f"{what}: at most {bar} % of the step", median(percent) <= bar)
        figures.bar(f"{what}: the same weights with and without", equal)


def _pairs(place, bin_folder, options, machines, strategy):
    steps = {replicas: [] for replicas in REPLICAS}
    first, equal = None, True
    for pair in range(options.pairs):
        # Each of the two is the first one as often as the second.
        for replicas in sorted(REPLICAS, reverse=pair % 2 == 1):
            settings = place.settings(options.model, options.steps, troupe__workers=2, troupe__strategy=strategy,
                                      placement_strategy="STRICT_SPREAD", troupe__replicas=replicas)
            run = Run(place, bin_folder, f"{replicas}-{pair}", settings, ["--address", machines.address],
                      machines.inside_hub, machines.environment).start().finish(options.timeout)
            steps[replicas].append(run.step_s() * 1e3)
            first = first or run
            equal = equal and not run.differences(first)
    return steps, equal


def loss(figures, bin_folder, options):
    for strategy in ("ddp", "zero3"):
        for kind in ("closed", "silent"):
            with Workplace(options.keep) as place:
                torture_nodes.torture(figures, place, bin_folder, options, 2, strategy, torture_nodes.Loss(kind),
                                      options.kills)


def peer(figures, bin_folder, options):
    python = peers.python(figures)
    with Workplace(options.keep) as place:
        with Machines(place, bin_folder, 2) as machines:
            bench_torchrun_agents.lose_one(figures, machines, place, python, min(options.timeout, 300))


PARTS = {"price": price, "loss": loss, "peer": peer}


def main():
    parser = script.parser("tools/bench node-loss", __doc__)
    parser.add_argument("--only", choices=PARTS, help="one part (all)")
    parser.add_argument("--kills", type=int, default=10, help="of each kind of loss (10)")
    parser.add_argument("--pairs", type=int, default=5, help="of runs for each price (5)")
    parser.add_argument("--steps", type=int, default=40, help="of a run for a price (40)")
    parser.add_argument("--seed", type=int, default=1, help="of victims and moments (1)")
    parser.add_argument("--model", default="15m", help="15m, small or tiny (15m)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a run may take to end (600)")
    parser.add_argument("--keep", action="store_true", help="keep the folders with the runs")
    options = parser.parse_args()

    def measure(figures):
        bin_folder = build("troupe")
        for part in [options.only] if options.only else PARTS:
            PARTS[part](figures, bin_folder, options)

    return script.run("node-loss", options, measure)


if __name__ == "__main__":
    sys.exit(main())
