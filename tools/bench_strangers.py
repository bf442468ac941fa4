#!/usr/bin/env python3
"""What strangers cost: 1,000 handshakes that are begun and not ended, at a head and at a node.

    tools/bench strangers [--count 1000] [--json]

They connect, send nothing, or the first bytes of a handshake, and wait. Meanwhile a tool asks the
head for its nodes, and another worker joins; each is a whole command, from its start. Bars: all are
closed at 5 s (within a second of it), each costs at most 64 KiB, and others come in within 1 s.
"""

import argparse
import resource
import select
import socket
import sys
import time

from harness import processes, script
from harness.cluster import Cluster
from harness.figures import Fault, percentile
from harness.workplace import Workplace, build

LIMIT_S = 5
LATE_S = 1
JOIN_BAR_S = 1
COST_BAR_KIB = 64
# A greeting of the handshake (runtime/net/README.md): magic, version 1, nonce.
GREETING = b"\x89TROUPE\n" + b"\x01\0\0\0" + bytes(32)
BEGINNINGS = (b"", GREETING[:1], GREETING[:20], GREETING)


class Strangers:
    def __init__(self, address, count):
        self.opened = {}  # socket -> when
        for number in range(count):
            begun = time.monotonic()
            stranger = socket.create_connection(address, timeout=10)
            stranger.sendall(BEGINNINGS[number % len(BEGINNINGS)])
            stranger.setblocking(False)
            self.opened[stranger] = begun

    def lifetimes(self, timeout_s):
        """How long each was left open, once all have ended."""
        poll = select.poll()
        by_fd = {stranger.fileno(): stranger for stranger in self.opened}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        lived = []
        until = time.monotonic() + timeout_s
        while by_fd:
            for fd, _ in poll.poll(max(0, (until - time.monotonic()) * 1000)):
                try:
                    ended = by_fd[fd].recv(4096) == b""
                except ConnectionError:
                    ended = True
                if ended:
                    lived.append(time.monotonic() - self.opened[by_fd[fd]])
                    poll.unregister(fd)
                    by_fd.pop(fd).close()
            if time.monotonic() > until:
                raise Fault(f"{len(by_fd)} strangers were not closed within {timeout_s} s")
        return lived


def ask_ms(cluster):
    begin = time.monotonic()
    cluster.nodes()
    return (time.monotonic() - begin) * 1e3


def raise_descriptor_limit(count):
    wanted = 4 * count + 1000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Fault(f"this needs {wanted} descriptors, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def measure(figures, options, bin_folder):
    raise_descriptor_limit(options.count)
    with Workplace() as place, Cluster(place, bin_folder, 1, watch=False) as cluster:
        host, port = cluster.address.rsplit(":", 1)
        node = cluster.nodes()[0]
        places = {"head": (host, int(port)), "node": (node["address"], node["port"])}
        pids = {"head": cluster.process("head"), "node": cluster.process("worker")}
        figures.add("no strangers: a tool asks for the nodes", ask_ms(cluster), "ms")
        before = {name: processes.pss_kib(pids[name]) for name in places}
        strangers = {name: Strangers(places[name], options.count) for name in places}
        costs = {name: (processes.pss_kib(pids[name]) - before[name]) / options.count for name in places}
        asked = ask_ms(cluster)
        joined = cluster.join_ms()
        figures.add(f"{2 * options.count} strangers: a tool asks for the nodes", asked, "ms")
        figures.add(f"{2 * options.count} strangers: a worker joins", joined, "ms")
        figures.bar(f"others come in within {JOIN_BAR_S} s", max(asked, joined) <= JOIN_BAR_S * 1e3)
        for name, some in strangers.items():
            lived = some.lifetimes(3 * LIMIT_S)
            figures.add(f"{name}: the first stranger was closed after", min(lived), "s")
            figures.add(f"{name}: the last one after", max(lived), "s")
            figures.add(f"{name}: half of them after", percentile(lived, 0.5), "s")
            figures.add(f"{name}: memory of a stranger", costs[name], "KiB")
            figures.bar(f"closed at {LIMIT_S} s", LIMIT_S <= min(lived) and max(lived) <= LIMIT_S + LATE_S)
            figures.bar(f"at most {COST_BAR_KIB} KiB each", costs[name] <= COST_BAR_KIB)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def meet(figures):
        try:
            measure(figures, options, build("troupe"))
        except OSError as error:  # of a stranger's connection
            raise Fault(str(error)) from error

    return script.run("strangers", options, meet, said_by="bench strangers")


if __name__ == "__main__":
    sys.exit(main())
