#!/usr/bin/env python3
"""How long a killed rank holds a run up: `kill -9` at random moments, from outside.

    tools/bench recovery [--kills 20] [--seed 1] [--spares 0,1] [--json]

A Llama of 15.2 M parameters, 4 × 256 tokens a rank, two ranks with one thread each, without and
with a spare process (troupe.spares). Recovery: from the kill to the end of the first step that was
begun after it, minus a normal step (the median of the run). Beside it what the run's own
events.jsonl says of its parts. Bars: p50 at most 300 ms without, 120 ms with a spare; never more
than 1 s; no step lost, at most one computed again; the undisturbed run's weights.
"""

import json
import sys

from harness import results, script
from harness.figures import Fault, median, percentile
from harness.killer import RECOVERY_TIMEOUT_S, Killer
from harness.run import Run, undisturbed
from harness.workplace import Workplace, build

WORLD = 2
P50_BAR_MS = {0: 300, 1: 120}
MAX_BAR_MS = 1000
# The parts of a recovery in events.jsonl, in their order.
PARTS = ("detected_after_ms", "respawn_ms", "attach_ms", "reform_ms", "first_step_ms")
# Steps between kills: a spare that was used is followed by another meanwhile.
STEPS_BETWEEN = (3, 5)
STEPS_AFTER = 4


def steps_for(kills):
    """The run's steps: more than the kills can need; it is stopped by its own end."""
    return 3 + kills * (STEPS_BETWEEN[1] + 1) + STEPS_AFTER


def strike_all(run, killer, kills, step_s):
    run.wait_for_step(3, RECOVERY_TIMEOUT_S)
    for _ in range(kills):
        if not killer.further_steps(killer.random.randint(*STEPS_BETWEEN)):
            raise Fault(f"run {run.name} ended before its last kill; {run.last_words()}")
        killer.all_there()
        ranks = killer.ranks(over_s=step_s)
        killer.random_moment(step_s)
        killer.kill([killer.random.choice(ranks)])


def recovery_ms(run, strike, recovered, step_s):
    """One figure a kill. The step under way at the kill may stand without being computed again: the
    one after it is then the first that was begun after the kill."""
    first = strike.last_step + 1 + (0 if results.recomputed_steps(recovered) else 1)
    if run.step_at[first] - strike.at < step_s / 2:
        first += 1  # its line was on its way when the process died
    return (run.step_at[first] - strike.at - step_s) * 1e3


def measure(figures, bin_folder, options, spares):
    what = f"{spares} spare(s)" if spares else "no spare"
    with Workplace(options.keep) as place:
        steps = steps_for(options.kills)
        settings = place.settings(options.model, steps, troupe__workers=WORLD, troupe__strategy=options.strategy)
        plain = undisturbed(place, bin_folder, settings, options.timeout) if options.check else None
        run = Run(place, bin_folder, "killed", {**settings, "troupe.spares": spares} if spares else settings).start()
        killer = Killer(run, options.seed, WORLD, spares)
        run.wait_for_step(6, RECOVERY_TIMEOUT_S)
        strike_all(run, killer, options.kills, run.step_s())
        run.finish(options.timeout)
        recovered = [event for event, _ in run.events("recovered")]
        if len(recovered) != len(killer.strikes):
            raise Fault(f"{what}: {len(killer.strikes)} kills, {len(recovered)} recoveries in events.jsonl")
        step_s = run.step_s()
        figures.add(f"{what}: a normal step", step_s * 1e3, "ms")
        report(figures, what, spares, [recovery_ms(run, *pair, step_s) for pair in zip(killer.strikes, recovered)])
        report_parts(figures, what, recovered)
        costly = [event for event in recovered if event["lost_steps"] or results.recomputed_steps(event) > 1]
        for event in costly:
            figures.note(f"{what}: {json.dumps(event)}")
        if run.repeated:
            figures.note(f"{what}: steps {run.repeated} were computed again after they had been finished")
        figures.bar(f"{what}: no step lost, at most one computed again", not costly and not run.repeated)
        if plain:
            for difference in run.differences(plain):
                figures.note(f"{what}: {difference}")
            figures.bar(f"{what}: weights equal to the undisturbed run's", not run.differences(plain))


def report(figures, what, spares, values):
    figures.add(f"{what}: recovery beyond a normal step, p50", median(values), "ms")
    figures.add(f"{what}: recovery beyond a normal step, p90", percentile(values, 0.9), "ms")
    figures.add(f"{what}: recovery beyond a normal step, max", max(values), "ms")
    bar = P50_BAR_MS[min(spares, 1)]
    figures.bar(f"{what}: p50 at most {bar} ms", median(values) <= bar)
    figures.bar(f"{what}: max at most {MAX_BAR_MS} ms", max(values) <= MAX_BAR_MS)


def report_parts(figures, what, recovered):
    for part in PARTS:
        values = [event[part] for event in recovered if part in event]
        if not values:
            raise Fault(f"{what}: events.jsonl tells {part} of no recovery")
        figures.add(f"{what}: {part[:-3].replace('_', ' ')}, median", median(values), "ms")
        figures.add(f"{what}: {part[:-3].replace('_', ' ')}, max", max(values), "ms")


def main():
    parser = script.parser("tools/bench recovery", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each kind of run (20)")
    parser.add_argument("--seed", type=int, default=1, help="of victims and moments (1)")
    parser.add_argument("--spares", default="0,1", help="troupe.spares of the runs (0,1)")
    parser.add_argument("--model", default="15m", help="15m, small or tiny (15m)")
    parser.add_argument("--strategy", default="ddp", help="troupe.strategy (ddp)")
    parser.add_argument("--check", action="store_true", help="compare with an undisturbed run, too")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a run may take to end (300)")
    parser.add_argument("--keep", action="store_true", help="keep the folders with the runs")
    options = parser.parse_args()

    def all_spares(figures):
        bin_folder = build("troupe")
        for spares in options.spares.split(","):
            measure(figures, bin_folder, options, int(spares))

    return script.run("recovery", options, all_spares)


if __name__ == "__main__":
    sys.exit(main())
