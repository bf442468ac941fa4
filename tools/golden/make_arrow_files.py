"""Writes tests/golden/arrow: the same rows as parquet, as an IPC stream and as an IPC file, and as JSON.

    PYTHON tools/golden/make_arrow_files.py      (with pyarrow 26.0.1)
"""

import datetime
import json
import pathlib

import pyarrow
import pyarrow.parquet

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/arrow"
TURN = pyarrow.struct([("from", pyarrow.string()), ("value", pyarrow.string())])
SCHEMA = pyarrow.schema([
    ("text", pyarrow.string()), ("large", pyarrow.large_string()), ("label", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    ("conversations", pyarrow.list_(TURN)), ("flag", pyarrow.bool_()), ("small", pyarrow.int8()), ("count", pyarrow.uint64()),
    ("negative", pyarrow.int64()), ("score", pyarrow.float64()), ("half", pyarrow.float32()), ("nothing", pyarrow.null()),
    ("nested", pyarrow.struct([("ids", pyarrow.large_list(pyarrow.int32())), ("pair", pyarrow.list_(pyarrow.int16(), 2)),
                               ("bytes", pyarrow.binary())])),
    ("at", pyarrow.timestamp("s")), ("raw", pyarrow.binary()),
])


def row(i):
    turns = [{"from": ("human", "gpt")[t % 2], "value": f"turn {t} of {i}: \u6e05\u534e \U0001f600" if t else ""} for t in range(i % 4)]
    return {"text": None if i % 5 == 3 else f"row {i}, \u00e9t\u00e9" * (i % 3), "large": "x" * i, "label": ("web", "books", None)[i % 3],
            "conversations": None if i == 4 else turns, "flag": None if i == 7 else i % 2 == 0, "small": i - 8,
            "count": 2**64 - 1 - i, "negative": -(2**62) + i, "score": i / 7, "half": i / 4, "nothing": None,
            "nested": None if i == 6 else {"ids": list(range(i % 3)), "pair": [i, -i], "bytes": b"\xff"},
            "at": datetime.datetime(2026, 1, 15), "raw": b"\x00"}


def shown(value):
    """What is made of it here: columns of bytes and times are left out."""
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items() if not isinstance(inner, (bytes, datetime.datetime))}
    return [shown(inner) for inner in value] if isinstance(value, list) else value


def main():
    rows = [row(i) for i in range(13)]
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    assert table.to_pylist() == rows
    pyarrow.parquet.write_table(table, FOLDER / "rows.parquet", row_group_size=5, compression="snappy")
    # Parts of a table begin in the midst of their buffers.
    with pyarrow.ipc.new_stream(FOLDER / "stream.arrow", SCHEMA) as stream:
        for begin in range(0, 13, 5):
            stream.write_table(table.slice(begin, 5))
    with pyarrow.ipc.new_file(FOLDER / "file.arrow", SCHEMA) as file:
        file.write_table(table, max_chunksize=5)
    views = pyarrow.table({"view": pyarrow.array(["short", None, "longer than twelve bytes", ""], pyarrow.string_view())})
    with pyarrow.ipc.new_stream(FOLDER / "views.arrow", views.schema) as stream:
        stream.write_table(views)
    # Less than a kilobyte each: what fuzzing changes many times a second (tests/fuzz/arrow_targets.cpp).
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    small = pyarrow.table({"text": ["hi", None], "turns": pyarrow.array([turns, []], pyarrow.list_(TURN))})
    for name, options in (("plain", {"use_dictionary": False, "compression": "none"}), ("packed", {"compression": "snappy"})):
        pyarrow.parquet.write_table(small, FOLDER / f"small_{name}.parquet", store_schema=False, write_statistics=False, **options)
    label = pyarrow.table({"label": pyarrow.array(["a", None, "a"]).dictionary_encode(), "n": pyarrow.array([1, 2, 3], pyarrow.int8())})
    with pyarrow.ipc.new_stream(FOLDER / "small_stream.arrow", label.schema) as stream:
        stream.write_table(label)
    with pyarrow.ipc.new_file(FOLDER / "small_file.arrow", label.schema) as file:
        file.write_table(label)
    lines = [json.dumps(shown(r), ensure_ascii=False) for r in rows]
    (FOLDER / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


main()
