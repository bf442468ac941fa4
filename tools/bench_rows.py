#!/usr/bin/env python3
"""Rows of parquet and jsonl files, beside pyarrow in the same run, on the same files.

    tools/bench rows [--json] [--repeats N] [--megabytes M]

Rows are conversations of two or four messages, M (200) megabytes as JSON. Ours are read as a training reads them, one
after another into values. pyarrow reads the file into columns with all its threads, and then into Python's objects, which
is what datasets does row by row: both rates are shown, the bar is half of the second. A file of a quarter tells whether
the memory of the reading grows with the file. Needs `tools/setup --arrow`, and pyarrow from PyPI as the peer.
"""

import json
import os
import sys

from harness import peers, script
from harness.commands import output_of
from harness.figures import median
from harness.workplace import Workplace, build

RUN_S = 300
MEMORY_GROWS_AT_MOST_MIB = 8  # what the allocator happens to hold


def measure(figures, place, python, bin_folder, options):
    peer = [python, os.path.join(peers.FOLDER, "rows_peer.py")]
    for kind in ("parquet", "jsonl"):
        private = []
        for share in (0.25, 1):
            path = place.file(f"rows-{share}.{kind}")
            output_of([*peer, "make", kind, str(options.megabytes * share), path], "making a file", RUN_S)
            ours = json.loads(output_of([f"{bin_folder}/bench_rows", path, str(options.repeats)], "bench_rows", RUN_S))
            private.append(ours["private_bytes"])
        theirs = json.loads(output_of([*peer, "run", path, str(options.repeats)], "pyarrow", RUN_S))
        megabytes = ours["bytes"] / 1e6
        mine, rows, columns = (megabytes / median(times) for times in (ours["seconds"], theirs["rows"], theirs["columns"]))
        figures.add(f"{kind}, {megabytes:.0f} MB of text in {ours['rows']} rows, read", mine, "MB/s")
        figures.add(f"{kind}: pyarrow, into Python's objects", rows, "MB/s")
        figures.add(f"{kind}: pyarrow, into columns alone", columns, "MB/s")
        figures.bar(f"{kind}: {mine / rows:.2f} of pyarrow's rate of rows ({mine / columns:.2f} of that of columns), "
                    f"at least 0.5", mine >= 0.5 * rows)
        small, large = (size / 2**20 for size in private)
        figures.note(f"{kind}: private memory {small:.1f} MiB with a file of a quarter, {large:.1f} MiB with this one")
        if kind == "parquet":
            figures.bar(f"{kind}: memory is flat, within {MEMORY_GROWS_AT_MOST_MIB} MiB", large <= small + MEMORY_GROWS_AT_MOST_MIB)


def main():
    parser = script.parser("tools/bench rows", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes of each kind (5)")
    parser.add_argument("--megabytes", type=float, default=200, help="size of the files as JSON (200)")
    options = parser.parse_args()

    def compare(figures):
        python = peers.own_python(figures, "rows", "requirements-rows.txt", "pyarrow")
        bin_folder = build("bench_rows", "troupe_parquet")
        with Workplace() as place:
            measure(figures, place, python, bin_folder, options)

    return script.run("rows", options, compare)


if __name__ == "__main__":
    sys.exit(main())
