"""tools/torture daemons: head, node daemon and controller killed under a run that must not notice."""

import random
import signal

from harness import processes, results
from harness.cluster import Cluster
from harness.figures import Fault, median
from harness.run import Run, undisturbed

WORLD = 2
# Finished steps between kills, at least, and what the run has of them for each kill.
STEPS_BETWEEN = (3, 8)
STEPS_A_KILL = 15
STEP_TIMEOUT_S = 60


def _living(cluster):
    return {actor["actor_id"]: actor for actor in cluster.actors() if actor["state"] == "alive"}


class Watched:
    """What is where, as it was before the first kill and must stay."""

    def __init__(self, place, cluster):
        self._place = place
        self._cluster = cluster
        cluster.wait_for(lambda: len(_living(cluster)) == WORLD + 1, "controller and trainers")
        self._actors = _living(cluster)
        self._trainers = processes.trainers(place.mark)
        self.controller_restarts = 0

    def wrong(self):
        """What was placed twice, lost or started again, in words; empty: nothing."""
        found = []
        actors = _living(self._cluster)
        if set(actors) != set(self._actors):
            found.append(f"actors {sorted(actors)} instead of {sorted(self._actors)}")
        for actor_id, actor in actors.items():
            before = self._actors.get(actor_id, actor)
            restarts = before["restarts"] + (self.controller_restarts if actor["type"] == "TrainController" else 0)
            if actor["restarts"] != restarts or actor["rank"] != before["rank"]:
                found.append(f"{actor['type']} rank {actor['rank']} was started {actor['restarts']} times again, "
                             f"not {restarts}")
        if processes.trainers(self._place.mark) != self._trainers:
            found.append(f"trainers are {processes.trainers(self._place.mark)}, were {self._trainers}")
        if len(self._cluster.controllers()) != 1:
            found.append(f"{len(self._cluster.controllers())} controllers")
        return found


def _strike(cluster, what):
    """Kills it, and waits until another is there and does its work."""
    pid = cluster.controllers()[0] if what == "controller" else cluster.process(
        {"head": "head", "daemon": "worker"}[what])
    processes.send(pid, signal.SIGKILL)
    if what == "head":
        cluster.wait_for(lambda: cluster.process("head") != pid and cluster.node_pids(), "another head")
    elif what == "daemon":
        cluster.wait_for(lambda: cluster.node_pids() == [cluster.process("worker")] != [pid], "another node daemon")
    else:
        cluster.wait_for(lambda: [actor["pid"] for actor in _living(cluster).values()
                                  if actor["type"] == "TrainController"] == cluster.controllers() != [pid],
                         "another controller")


def daemons(figures, place, bin_folder, options):
    model = "small" if options.model == "tiny" else options.model
    steps = options.rounds * len(options.targets.split(",")) * STEPS_A_KILL + 40
    settings = place.settings(model, steps, troupe__workers=WORLD, troupe__strategy="ddp")
    chance = random.Random(options.seed)
    targets = options.targets.split(",") * options.rounds
    chance.shuffle(targets)
    with Cluster(place, bin_folder, WORLD + 2) as cluster:
        address = ["--address", cluster.address]
        plain = undisturbed(place, bin_folder, settings, options.timeout, arguments=address)
        cluster.wait_for(lambda: not _living(cluster), "the end of the first run's actors")
        run = Run(place, bin_folder, "daemons", settings, address).start()
        run.wait_for_step(5, STEP_TIMEOUT_S)
        watched = Watched(place, cluster)
        wrong = []
        first_step = run.last_step()
        for target in targets:
            if not run.wait_for_step(run.last_step() + chance.randint(*STEPS_BETWEEN), STEP_TIMEOUT_S):
                raise Fault(f"the run ended before the last kill; {run.last_words()}")
            run.random_moment(chance, plain.step_s())
            watched.controller_restarts += target == "controller"
            _strike(cluster, target)
            # What is still on its way is no fault: it must be right within seconds.
            try:
                cluster.wait_for(lambda: not watched.wrong(), "what was there before", 10)
            except Fault:
                wrong += [f"after a {target}'s end: {text}" for text in watched.wrong()]
        run.finish(options.timeout)
    _report(figures, run, plain, wrong, first_step, f"{options.targets} killed {options.rounds} times each")


def _report(figures, run, plain, wrong, first_step, what):
    normal = median(plain.intervals())
    longest = max(run.intervals(first_step))
    figures.add(f"{what}: a normal step", normal * 1e3, "ms")
    figures.add(f"{what}: the longest step of the undisturbed run", max(plain.intervals()) * 1e3, "ms")
    figures.add(f"{what}: the longest step of the disturbed run", longest * 1e3, "ms")
    figures.bar(f"{what}: no step delayed by more than a step's time", longest <= 2 * normal)
    for text in wrong:
        figures.note(f"  {text}")
    figures.bar(f"{what}: nothing placed twice, lost or started again", not wrong)
    for difference in run.differences(plain):
        figures.note(f"  {difference}")
    figures.bar(f"{what}: weights and every step's loss and norm equal to the undisturbed run's",
                not run.differences(plain))
    figures.bar(f"{what}: no rank died", not results.events(run.folder, "death") and not run.repeated)
