"""tools/torture kills, together, stops: what a run comes to when its ranks are struck from outside."""

import signal
import time

from harness import processes, results
from harness.figures import Fault, median
from harness.killer import RECOVERY_TIMEOUT_S, Killer
from harness.run import Run, undisturbed

# Steps that the run has left after the last strike: it must recover before it ends.
_STEPS_AFTER = 15


def judge(figures, run, reference, killer, what):
    """The bars of every disturbed run: equal to the undisturbed one, nothing lost, nothing more
    done again than the step under way."""
    for difference in run.differences(reference):
        figures.note(f"  {what}: {difference}")
    figures.bar(f"{what}: weights and every step's loss and norm equal to the undisturbed run's",
                not run.differences(reference))
    recovered = results.events(run.folder, "recovered")
    lost = [event["lost_steps"] for event in recovered]
    again = [results.recomputed_steps(event) for event in recovered]
    figures.add(f"{what}: recoveries", len(recovered), "")
    figures.add(f"{what}: steps lost", sum(lost), "steps")
    figures.add(f"{what}: steps computed again", sum(again), "steps")
    figures.bar(f"{what}: no step lost, at most one computed again in each recovery",
                recovered and sum(lost) == 0 and max(again) <= 1 and not run.repeated)
    deaths = len(results.events(run.folder, "death"))
    if deaths > killer.killed:
        figures.bar(f"{what}: nothing died by itself ({deaths} deaths, {killer.killed} killed)", False)


def strike_through(run, killer, kills, steps, step_s, at_once=1, again=0.0):
    """`kills` strikes spread over the run's `steps`, at random moments; with probability `again` one
    follows while the run still recovers from the one before. Between them at least one step is
    finished: the run ends by itself when nothing is finished between three."""
    run.wait_for_step(3, RECOVERY_TIMEOUT_S)
    left = kills
    while left > 0:
        steps_left = steps - _STEPS_AFTER - run.last_step()
        pause = min(2 * steps_left // left - 1, steps_left - left)
        if not killer.further_steps(killer.random.randint(1, max(1, pause))):
            raise Fault(f"run {run.name} ended before its last kill; {run.last_words()}")
        killer.random_moment(step_s)
        left -= 1 if killer.kill_some(at_once) else 0
        if left > 0 and killer.random.random() < again:
            time.sleep(killer.random.random() * 0.25)
            left -= 1 if killer.kill_some(at_once) else 0


def _pair(figures, place, bin_folder, options, name, settings, kills, at_once, again, what):
    world = settings["troupe.workers"]
    reference = undisturbed(place, bin_folder, settings, options.timeout, name + "-undisturbed")
    figures.add(f"{what}: an undisturbed step", reference.step_s() * 1e3, "ms")
    run = Run(place, bin_folder, name, {**settings, "troupe.spares": options.spares}
              if options.spares else settings).start()
    killer = Killer(run, options.seed, world, options.spares)
    strike_through(run, killer, kills, int(settings["max_steps"]), reference.step_s(), at_once, again)
    run.finish(options.timeout)
    figures.add(f"{what}: processes killed", killer.killed, "")
    figures.add(f"{what}: wall time more, a strike", (run.wall_s - reference.wall_s) / kills * 1e3, "ms")
    judge(figures, run, reference, killer, what)


def kills(figures, place, bin_folder, options):
    # Telling ranks from spares takes some steps before every strike.
    count = options.kills or 100
    steps = count * (14 if options.spares else 4) + 50
    settings = place.settings(options.model, steps, troupe__workers=options.world,
                              troupe__strategy=options.strategy)
    what = f"{count} kills, {options.strategy}, {options.world} ranks"
    _pair(figures, place, bin_folder, options, "kills", settings, count, 1, 0.12, what)


def together(figures, place, bin_folder, options):
    for world, at_once in ((2, 2), (4, 2), (4, 4)):
        settings = place.settings(options.model, options.times * 20 + 40, troupe__workers=world,
                                  troupe__strategy=options.strategy)
        what = f"{at_once} of {world} at once, {options.times} times"
        _pair(figures, place, bin_folder, options, f"together-{world}-{at_once}", settings, options.times,
              at_once, 0.0, what)


def _stop_one(run, killer, step_s):
    """Stops a rank. Seconds until it is named, with what it was doing and who waits for it (None: it
    was not), until it is replaced, and until the next step is finished."""
    killer.all_there()
    ranks = run.ranks()
    pid = killer.random.choice(killer.ranks())
    killer.random_moment(step_s)
    before, last_step, at = len(run.events()), run.last_step(), time.monotonic()
    processes.send(pid, signal.SIGSTOP)
    rank = ranks[pid]

    def event(*kinds):
        return next(((event, when - at) for event, when in run.events()[before:]
                     if event["event"] in kinds and event["rank"] == rank), None)

    def told(*kinds):
        found = event(*kinds)
        return found and found[1]

    run.wait(lambda: told("respawn") is not None, RECOVERY_TIMEOUT_S, f"another process for rank {rank}")
    # A step may have been finished while the rank was stopped behind it.
    run.wait(lambda: any(step > last_step and when - at > told("respawn")
                         for step, when in run.step_at.items()), RECOVERY_TIMEOUT_S, "the next step")
    step = min(when - at for when in run.step_at.values() if when - at > told("respawn"))
    killer.killed_by_others += 1
    hang = event(results.NAMED_EVENT)
    says = hang and hang[0].get("doing") and hang[0].get("waited_for_by")
    return hang[1] if says else None, told("respawn"), step


def stops(figures, place, bin_folder, options):
    steps = options.times * 12 + 60
    settings = place.settings(options.model, steps, troupe__workers=options.world,
                              troupe__strategy=options.strategy)
    reference = undisturbed(place, bin_folder, settings, options.timeout, "stops-undisturbed")
    run = Run(place, bin_folder, "stops", settings).start()
    killer = Killer(run, options.seed, options.world)
    run.wait_for_step(3, RECOVERY_TIMEOUT_S)
    named, replaced, stepped = [], [], []
    for _ in range(options.times):
        killer.further_steps(killer.random.randint(2, 8))
        name_s, replace_s, step_s = _stop_one(run, killer, reference.step_s())
        named.append(name_s)
        replaced.append(replace_s)
        stepped.append(step_s)
    run.finish(options.timeout)
    what = f"a rank stopped, {options.times} times"
    known = [value for value in named if value is not None]
    if known:
        figures.add(f"{what}: until it is named, longest", max(known), "s")
    figures.add(f"{what}: until it is replaced, median", median(replaced), "s")
    figures.add(f"{what}: until it is replaced, longest", max(replaced), "s")
    figures.add(f"{what}: until the next step is finished, longest", max(stepped), "s")
    figures.bar(f"{what}: named, with what it did and who waits, and replaced within 3.5 s",
                len(known) == len(named) and max(known) <= 3.5 and max(replaced) <= 3.5)
    judge(figures, run, reference, killer, what)
