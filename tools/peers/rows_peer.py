"""pyarrow, for `tools/bench rows`.

    rows_peer.py make KIND MEGABYTES FILE   a data file: jsonl or parquet, the same rows for the same size
    rows_peer.py run FILE REPEATS           one line of JSON: seconds to read it into columns ("columns"), and into
                                            Python's objects, row by row, as datasets gives them ("rows")
"""

import json
import random
import sys
import time

import pyarrow
import pyarrow.json
import pyarrow.parquet

WORDS = "river stone walks under the old bridge and nobody sees a green lamp burning while \u00e9t\u00e9 wind goes".split()
ROW_GROUP_ROWS = 10_000


def row(dice):
    text = lambda low, high: " ".join(dice.choices(WORDS, k=dice.randint(low, high)))
    return {"messages": [{"role": role, "content": text(20, 120)} for role in ("user", "assistant") * dice.randint(1, 2)],
            "source": dice.choice(("web", "books", "forum")), "score": round(dice.random(), 6)}


def make(kind, megabytes, path):
    dice = random.Random(7)
    pool = [row(dice) for _ in range(5_000)]
    size = sum(len(json.dumps(r, ensure_ascii=False).encode()) for r in pool)
    rows = [pool[i % len(pool)] for i in range(int(megabytes * 1e6 / size * len(pool)))]
    if kind == "jsonl":
        with open(path, "w", encoding="utf-8") as file:
            for one in rows:
                file.write(json.dumps(one, ensure_ascii=False) + "\n")
    else:
        schema = pyarrow.Table.from_pylist(pool).schema
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for begin in range(0, len(rows), ROW_GROUP_ROWS):
                writer.write_table(pyarrow.Table.from_pylist(rows[begin:begin + ROW_GROUP_ROWS], schema=schema))


def run(path, repeats):
    read = pyarrow.parquet.read_table if path.endswith(".parquet") else pyarrow.json.read_json
    figures = {"columns": [], "rows": []}
    for _ in range(repeats):
        begin = time.monotonic()
        table = read(path)
        figures["columns"].append(time.monotonic() - begin)
        for batch in table.to_batches(max_chunksize=1000):
            batch.to_pylist()
        figures["rows"].append(time.monotonic() - begin)
    print(json.dumps(figures))


if sys.argv[1] == "make":
    make(sys.argv[2], float(sys.argv[3]), sys.argv[4])
else:
    run(sys.argv[2], int(sys.argv[3]))
