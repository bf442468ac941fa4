#!/usr/bin/env python3
"""A cluster of machines on this one, to be struck: network and process namespaces with a worker node each, a head beside
them. Needs root (it makes the namespaces, and takes them down at the end, with every process in them).

    tools/chaos cluster [--nodes 4] [--cpus 2] [--at "SECONDS: STRIKE; …"] [-- COMMAND …]

With a COMMAND: it runs beside the head, which it finds by itself (TROUPE_ADDRESS), and its exit code is this one's.
Without: strikes are read from standard input, a line each, until its end or `end`.

    kill N      all processes of machine N at once, with all their memory; connections close
    power N     the same, and nobody is told: its cable goes first
    start N     a worker node on machine N again (a machine that joins)
    leave N     its worker gets SIGTERM and leaves in order
    cut N       its cable is cut, both ways; its processes run on
    mend N      the cable is joined again
    part N M    nothing passes between machines N and M (or `head`), and nobody is told
    mute N M    nothing that machine N sends reaches M (or `head`); the other way it does
    rejoin N M  ends both
    slow N MS   everything to machine N takes so many milliseconds more; 0: no longer
    status      the machines, and which ranks of trainings run there

    tools/chaos cluster --nodes 3 --at "8: kill 1; 20: start 1" -- build/release/bin/troupe train \\
      examples/train/pretrain_tiny.yaml troupe.workers=2 troupe.strategy=zero3 placement_strategy=STRICT_SPREAD
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

from harness.figures import Fault
from harness.machines import HEAD, Machines
from harness.workplace import Workplace, build

STRIKES = ("kill", "power", "start", "leave", "cut", "mend")
PAIRS = ("part", "mute", "rejoin")


def _say(text):
    print(f"chaos: {text}", file=sys.stderr, flush=True)


def _numbers(words, count):
    """The machines, or milliseconds, of a strike at one of so many machines; a Fault where it is none."""
    kind, *rest = words
    numbers = [HEAD if word == "head" and kind in PAIRS else int(word) for word in rest
               if word.isdigit() or word == "head" and kind in PAIRS]
    wanted = 1 if kind in STRIKES else 2
    if kind not in (*STRIKES, *PAIRS, "slow") or len(rest) != wanted or len(numbers) != wanted:
        raise Fault(f"\"{' '.join(words)}\" is no strike: {', '.join(STRIKES)} N, {', '.join(PAIRS)} N M, slow N MS, or status")
    for machine in numbers[:2 if kind in PAIRS else 1]:
        if machine >= count:
            raise Fault(f"there is no machine {machine}: they are 0 to {count - 1}")
    if kind in PAIRS and numbers[0] == numbers[1]:
        raise Fault(f"{kind} wants two different ones")
    return numbers


def strike(machines, words):
    """Does what a line says; a Fault where it makes no sense."""
    kind = words[0]
    if kind == "status":
        ranks = machines.ranks()
        for number in range(machines.count):
            here = ", ".join(f"rank {rank}" for rank in sorted(ranks) if ranks[rank] == number)
            up = "up" if machines.is_up(number) else "down"
            _say(f"machine {number} ({machines.address_of(number)}): {up}{'; ' + here if here else ''}")
        return
    numbers = _numbers(words, machines.count)
    number = numbers[0]
    if kind in ("kill", "power", "leave") and not machines.is_up(number):
        raise Fault(f"machine {number} is down already")
    if kind == "start" and machines.is_up(number):
        raise Fault(f"machine {number} is up already")
    if kind == "power":
        machines.cut(number)
    if kind in ("kill", "power"):
        machines.kill(number)
    elif kind == "start":
        machines.mend(number)
        machines.start(number)
    elif kind == "leave":
        machines.leave(number)
    elif kind == "cut":
        machines.cut(number)
    elif kind == "mend":
        machines.mend(number)
    elif kind == "slow":
        machines.slow(number, numbers[1])
    elif kind == "rejoin":
        machines.rejoin(*numbers)
    else:
        machines.part(*numbers, both=kind == "part")
    _say(" ".join(words))


def _schedule(text, count):
    """(seconds, words) of "8: kill 1; 20: start 1", in order, at so many machines."""
    planned = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        at, _, what = entry.partition(":")
        try:
            planned.append((float(at), what.split()))
        except ValueError:
            raise Fault(f"--at: \"{entry}\" is not SECONDS: STRIKE") from None
        words = what.split()
        if not words:
            raise Fault(f"--at: \"{entry}\" names no strike")
        if words != ["status"]:
            _numbers(words, count)
    return sorted(planned, key=lambda entry: entry[0])


def _strike_by_clock(machines, planned, ended, failed):
    begin = time.monotonic()
    for at, words in planned:
        if ended.wait(max(0.0, begin + at - time.monotonic())):
            _say(f"{' '.join(words)}, at {at:g} s, did not come: the command had ended")
            continue
        try:
            strike(machines, words)
        except Fault as fault:
            _say(str(fault))
            failed.set()


def _run(machines, place, command, planned):
    environment = {**place.environment(), **machines.environment, "TROUPE_ADDRESS": machines.address,
                   "TROUPE_TOKEN_FILE": machines.token_file}
    process = subprocess.Popen([*machines.inside_hub, *command], env=environment)
    # Ctrl-C is the command's, which ends as it likes; then this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended, failed = threading.Event(), threading.Event()
    striking = threading.Thread(target=_strike_by_clock, args=(machines, planned, ended, failed))
    striking.start()
    code = process.wait()
    ended.set()
    striking.join()
    if code == 0 and failed.is_set():
        return 1
    return code if code >= 0 else 128 - code


def _listen(machines):
    _say(f"the head is at {machines.address}, its token in {machines.token_file}; commands run beside it with: "
         f"{' '.join(machines.inside_hub)} env TROUPE_ADDRESS={machines.address} "
         f"TROUPE_TOKEN_FILE={machines.token_file} COMMAND")
    for line in sys.stdin:
        words = line.split()
        if words == ["end"]:
            break
        try:
            if words:
                strike(machines, words)
        except Fault as fault:
            _say(str(fault))
    return 0


def main():
    parser = argparse.ArgumentParser(prog="tools/chaos cluster", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4, help="machines (4)")
    parser.add_argument("--cpus", type=int, default=2, help="that each offers (2)")
    parser.add_argument("--insecure", action="store_true", help="connections are not encrypted")
    parser.add_argument("--at", default="", help="strikes by the clock, from the command's start")
    parser.add_argument("command", nargs="*", help="to run beside the head, behind --")
    options = parser.parse_args()
    if not 1 <= options.nodes <= 32:
        parser.error("--nodes: 1 to 32")
    if options.at and not options.command:
        parser.error("--at is for a command: without one strikes are read from standard input")
    try:
        planned = _schedule(options.at, options.nodes)
        command = options.command and [os.path.abspath(options.command[0]) if os.path.exists(options.command[0])
                                       else options.command[0], *options.command[1:]]
        with Workplace() as place, Machines(place, build("troupe"), options.nodes, options.cpus,
                                            options.insecure) as machines:
            _say(f"{options.nodes} machines of {options.cpus} CPUs")
            return _run(machines, place, command, planned) if command else _listen(machines)
    except Fault as fault:
        _say(str(fault))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
