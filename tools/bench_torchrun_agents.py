"""What the loss of a machine costs torchrun: an elastic job of two agents, each in a machine's namespaces, with a checkpoint
every ten steps, of which one agent is killed with all its processes. The part `peer` of `tools/bench node-loss`."""

import json
import os
import signal
import subprocess
import time

from harness import peers, processes
from harness.figures import Fault, median
from harness.lines import LineWatch

SAVE_EVERY, KILL_AFTER, STEPS = 10, 17, 60
RENDEZVOUS_PORT = 29400


class Steps:
    """The steps of rank 0, as its job writes them down."""

    def __init__(self, path):
        self._watch = LineWatch([path], self._on_line)
        self.seen = []  # (when, step)

    def _on_line(self, _, line, __):
        event = json.loads(line)
        if event["rank"] == 0:
            self.seen.append((time.monotonic(), event["step"]))

    def close(self):
        self._watch.close()

    def wait(self, is_there, deadline, alive):
        while not is_there():
            if time.monotonic() > deadline or not alive():
                return False
            time.sleep(0.01)
        return True


def agent(machines, number, python, place, events, folder):
    command = [*machines.inside(number), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
               os.path.join(os.path.dirname(python), "torchrun"), "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3",
               "--rdzv-backend=c10d", "--rdzv-id=node-loss",
               # torchrun looks its own addresses up by the machine's name, which a namespace does not change.
               f"--rdzv-conf=is_host={int(number == 0)}",
               f"--rdzv-endpoint={machines.address_of(0)}:{RENDEZVOUS_PORT}", "--local-addr", machines.address_of(number),
               os.path.join(peers.FOLDER, "elastic_ddp.py"), events, folder, str(STEPS), str(SAVE_EVERY)]
    environment = {**place.environment(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
    with open(place.file(f"agent-{number}.log"), "ab") as log:
        return subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)


def lose_one(figures, machines, place, python, timeout_s):
    """Kills the agent that does not hold the rendezvous."""
    events, folder = place.file("events"), place.file("job")
    os.makedirs(folder)
    steps = Steps(events)
    agents = []
    try:
        agents = [agent(machines, number, python, place, events, folder) for number in (0, 1)]
        deadline = time.monotonic() + timeout_s

        def alive():
            return agents[0].poll() is None

        if not steps.wait(lambda: steps.seen and steps.seen[-1][1] >= KILL_AFTER, deadline, alive):
            raise Fault(f"torchrun's job did not come to step {KILL_AFTER}; {place.file('agent-0.log')} says why")
        before = list(steps.seen)
        agents[1].send_signal(signal.SIGKILL)
        agents[1].wait()
        killed = time.monotonic()
        last = steps.seen[-1][1]
        went_on = steps.wait(lambda: steps.seen[-1][1] > last and steps.seen[-1][0] > killed + 0.5,
                             killed + timeout_s, alive)
        normal_s = median([b[0] - a[0] for a, b in zip(before, before[1:])])
        figures.add("torchrun, two agents: a normal step", normal_s * 1e3, "ms")
        if not went_on:
            figures.note(f"torchrun, two agents: no step within {timeout_s:.0f} s after one was killed: it hung, or ended")
            return
        figures.add("torchrun, two agents, one killed: until a new step beyond a normal one",
                    steps.seen[-1][0] - killed - normal_s, "s")
        after = [step for when, step in steps.seen if when > killed]
        figures.add("torchrun, two agents, one killed: steps computed twice", last - min(after) + 1, "steps")
    finally:
        steps.close()
        for process in agents:
            process.kill()
            process.wait()
        processes.end_all(place.mark)
