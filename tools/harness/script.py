"""What every script that measures has around its measurement: `--json`, figures, the exit code."""

import argparse
import signal
import sys

from .figures import BAR_NOT_MET, Fault, Figures


def parser(program, text):
    """Arguments of `program`, of which `text` is the help as it stands, with --json."""
    made = argparse.ArgumentParser(prog=program, description=text,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    return made


def some_of(names):
    """The type of an argument that names some of `names`, with commas between them."""
    def chosen(text):
        given = text.split(",")
        for name in given:
            if name not in names:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(names)}")
        return given

    return chosen


def _end(number, _frame):
    """As an interrupt: what was brought up is taken down on the way out."""
    sys.exit(128 + number)


def run(name, options, measure, said_by="bench"):
    """measure(figures) with figures of that name, as `options.json` wants them. Returns the exit code: 0 all
    bars met, 7 not, or a Fault, which it tells on standard error as `said_by`."""
    signal.signal(signal.SIGTERM, _end)
    figures = Figures(name, options.json)
    try:
        measure(figures)
    except Fault as fault:
        print(f"{said_by}: {fault}", file=sys.stderr)
        return BAR_NOT_MET
    return figures.finish()
