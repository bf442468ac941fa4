"""Figures as text and JSON, and whether bars were met."""

import json
import math
import statistics
import sys

BAR_MET, BAR_NOT_MET = 0, 7


class Fault(Exception):
    """The measurement could not be made: a failure, not a figure."""


def percentile(values, share):
    """Nearest rank: the smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values):
    return statistics.median(values)


class Figures:
    """Prints "name value unit" as figures come; with `as_json`, one line of JSON at the end."""

    def __init__(self, what, as_json=False):
        self._what = what
        self._as_json = as_json
        self._rows = []
        self._bars = []

    def add(self, name, value, unit):
        self._rows.append({"name": name, "value": value, "unit": unit})
        if not self._as_json:
            number = f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
            print(f"{name:<66} {number:>10} {unit}", flush=True)

    def bar(self, text, met):
        """A bar of the project: "p50 at most 300 ms", and whether it was met."""
        self._bars.append({"bar": text, "met": bool(met)})
        if not self._as_json:
            print(f"  {'met    ' if met else 'NOT MET'}  {text}", flush=True)

    def note(self, text):
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def finish(self):
        """The exit code: 0 where all bars were met, 7 otherwise."""
        met = all(bar["met"] for bar in self._bars)
        if self._as_json:
            print(json.dumps({"what": self._what, "figures": self._rows, "bars": self._bars, "met": met}))
        return BAR_MET if met else BAR_NOT_MET
