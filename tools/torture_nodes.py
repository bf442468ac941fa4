"""tools/torture nodes: whole machines lost at random moments of a training, with all their memory, or cut off for a
while and joined again. A spare machine is there. No step that was finished is lost, and the weights are the undisturbed
run's."""

import os
import random
import time

from harness import results
from harness.figures import Fault, median, percentile
from harness.machines import HEAD, Machines
from harness.run import Run

KILLS = 10
P50_BAR_S = 1.5
MAX_BAR_S = 6.0
# The failure detector's time-out, which a silence costs besides.
SILENCE_S = 2.5
RECOVERY_TIMEOUT_S = 60
STEPS_BETWEEN = (3, 8)
STEPS_AFTER = 10
PACE_STEPS = 40
# What a loss takes of a run's time besides: the recovery, and the next spare machine's start or return.
LOSS_S = {"closed": 2.5, "silent": 6.0}


def _settings(place, options, machines, strategy, steps, base):
    lora = strategy == "lora"
    more = {"troupe__strategy": "zero3" if lora else strategy}
    if strategy == "hsdp":
        more["troupe__mesh"] = f"2,{machines // 2}"
    settings = place.settings(options.model, steps, troupe__workers=machines, placement_strategy="STRICT_SPREAD",
                              save_strategy="steps", save_steps=50, save_total_limit=1, **more)
    if lora:
        settings.update({"finetuning_type": "lora", "lora_target": "all", "train_from_scratch": "false",
                         "model_name_or_path": base})
        del settings["troupe.train_tokenizer"]
    return settings


def _base(place, bin_folder, options):
    """A model for adapters: of one step from scratch."""
    settings = place.settings(options.model, 1)
    run = Run(place, bin_folder, "base", settings)
    if not os.path.exists(run.folder):
        run.start().finish(options.timeout)
    return run.folder


class Loss:
    """How machines are lost. closed: all processes killed at once; silent: the cable is cut before, so that no connection
    closes; cut-N: the cable is cut, and joined again after N seconds; part-N: nothing passes between two machines that
    train, for so long; mute-N: nothing that the machine sends reaches the head; deaf-N: nothing reaches it from the head."""

    def __init__(self, kind):
        self.kind = kind
        self._how, _, seconds = kind.partition("-")
        self.cut_s = float(seconds) if seconds else None
        self._parted = None
        # Before anybody takes it for lost; and where ranks cannot meet, nobody can take their place.
        self.heals = self.cut_s is not None and (self.cut_s < SILENCE_S or self._how != "cut")
        # Until the head takes the machine for lost, at most; ranks that cannot meet wait until they can.
        self.silence_s = 0 if kind == "closed" else self.cut_s if self._how == "part" else min(SILENCE_S, self.cut_s or SILENCE_S)
        # No steps are done while ranks cannot meet.
        self.takes_s = 1.0 if self.heals and self._how in ("cut", "part") else LOSS_S.get(kind, 6.0 + (self.cut_s or 0))

    def strike(self, machines, number):
        """When the machine was lost."""
        if self.kind == "closed":
            return machines.kill(number)
        if self._how in ("part", "mute", "deaf"):
            other = next(m for m in machines.training() if m != number) if self._how == "part" else HEAD
            self._parted = (other, number) if self._how == "deaf" else (number, other)
            return machines.part(*self._parted, both=self._how == "part")
        at = machines.cut(number)
        if self.cut_s is None:
            machines.kill(number)
        return at

    def mend(self, machines, number, at):
        """It is there again, with nothing of what it had in memory, or as it was."""
        if self.cut_s is not None:
            time.sleep(max(0.0, at + self.cut_s - time.monotonic()))
            if self._parted:
                machines.rejoin(*self._parted)
            else:
                machines.mend(number)
            machines.wait_for(lambda: machines.nodes(number), f"machine {number} again")
            return
        if self.kind == "silent":
            machines.mend(number)
        machines.start(number)


def _strike_all(run, machines, chance, kills, step_s, loss):
    """Seconds from each loss to the end of the first step that was begun after it, beyond a normal step."""
    took = []
    run.wait_for_step(5, RECOVERY_TIMEOUT_S)
    for number in range(kills):
        if not run.wait_for_step(run.last_step() + chance.randint(*STEPS_BETWEEN), RECOVERY_TIMEOUT_S):
            raise Fault(f"run {run.name} ended before its last kill; {run.last_words()}")
        victims = machines.training()
        run.random_moment(chance, step_s)
        victim = chance.choice(victims)
        last = run.last_step()
        at = loss.strike(machines, victim)
        if loss.heals:
            loss.mend(machines, victim, at)
        run.wait(lambda: any(when > at for step, when in run.step_at.items() if step > last + 1),
                 RECOVERY_TIMEOUT_S, f"a step after loss {number + 1}, of machine {victim}")
        # The step under way at the loss may stand: the one behind it is the first that was begun afterwards.
        first = last + 1 if run.step_at[last + 1] - at > step_s / 2 else last + 2
        took.append(run.step_at[first] - at - step_s)
        if not loss.heals:
            loss.mend(machines, victim, at)
    return took


def nodes(figures, place, bin_folder, options):
    kills = options.kills or KILLS
    for count in (int(word) for word in options.machines.split(",")):
        for strategy in options.strategies.split(","):
            if strategy == "hsdp" and count < 4:
                continue  # a shard group and its copy are two machines each
            for loss in options.losses.split(","):
                torture(figures, place, bin_folder, options, count, strategy, Loss(loss), kills)


def torture(figures, place, bin_folder, options, count, strategy, loss, kills):
    what = f"{strategy}, {count} machines, {loss.kind}"
    name = what.replace(", ", "-").replace(" ", "-")
    chance = random.Random(options.seed)
    with Machines(place, bin_folder, count + 1) as machines:
        base = _base(place, bin_folder, options) if strategy == "lora" else None
        begun = dict(arguments=["--address", machines.address], inside=machines.inside_hub)

        def undisturbed(steps, of):
            settings = _settings(place, options, count, strategy, steps, base)
            return settings, Run(place, bin_folder, f"{name}-{of}", settings, **begun).start().finish(options.timeout)

        step_s = undisturbed(PACE_STEPS, "pace")[1].step_s()
        settings, plain = undisturbed(
            int(10 + kills * (STEPS_BETWEEN[1] + loss.takes_s / step_s)) + STEPS_AFTER, "undisturbed")
        run = Run(place, bin_folder, name, settings, **begun).start()
        took = _strike_all(run, machines, chance, kills, step_s, loss)
        run.finish(options.timeout)
    _judge(figures, run, plain, what, kills, took, loss)


def _judge(figures, run, plain, what, kills, took, loss):
    for difference in run.differences(plain):
        figures.note(f"  {what}: {difference}")
    recovered = results.events(run.folder, "recovered")
    lost = sum(event["lost_steps"] for event in recovered)
    again = [results.recomputed_steps(event) for event in recovered]
    figures.add(f"{what}: a normal step", plain.step_s() * 1e3, "ms")
    figures.add(f"{what}: machines lost", kills, "")
    figures.add(f"{what}: steps lost", lost, "steps")
    figures.add(f"{what}: next step beyond a normal one, p50", median(took), "s")
    figures.add(f"{what}: next step beyond a normal one, p90", percentile(took, 0.9), "s")
    figures.add(f"{what}: next step beyond a normal one, max", max(took), "s")
    figures.bar(f"{what}: weights and every step's loss and norm equal to the undisturbed run's",
                not run.differences(plain))
    figures.bar(f"{what}: no committed step lost, at most one computed again in each recovery",
                (recovered or loss.heals) and lost == 0 and max(again, default=0) <= 1 and not run.repeated)
    silence_s = loss.silence_s
    beyond = " beyond the failure detector's time-out" if silence_s else ""
    figures.bar(f"{what}: p50 at most {P50_BAR_S} s{beyond}", median(took) <= P50_BAR_S + silence_s)
    figures.bar(f"{what}: max at most {MAX_BAR_S} s{beyond}", max(took) <= MAX_BAR_S + silence_s)
