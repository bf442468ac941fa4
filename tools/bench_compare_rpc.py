#!/usr/bin/env python3
"""Calls between two processes beside what a C++ user would take in Troupe's place from Debian's packages: Cap'n Proto
RPC, gRPC, the C++ Actor Framework; and beside raw sockets, all on this machine in this run.

    tools/bench compare-rpc [--json] [--seconds S] [--rounds N] [--window N] [--ways unix,tcp,tls] [--unpinned]

Each system's programs run by turns, N rounds; a figure is the median of the rounds, each a measurement of S seconds.
Caller and callee are pinned to a processor each, unless --unpinned. A system whose package is missing is left out, and
the package is named: `tools/setup --peers` installs all. Their programs (tools/peers/rpc_*.cc) are compiled into
build/peers/rpc when they are first wanted.

"First calls" are calls 1 to 31 of a fresh handle, or connection: before Troupe goes through shared memory, which a
caller on the actor's node does from its 32nd call on. Rows of Troupe over a Unix socket are held to it; the rows "on
one machine" are what such a handle does by itself, beside the better of each peer's two sockets. Troupe's TLS is mutual,
the peers' proves the server; CAF has no Unix sockets, and no second connection to one server for first calls. The last
column is how many times better Troupe is than the best peer; the exit code is 7 where it is not ahead.
"""

import os
import shutil
import sys

from harness import rpc_peers, script
from harness.commands import output_of
from harness.figures import median
from harness.workplace import Workplace, build

TIMEOUT_S = 120
COLUMNS = ["raw", "Troupe", *(peer.name for peer in rpc_peers.PEERS)]
# Of a row: its title, its name in the programs' lines, its unit, and whether more is better.
_CALLS = [
    ("synchronous call, p50", "sync p50", "us", False),
    ("synchronous call, p99", "sync p99", "us", False),
    ("asynchronous calls", "async", "1/s", True),
    ("synchronous calls with 1 MiB", "1 MiB", "1/s", True),
    ("synchronous calls with 64 MiB", "64 MiB", "1/s", True),
    ("the same in bytes", "64 MiB rate", "GB/s", True),
]
_FIRST = ("first calls, p50", "first p50", "us", False)
WAYS = {"unix": "Unix socket", "tcp": "TCP, loopback", "tls": "TLS, loopback"}


def processors(options):
    """Of the caller and of the callee; -1: where the kernel puts them."""
    usable = sorted(os.sched_getaffinity(0))
    return (-1, -1) if options.unpinned else (usable[0], usable[-1])


def rows_of(program, way, name, options):
    """One measurement of every row of a program."""
    with Workplace() as place:
        if way == "tls" and name != "Troupe":
            rpc_peers.make_certificate(place.path)
        caller, callee = processors(options)
        command = [program, way, place.path, str(options.seconds), str(options.window), str(caller), str(callee)]
        text = output_of(command, f"{name} over {way}", TIMEOUT_S + 60 * options.seconds, place.environment())
    fields = (line.split("\t") for line in text.splitlines())
    return {row[0]: float(row[1]) for row in fields if len(row) == 3}


def measure_way(way, systems, options):
    """The medians of each system's rows, in rounds by turns: each begins with another system."""
    rounds = {name: [] for name, _ in systems}
    for number in range(options.rounds):
        turn = number % len(systems)
        for name, program in systems[turn:] + systems[:turn]:
            rounds[name].append(rows_of(program, way, name, options))
    return {name: {row: median([each[row] for each in measured]) for row in measured[0]}
            for name, measured in rounds.items()}


def better_of(found, row, more):
    """Of each system's figures by several ways the better one."""
    values = {}
    for by_name in found:
        for name, rows in by_name.items():
            if row in rows:
                values.setdefault(name, []).append(rows[row])
    return {name: (max if more else min)(each) for name, each in values.items()}


def show(figures, options, way, line, values):
    """One line of the table; with --json, figures. Returns how many times better Troupe is; None: nobody to compare."""
    title, _, unit, more = line
    peers = [value for name, value in values.items() if name not in ("Troupe", "raw")]
    ahead = None
    if peers:
        ahead = values["Troupe"] / max(peers) if more else min(peers) / values["Troupe"]
    if options.json:
        for name, value in values.items():
            figures.add(f"{way}: {title}: {name}", value, unit)
        if ahead is not None:
            figures.add(f"{way}: {title}: Troupe over the best peer", ahead, "x")
    else:
        cells = "".join(f"{values[name]:>12.4g}" if name in values else f"{'-':>12}" for name in COLUMNS)
        figures.note(f"  {title:<34}{cells} {unit:<5}" + ("" if ahead is None else f"{ahead:>7.2f} x"))
    return ahead


def head_line(figures, options, text):
    if not options.json:
        figures.note(f"{text:<36}" + "".join(f"{name:>12}" for name in COLUMNS))


def present_peers(figures):
    present = []
    for peer in rpc_peers.PEERS:
        if missing := peer.missing():
            figures.note(f"{peer.name} is left out: install the Debian package{'s' * (len(missing) > 1)} "
                         f"{' '.join(missing)} (tools/setup --peers)")
        else:
            present.append((peer, peer.program(figures)))
    return present


def compare(figures, options):
    troupe = os.path.join(build("bench_rpc"), "bench_rpc")
    present = present_peers(figures)
    raw = rpc_peers.RAW.program(figures)
    figures.note("".join(f"{peer.name} {peer.version()}, " for peer, _ in present) +
                 f"{len(os.sched_getaffinity(0))} processors; {options.window} asynchronous calls on their way; "
                 f"medians of {options.rounds} rounds")
    ratios, on_one_machine = [], []
    for way in options.ways:
        if way == "tls" and not shutil.which("openssl"):
            figures.note("the peers' TLS is left out: install the Debian package openssl (tools/setup --peers)")
            present = []
        systems = [("Troupe", troupe), *((peer.name, program) for peer, program in present if way in peer.ways)]
        if way in rpc_peers.RAW.ways:
            systems.append(("raw", raw))
        found = measure_way(way, systems, options)
        if way != "tls":
            on_one_machine.append(found)
        head_line(figures, options, WAYS[way])
        for line in [_FIRST, *_CALLS]:
            ratios.append(show(figures, options, way, line, better_of([found], line[1], line[3])))
    if "unix" in options.ways:
        head_line(figures, options, "on one machine")
        for line in _CALLS:
            values = better_of(on_one_machine, line[1], line[3])
            values["Troupe"] = on_one_machine[0]["Troupe"]["ring " + line[1]]
            ratios.append(show(figures, options, "on one machine", line, values))
    behind = sum(1 for ratio in ratios if ratio is not None and ratio <= 1)
    if any(ratio is not None for ratio in ratios):
        figures.bar("Troupe is ahead of every peer in every row" + (f": not in {behind}" if behind else ""), behind == 0)


def main():
    parser = script.parser("tools/bench compare-rpc", __doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one measurement of a row (0.3)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each row (5)")
    parser.add_argument("--window", type=int, default=1000, help="asynchronous calls on their way (1000)")
    parser.add_argument("--ways", type=script.some_of(WAYS), default=list(WAYS), help="of unix, tcp, tls (all)")
    parser.add_argument("--unpinned", action="store_true", help="processes are where the kernel puts them")
    options = parser.parse_args()
    options.ways = [way for way in WAYS if way in options.ways]
    if not (0 < options.seconds <= 60 and options.rounds > 0 and 0 < options.window <= 5000):
        parser.error("--seconds up to 60, --rounds of at least 1, --window up to 5000")
    return script.run("compare-rpc", options, lambda figures: compare(figures, options))


if __name__ == "__main__":
    sys.exit(main())
